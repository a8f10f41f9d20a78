/* Records of TLS 1.3 that are counted without being decrypted, made by OpenSSL's own server in memory: no
 * socket, no time. */
#include "sealed.h"

#include "base/sys.h"
#include "base/text.h"

#include <openssl/ec.h>
#include <openssl/x509.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define BODY_BYTES   ((size_t)200 * 16384 + 777)
#define RECORD_BYTES (16384 + 22) /* of a full one, with its head */
#define AES_256      "TLS_AES_256_GCM_SHA384"
#define AES_128      "TLS_AES_128_GCM_SHA256"

/* A server and a client in one thread; what the server sends is taken out of `from_server`. */
struct fixture {
    SSL_CTX *server_ctx, *client_ctx;
    SSL *server, *client;
    BIO *from_server;
    char secret[SEALED_SECRET_MAX];
    size_t secret_n;
    struct sealed *sealed;
};

static void on_secret(const SSL *ssl, const char *line)
{
    struct fixture *f = SSL_get_app_data(ssl);
    struct slice secret = slice_str(line), name = slice_split(&secret, ' ');
    (void)slice_split(&secret, ' ');
    if (!slice_eq_str(name, "SERVER_TRAFFIC_SECRET_0"))
        return;
    f->secret_n = secret.n / 2;
    assert_true(f->secret_n <= sizeof(f->secret));
    assert_int_equal(text_unhex(secret, f->secret, f->secret_n), 0);
}

static void certify(SSL_CTX *c)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    assert_true(key && cert);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    assert_int_equal(SSL_CTX_use_certificate(c, cert), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(c, key), 1);
    X509_free(cert);
    EVP_PKEY_free(key);
}

/* Both sides with their handshake done, of which the server's tickets are still unread. */
static void shake(struct fixture *f, int version, const char *suite)
{
    *f = (struct fixture){.server_ctx = SSL_CTX_new(TLS_server_method()),
                          .client_ctx = SSL_CTX_new(TLS_client_method())};
    certify(f->server_ctx);
    assert_int_equal(SSL_CTX_set_max_proto_version(f->client_ctx, version), 1);
    if (version == TLS1_3_VERSION)
        assert_int_equal(SSL_CTX_set_ciphersuites(f->client_ctx, suite), 1);
    SSL_CTX_set_keylog_callback(f->client_ctx, on_secret);
    f->server = SSL_new(f->server_ctx);
    f->client = SSL_new(f->client_ctx);
    assert_true(f->server && f->client);
    BIO *to_server = BIO_new(BIO_s_mem());
    f->from_server = BIO_new(BIO_s_mem());
    SSL_set_app_data(f->client, f);
    BIO_up_ref(to_server);
    BIO_up_ref(f->from_server);
    SSL_set_bio(f->client, f->from_server, to_server);
    SSL_set_bio(f->server, to_server, f->from_server);
    SSL_set_connect_state(f->client);
    SSL_set_accept_state(f->server);
    for (int i = 0; i < 10 && !(SSL_is_init_finished(f->server) && SSL_is_init_finished(f->client)); i++) {
        (void)SSL_do_handshake(f->client);
        (void)SSL_do_handshake(f->server);
    }
    assert_true(SSL_is_init_finished(f->server) && SSL_is_init_finished(f->client));
}

static void begin(struct fixture *f, const char *suite)
{
    struct err e = {0};
    shake(f, TLS1_3_VERSION, suite);
    assert_int_equal(sealed_new(f->client, slice_of(f->secret, f->secret_n), &f->sealed, &e), 0);
}

static void end(struct fixture *f)
{
    sealed_free(f->sealed);
    SSL_free(f->client);
    SSL_free(f->server);
    SSL_CTX_free(f->client_ctx);
    SSL_CTX_free(f->server_ctx);
}

static char byte_at(size_t i)
{
    return (char)(i * 7 + i / 16384);
}

