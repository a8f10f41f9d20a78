/*
 * Certificates and settings of TLS (contract in tls.h).
 *
 * Invariants:
 *  1. A context is made and checked whole before it replaces the one in use; connections keep the one that
 * they began with (OpenSSL counts its users).
 *  2. TLS 1.2 and 1.3 only, with forward secrecy and authenticated ciphers; no renegotiation, no compression.
 *  3. Nobody is asked for a passphrase: a node has no terminal.
 *
 * Kernel TLS is asked for where the kernel has it; OpenSSL then decides for each connection by its cipher.
 *
 * Failure modes: each error is one line that begins with the option and the file.
 */
#include "net/tls_internal.h"

#include "base/lock.h"
#include "base/sys.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <openssl/x509err.h>
#include <sys/socket.h>

#define SERVER_MAGIC 0x544c5353u

#ifndef TCP_ULP
#define TCP_ULP 31
#endif

struct tls_server {
    uint32_t magic;
    struct lock lock; /* covers context */
    SSL_CTX *context;
    bool kernel; /* the kernel has TLS */
};

static inline void free_context(SSL_CTX **c)
{
    SSL_CTX_free(*c);
}

/* Whether a socket may be given to the kernel's TLS: one that is not connected is refused for that alone. */
static bool kernel_has_tls(void)
{
#ifdef OPENSSL_NO_KTLS
    return false;
#else
    _cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    static const char name[] = "tls";
    return fd >= 0 && (setsockopt(fd, IPPROTO_TCP, TCP_ULP, name, sizeof(name)) == 0 || errno == ENOTCONN);
#endif
}

/* ---- a context ---- */

static int no_passphrase(char *p, int n, int writing, void *arg)
{
    return 0;
}

/* HTTP/1.1 for clients that offer it, and no complaint to those that do not. */
static int choose_protocol(SSL *ssl, const unsigned char **ret, unsigned char *ret_n,
                           const unsigned char *offered, unsigned offered_n, void *arg)
{
    static const unsigned char known[] = "\x08http/1.1";
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, ret_n, known, sizeof(known) - 1, offered, offered_n) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *ret = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static int refuse(struct err *e, const char *option, const char *path, const char *fallback)
{
    unsigned long code = ERR_peek_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    err_set(e, ERR_BAD_OPTION, "%s %s: %s%s%s%s", option, path, fallback, reason ? " (" : "",
            reason ? reason : "", reason ? ")" : "");
    ERR_clear_error();
    return ERR_BAD_OPTION;
}

static int check_readable(const char *option, const char *path, struct err *e)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(e, ERR_BAD_OPTION, "%s %s: %s", option, path, err_text(-errno));
    return 0;
}

static int check_time(SSL_CTX *c, const char *path, struct err *e)
{
    X509 *cert = SSL_CTX_get0_certificate(c);
    assert(cert != NULL);
    if (X509_cmp_current_time(X509_get0_notAfter(cert)) < 0)
        return err_set(e, ERR_BAD_OPTION, "--tls-cert %s: the certificate has expired; get a new one", path);
    if (X509_cmp_current_time(X509_get0_notBefore(cert)) > 0)
        return err_set(e, ERR_BAD_OPTION,
                       "--tls-cert %s: the certificate is not valid yet; look at the clock", path);
    return 0;
}

static int load_files(SSL_CTX *c, const char *cert_path, const char *key_path, struct err *e)
{
    int k = check_readable("--tls-cert", cert_path, e);
    if (k == 0)
        k = check_readable("--tls-key", key_path, e);
    if (k < 0)
        return k;
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(c, cert_path) != 1)
        return refuse(e, "--tls-cert", cert_path, "not a certificate chain in PEM form");
    if (SSL_CTX_use_PrivateKey_file(c, key_path, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(c) != 1) {
        if (ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH ||
            ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_TYPE_MISMATCH) {
            ERR_clear_error();
            return err_set(e, ERR_BAD_OPTION, "--tls-key %s: is not the key of the certificate in %s",
                           key_path, cert_path);
        }
        return refuse(e, "--tls-key", key_path, "not a private key in PEM form without a passphrase");
    }
    return check_time(c, cert_path, e);
}

