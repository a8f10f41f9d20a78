/*
 * Authorities, read once (contract in trust.h).
 *
 * OpenSSL counts who uses an X509_STORE and lets any number of threads look certificates up in it, so that
 * one serves all connections. It is given to the SSL_CTX that libcurl has made for a connection and before
 * anything is sent.
 *
 * Invariants:
 *  1. One thread at a time reads a file, without the lock; who needs one meanwhile waits for what it gets.
 *  2. What is kept under a path was read when its file was as it is now, by its inode, size and time.
 *
 * Failure modes: ERR_ORIGIN_SETUP with the file and why it cannot be read; nothing is kept of it.
 */
#include "net/trust.h"

#include "base/lock.h"
#include "base/slice.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#define KEPT_MAX 16 /* files: the system's, and those of origins with authorities of their own */

struct kept {
    char *path;
    struct stat as;
    X509_STORE *store;
    uint64_t used; /* the higher, the later */
};

static struct {
    struct lock lock; /* covers what follows */
    struct cond was_read;
    bool reading;
    struct kept kept[KEPT_MAX];
    uint64_t used;
} T;

static bool is_shared; /* constant after `once` */
static const char *default_file, *default_dir;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Of another TLS, or of a second OpenSSL, the structures are others. */
static void look_at_curl(void)
{
    const curl_version_info_data *v = curl.version_info(CURLVERSION_NOW);
    struct slice tls = slice_str(v->ssl_version ? v->ssl_version : "");
    bool tells_files = v->age >= CURLVERSION_SEVENTH;
    lock_init(&T.lock, LOCK_LEAF);
    cond_init(&T.was_read);
    is_shared =
        tells_files && slice_starts(tls, SLICE_LIT("OpenSSL/")) &&
        slice_eq(slice_from(tls, strlen("OpenSSL/")), slice_str(OpenSSL_version(OPENSSL_VERSION_STRING)));
    default_file = tells_files ? v->cainfo : NULL;
    default_dir = tells_files ? v->capath : NULL;
}

static int refuse(struct err *e, const char *path, const char *why)
{
    return err_set(e, ERR_ORIGIN_SETUP, "the authorities in %s cannot be used: %s", path, why);
}

static inline void free_store(X509_STORE **s)
{
    X509_STORE_free(*s);
}

/* As libcurl does: what is in the file is enough, with or without its issuer, and further ones are looked for
 * in the directory when they are needed. */
static int read_store(const char *path, X509_STORE **ret, struct err *e)
{
    X509_STORE *_cleanup_(free_store) store = X509_STORE_new();
    if (!store)
        abort();
    ERR_clear_error();
    (void)X509_STORE_set_flags(store, X509_V_FLAG_TRUSTED_FIRST | X509_V_FLAG_PARTIAL_CHAIN);
    bool is_read = X509_STORE_load_file(store, path) == 1;
    unsigned long code = ERR_peek_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    ERR_clear_error();
    if (!is_read)
        return refuse(e, path, reason ? reason : "no certificate in PEM form is in it");
    if (default_dir)
        (void)X509_STORE_load_path(store, default_dir);
    *ret = TAKE_PTR(store);
    return 0;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static struct kept *find_locked(const char *path)
{
    lock_assert_held(&T.lock);
    for (size_t i = 0; i < KEPT_MAX; i++)
        if (T.kept[i].path && strcmp(T.kept[i].path, path) == 0)
            return &T.kept[i];
    return NULL;
}

/* In place of what was kept of it, or of what was used least lately. */
static void keep_locked(const char *path, const struct stat *as, X509_STORE *store)
{
    struct kept *k = find_locked(path);
    for (size_t i = 0; !k && i < KEPT_MAX; i++)
        if (!T.kept[i].path)
            k = &T.kept[i];
    if (!k) {
        k = &T.kept[0];
        for (size_t i = 1; i < KEPT_MAX; i++)
            if (T.kept[i].used < k->used)
                k = &T.kept[i];
    }
    free(k->path);
    X509_STORE_free(k->store);
    (void)X509_STORE_up_ref(store);
    *k = (struct kept){.path = slice_dup(slice_str(path)), .as = *as, .store = store, .used = ++T.used};
}

/* A reference in *ret. */
static int take_store(const char *path, X509_STORE **ret, struct err *e)
{
    struct stat now;
    if (stat(path, &now) < 0)
        return refuse(e, path, err_text(-errno));
    lock_take(&T.lock);
    struct kept *k;
    while (!((k = find_locked(path)) && is_same(&k->as, &now)) && T.reading)
        cond_wait(&T.was_read, &T.lock);
    bool found = k && is_same(&k->as, &now);
    if (found) {
        k->used = ++T.used;
        (void)X509_STORE_up_ref(k->store);
        *ret = k->store;
    } else {
        T.reading = true;
    }
    lock_drop(&T.lock);
    if (found)
        return 0;
    int r = read_store(path, ret, e);
    LOCK_SCOPE(&T.lock);
    T.reading = false;
    if (r == 0)
        keep_locked(path, &now, *ret);
    cond_broadcast(&T.was_read);
    return r;
}

/* Of a connection to a proxy over TLS libcurl has read the authorities, which are other options: those are
 * left as they are. */
static bool has_authorities(SSL_CTX *context)
{
    return sk_X509_OBJECT_num(X509_STORE_get0_objects(SSL_CTX_get_cert_store(context))) > 0;
}

static CURLcode on_context(CURL *easy, void *context, void *arg)
{
    struct trust *t = arg;
    X509_STORE *store = NULL;
    if (has_authorities(context))
        return CURLE_OK;
    t->result = take_store(t->ca_file ? t->ca_file : default_file, &store, t->e);
    if (t->result < 0 && !t->ca_file)
        (void)err_prefix(t->e, t->result, "install the system's certificates (ca-certificates)");
    if (t->result < 0)
        return CURLE_SSL_CACERT_BADFILE;
    SSL_CTX_set_cert_store(context, store);
    return CURLE_OK;
}

void trust_set(CURL *easy, struct trust *t)
{
    (void)pthread_once(&once, look_at_curl);
    t->result = 0;
    if (is_shared && (t->ca_file || default_file)) {
        curl_set(easy, CURLOPT_CAINFO, NULL);
        curl_set(easy, CURLOPT_CAPATH, NULL);
        curl_set(easy, CURLOPT_SSL_CTX_FUNCTION, on_context);
        curl_set(easy, CURLOPT_SSL_CTX_DATA, t);
    } else if (t->ca_file) {
        curl_set(easy, CURLOPT_CAINFO, t->ca_file);
    }
}