/* All that the server has sent; the body is written in pieces of `piece`. */
static struct slice send_body(struct fixture *f, size_t n, size_t piece, char **ret)
{
    char *body = malloc(n + 1), *wire;
    assert_non_null(body);
    for (size_t i = 0; i < n; i++)
        body[i] = byte_at(i);
    for (size_t at = 0; at < n; at += MIN(piece, n - at))
        assert_int_equal(SSL_write(f->server, body + at, (int)MIN(piece, n - at)), (int)MIN(piece, n - at));
    free(body);
    long wire_n = BIO_get_mem_data(f->from_server, &wire);
    *ret = slice_dup(slice_of(wire, (size_t)wire_n));
    return slice_of(*ret, (size_t)wire_n);
}

struct seen {
    size_t got, opened;
    bool wrong;
    int result; /* of on_bytes */
};

static int on_bytes(void *arg, const char *p, size_t n)
{
    struct seen *s = arg;
    for (size_t i = 0; p && i < n; i++)
        s->wrong |= p[i] != byte_at(s->got + i);
    s->opened += p ? n : 0;
    s->got += n;
    return s->result;
}

static int take(struct fixture *f, struct slice wire, size_t piece, struct seen *s, struct err *e)
{
    int r = 0;
    for (; wire.n > 0 && r == 0; wire = slice_from(wire, piece))
        r = sealed_take(f->sealed, slice_sub(wire, 0, MIN(piece, wire.n)), on_bytes, s, e);
    return r;
}

/* However the stream is cut, every byte is counted, and those that are opened are the server's: all where all
 * are asked for, else one record in SEALED_EVERY and those that are not full. */
static void what_is_cut_anywhere_is_counted(void **state)
{
    (void)state;
    static const size_t pieces[] = {1, 5, 16384, RECORD_BYTES, 100000, SIZE_MAX / 2};
    for (size_t i = 0; i < 4 * ARRAY_SIZE(pieces); i++) {
        struct fixture f;
        struct seen s = {0};
        struct err e = {0};
        char *wire;
        bool all = i / ARRAY_SIZE(pieces) % 2;
        begin(&f, i / ARRAY_SIZE(pieces) / 2 ? AES_128 : AES_256);
        struct slice sent = send_body(&f, BODY_BYTES, BODY_BYTES, &wire);
        sealed_open_all(f.sealed, all);
        assert_int_equal(take(&f, sent, pieces[i % ARRAY_SIZE(pieces)], &s, &e), 0);
        assert_true(sealed_is_between(f.sealed));
        assert_int_equal(s.got, BODY_BYTES);
        assert_false(s.wrong);
        if (all)
            assert_int_equal(s.opened, BODY_BYTES);
        else
            assert_int_equal(s.opened, 3 * 16384 + 777); /* of 200, behind the tickets */
        free(wire);
        end(&f);
    }
}

/* Small records are opened, so that a head is seen however it is sent. */
static void small_records_are_opened(void **state)
{
    (void)state;
    struct fixture f;
    struct seen s = {0};
    struct err e = {0};
    char *wire;
    begin(&f, AES_256);
    struct slice sent = send_body(&f, 100000, 16383, &wire);
    sealed_open_all(f.sealed, false);
    assert_int_equal(take(&f, sent, 999, &s, &e), 0);
    assert_int_equal(s.opened, 100000);
    assert_false(s.wrong);
    free(wire);
    end(&f);
}

/* The first record of data: it stands behind the tickets. */
static size_t first_full(struct slice wire)
{
    size_t at = 0;
    for (size_t n = 0; n != RECORD_BYTES; at += n == RECORD_BYTES ? 0 : n)
        n = 5 + ((size_t)(uint8_t)wire.p[at + 3] << 8 | (uint8_t)wire.p[at + 4]);
    return at;
}

/* A byte that was changed on the way is found wherever a record is opened, and in heads everywhere. */
static void what_was_changed_is_found(void **state)
{
    (void)state;
    static const struct {
        size_t record, byte; /* full records behind the first one of data; byte of it */
        bool all, found;
    } cases[] = {
        {0, 5, true, true},     {0, 9000, true, true}, {0, RECORD_BYTES - 1, true, true},
        {7, 6, true, true},     {5, 0, false, true},   {5, 1, false, true},
        {5, 3, false, true},    {9, 4, false, true},   {9, 9000, false, false},
        {70, 8000, true, true},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture f;
        struct seen s = {0};
        struct err e = {0};
        char *wire;
        begin(&f, AES_256);
        struct slice sent = send_body(&f, BODY_BYTES, BODY_BYTES, &wire);
        wire[first_full(sent) + cases[i].record * RECORD_BYTES + cases[i].byte] ^= 0x41;
        sealed_open_all(f.sealed, cases[i].all);
        int r = take(&f, sent, 50000, &s, &e);
        assert_int_equal(r, cases[i].found ? ERR_PROTOCOL : 0);
        assert_true((e.text[0] != '\0') == cases[i].found);
        assert_false(s.wrong); /* nothing of it was given out */
        free(wire);
        end(&f);
    }
}