static int make_context(const char *cert_path, const char *key_path, bool kernel, SSL_CTX **ret,
                        struct err *e)
{
    static const unsigned char id[] = "forebay";
    SSL_CTX *_cleanup_(free_context) c = SSL_CTX_new(TLS_server_method());
    if (!c)
        abort();
    SSL_CTX_set_default_passwd_cb(c, no_passphrase);
    (void)SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
    (void)SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                     SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_CIPHER_SERVER_PREFERENCE |
                                     SSL_OP_PRIORITIZE_CHACHA);
#ifndef OPENSSL_NO_KTLS
    if (kernel)
        (void)SSL_CTX_set_options(c, SSL_OP_ENABLE_KTLS);
#endif
    /* AES with 128 bits first, which nobody can break and which takes fewer rounds than with 256: the server
     * chooses, but for clients that would rather have ChaCha20, as those without AES instructions do. */
    if (SSL_CTX_set_cipher_list(c, "ECDHE+AES128+AESGCM:ECDHE+AESGCM:ECDHE+CHACHA20") != 1 ||
        SSL_CTX_set_ciphersuites(
            c, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") != 1)
        abort();
    /* An idle connection keeps no buffers, and a read takes what the socket has in one call. */
    (void)SSL_CTX_set_mode(c, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_read_ahead(c, 1);
    /* Sessions are resumed by tickets, which cost no memory here. */
    (void)SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_num_tickets(c, 1);
    (void)SSL_CTX_set_session_id_context(c, id, sizeof(id) - 1);
    SSL_CTX_set_alpn_select_cb(c, choose_protocol, NULL);
    int k = load_files(c, cert_path, key_path, e);
    if (k < 0)
        return k;
    *ret = TAKE_PTR(c);
    return 0;
}

/* ---- the server ---- */

int tls_server_open(const char *cert_path, const char *key_path, struct tls_server **ret, struct err *e)
{
    assert(cert_path && key_path && ret);
    struct tls_server *_cleanup_(tls_server_freep) s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    s->magic = SERVER_MAGIC;
    lock_init(&s->lock, LOCK_LEAF);
    s->kernel = kernel_has_tls();
    int k = make_context(cert_path, key_path, s->kernel, &s->context, e);
    if (k < 0)
        return k;
    *ret = TAKE_PTR(s);
    return 0;
}

int tls_server_reload(struct tls_server *s, const char *cert_path, const char *key_path, struct err *e)
{
    assert(s->magic == SERVER_MAGIC && cert_path && key_path);
    SSL_CTX *_cleanup_(free_context) fresh = NULL;
    int k = make_context(cert_path, key_path, s->kernel, &fresh, e);
    if (k < 0)
        return k;
    LOCK_SCOPE(&s->lock);
    SSL_CTX *old = s->context;
    s->context = fresh;
    fresh = old;
    return 0;
}

void tls_server_free(struct tls_server *s)
{
    if (!s)
        return;
    assert(s->magic == SERVER_MAGIC);
    SSL_CTX_free(s->context);
    lock_fini(&s->lock);
    s->magic = 0;
    free(s);
}

SSL *tls_server_session(struct tls_server *s)
{
    assert(s->magic == SERVER_MAGIC);
    LOCK_SCOPE(&s->lock);
    return SSL_new(s->context);
}

static void put_time(const ASN1_TIME *time, char ret[32])
{
    struct tm tm;
    if (ASN1_TIME_to_tm(time, &tm) != 1 || strftime(ret, 32, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        strcpy(ret, "?");
}

void tls_server_describe(struct tls_server *s, char ret[TLS_TEXT_MAX])
{
    assert(s->magic == SERVER_MAGIC);
    char name[128] = "", until[32];
    LOCK_SCOPE(&s->lock);
    X509 *cert = SSL_CTX_get0_certificate(s->context);
    (void)X509_NAME_oneline(X509_get_subject_name(cert), name, sizeof(name));
    for (char *p = name; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = '?';
    put_time(X509_get0_notAfter(cert), until);
    snprintf(ret, TLS_TEXT_MAX, "certificate of %s until %s; kernel TLS: %s", name[0] ? name : "nobody",
             until, s->kernel ? "yes" : "no, the kernel has none");
}
