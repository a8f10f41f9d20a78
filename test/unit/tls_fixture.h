/* Certificates made on the spot, and a client, for the tests of TLS. */
#pragma once

#include "base/sys.h"
#include "support/tmpdir.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

struct tls_files {
    char *cert, *key; /* paths */
};

static inline void tls_files_fini(struct tls_files *f)
{
    free(f->cert);
    free(f->key);
}

/* A self-signed certificate for `name` that is valid from now + begin_s to now + end_s, and its key. */
static inline struct tls_files tls_make_files(const char *dir, const char *name, long begin_s, long end_s)
{
    char cert_name[64], key_name[64];
    snprintf(cert_name, sizeof(cert_name), "%s.crt", name);
    snprintf(key_name, sizeof(key_name), "%s.key", name);
    struct tls_files f = {tmpdir_path(dir, cert_name), tmpdir_path(dir, key_name)};
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    assert_true(key && cert);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), begin_s);
    X509_gmtime_adj(X509_getm_notAfter(cert), end_s);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC, (const unsigned char *)name,
                               -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(cert));
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    FILE *out = fopen(f.cert, "w");
    assert_true(out && PEM_write_X509(out, cert) == 1 && fclose(out) == 0);
    out = fopen(f.key, "w");
    assert_true(out && PEM_write_PrivateKey(out, key, NULL, NULL, 0, NULL, NULL) == 1 && fclose(out) == 0);
    X509_free(cert);
    EVP_PKEY_free(key);
    return f;
}

/* A client on a blocking socket, its handshake done; it trusts everybody. */
static inline SSL *tls_client(int fd)
{
    SSL_CTX *c = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(c);
    SSL_CTX_free(c);
    assert_true(ssl && SSL_set_fd(ssl, fd) == 1);
    assert_int_equal(SSL_connect(ssl), 1);
    return ssl;
}

/* "CN" of the certificate that the server showed. */
static inline void tls_peer_name(SSL *client, char ret[64])
{
    X509 *cert = SSL_get1_peer_certificate(client);
    assert_non_null(cert);
    assert_true(X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, ret, 64) > 0);
    X509_free(cert);
}