/* One record in SEALED_EVERY is opened though nobody asks for it: the first that was changed ends a run in
 * which all were. */
static void garbage_is_found_soon(void **state)
{
    (void)state;
    struct fixture f;
    struct seen s = {0};
    struct err e = {0};
    char *wire;
    begin(&f, AES_256);
    struct slice sent = send_body(&f, BODY_BYTES, BODY_BYTES, &wire);
    size_t at = first_full(sent);
    for (size_t i = 0; i < 200; i++)
        wire[at + i * RECORD_BYTES + 100] ^= 1;
    sealed_open_all(f.sealed, false);
    assert_int_equal(take(&f, sent, 50000, &s, &e), ERR_PROTOCOL);
    assert_true(s.got <= SEALED_EVERY * 16384);
    free(wire);
    end(&f);
}

/* What is no data ends the run: alerts, new keys, padding that would be counted as data. */
static void other_records_are_refused(void **state)
{
    (void)state;
    static const char *const words[] = {"alert", "no data", "padded"};
    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        struct fixture f;
        struct seen s = {0};
        struct err e = {0};
        char *wire;
        begin(&f, AES_256);
        sealed_open_all(f.sealed, false);
        if (i == 0)
            (void)SSL_shutdown(f.server);
        if (i == 1)
            assert_true(SSL_key_update(f.server, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 &&
                        SSL_do_handshake(f.server) == 1);
        if (i == 2)
            assert_int_equal(SSL_set_block_padding(f.server, 512), 1);
        struct slice sent = send_body(&f, i == 2 ? 100 : 0, 100, &wire);
        assert_int_equal(take(&f, sent, 3, &s, &e), ERR_PROTOCOL);
        assert_non_null(strstr(e.text, words[i]));
        assert_int_equal(s.got, 0);
        free(wire);
        end(&f);
    }
}

/* What the caller's function gives ends the call. */
static void the_callers_word_ends_it(void **state)
{
    (void)state;
    struct fixture f;
    struct seen s = {.result = -ENOSPC};
    struct err e = {0};
    char *wire;
    begin(&f, AES_256);
    struct slice sent = send_body(&f, 100000, 16384, &wire);
    assert_int_equal(take(&f, sent, SIZE_MAX / 2, &s, &e), -ENOSPC);
    assert_int_equal(s.got, 16384);
    free(wire);
    end(&f);
}

/* Sessions whose records mean something else are refused before anything is counted. */
static void other_sessions_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    shake(&f, TLS1_2_VERSION, NULL);
    assert_int_equal(sealed_new(f.client, slice_of("0123456789abcdef0123456789abcdef", 32), &f.sealed, &e),
                     ERR_PROTOCOL);
    assert_non_null(strstr(e.text, "TLSv1.2"));
    end(&f);
    shake(&f, TLS1_3_VERSION, "TLS_CHACHA20_POLY1305_SHA256");
    assert_int_equal(sealed_new(f.client, slice_of(f.secret, f.secret_n), &f.sealed, &e), ERR_PROTOCOL);
    assert_non_null(strstr(e.text, "CHACHA20"));
    end(&f);
    shake(&f, TLS1_3_VERSION, AES_256);
    assert_int_equal(sealed_new(f.client, SLICE_NULL, &f.sealed, &e), ERR_PROTOCOL);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_cut_anywhere_is_counted), cmocka_unit_test(small_records_are_opened),
        cmocka_unit_test(what_was_changed_is_found),       cmocka_unit_test(garbage_is_found_soon),
        cmocka_unit_test(other_records_are_refused),       cmocka_unit_test(the_callers_word_ends_it),
        cmocka_unit_test(other_sessions_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
