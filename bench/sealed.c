/*
 * Records of TLS 1.3 that are counted and not decrypted (contract in sealed.h).
 *
 * Invariants:
 *  1. `number` is that of the record under way, whether it is opened or not: it is a part of the nonce.
 *  2. Whether a record is opened is decided when its head is there, and one that is opened is gathered whole:
 * nothing of it is given out before its tag was right.
 *
 * Failure modes: a key that changes in the middle (KeyUpdate, which no server here sends) is refused.
 *
 * Source: RFC 8446, 5.2 to 5.4 and 7.1 to 7.3.
 */
#include "sealed.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#define SEALED_MAGIC 0x5345414cu
#define HEAD_BYTES   5
#define NONCE_BYTES  12
#define TAG_BYTES    16
#define PLAIN_MAX    16384
#define FULL_BYTES   (PLAIN_MAX + 1 + TAG_BYTES) /* behind the head of a full record */
#define RECORD_MAX   (PLAIN_MAX + 256)

enum content {
    CONTENT_ALERT = 21,
    CONTENT_HANDSHAKE = 22,
    CONTENT_DATA = 23,
};

#define NEW_SESSION_TICKET 4

struct sealed {
    uint32_t magic;
    EVP_CIPHER_CTX *gcm; /* with the key */
    uint8_t iv[NONCE_BYTES];
    uint64_t number; /* of the record under way */
    bool all;
    uint8_t head[HEAD_BYTES];
    size_t head_n;
    size_t whole, left; /* bytes behind the head, and those that have not come */
    bool opens;         /* the record under way */
    uint8_t record[RECORD_MAX];
};

/* HKDF-Expand-Label without context, of at most one block. */
static int expand(const EVP_MD *md, struct slice secret, const char *label, uint8_t *ret, size_t n)
{
    uint8_t info[32], out[EVP_MAX_MD_SIZE];
    unsigned out_n = 0;
    int info_n =
        snprintf((char *)info, sizeof(info), "%c%c%ctls13 %s", 0, (int)n, (int)strlen(label) + 6, label);
    info[info_n++] = 0; /* no context */
    info[info_n++] = 1; /* the first block */
    if (!HMAC(md, secret.p, (int)secret.n, info, (size_t)info_n, out, &out_n) || out_n < n)
        return -EINVAL;
    memcpy(ret, out, n);
    OPENSSL_cleanse(out, sizeof(out));
    return 0;
}

int sealed_new(const SSL *ssl, struct slice secret, struct sealed **ret, struct err *e)
{
    const SSL_CIPHER *cipher = SSL_get_current_cipher(ssl);
    const EVP_CIPHER *gcm = cipher ? EVP_get_cipherbynid(SSL_CIPHER_get_cipher_nid(cipher)) : NULL;
    const EVP_MD *md = cipher ? SSL_CIPHER_get_handshake_digest(cipher) : NULL;
    uint8_t key[EVP_MAX_KEY_LENGTH];
    if (SSL_version(ssl) != TLS1_3_VERSION || !gcm || !md || EVP_CIPHER_get_mode(gcm) != EVP_CIPH_GCM_MODE)
        return err_set(e, ERR_PROTOCOL, "%s with %s: only TLS 1.3 with AES-GCM is understood",
                       SSL_get_version(ssl), cipher ? SSL_CIPHER_get_name(cipher) : "no cipher");
    if (secret.n != (size_t)EVP_MD_get_size(md) || SSL_has_pending(ssl))
        return err_set(e, ERR_PROTOCOL, "the session's secret is not known, or it has begun");
    struct sealed *_cleanup_(sealed_freep) s = calloc(1, sizeof(*s));
    assert(s);
    s->magic = SEALED_MAGIC;
    s->all = true;
    s->gcm = EVP_CIPHER_CTX_new();
    bool ok = s->gcm && expand(md, secret, "key", key, (size_t)EVP_CIPHER_get_key_length(gcm)) == 0 &&
              expand(md, secret, "iv", s->iv, sizeof(s->iv)) == 0 &&
              EVP_DecryptInit_ex(s->gcm, gcm, NULL, key, NULL) == 1;
    OPENSSL_cleanse(key, sizeof(key));
    if (!ok)
        return err_set(e, ERR_PROTOCOL, "no key can be made of the session's secret");
    *ret = TAKE_PTR(s);
    return 0;
}

void sealed_free(struct sealed *s)
{
    if (!s)
        return;
    assert(s->magic == SEALED_MAGIC);
    EVP_CIPHER_CTX_free(s->gcm);
    s->magic = 0;
    free(s);
}

void sealed_open_all(struct sealed *s, bool all)
{
    s->all = all;
}

bool sealed_is_between(const struct sealed *s)
{
    return s->head_n == 0;
}

static int begin_record(struct sealed *s, struct err *e)
{
    s->whole = s->left = (size_t)s->head[3] << 8 | s->head[4];
    if (s->head[0] != CONTENT_DATA || s->head[1] != 3 || s->head[2] != 3 || s->whole <= TAG_BYTES ||
        s->whole > RECORD_MAX)
        return err_set(e, ERR_PROTOCOL, "record %llu is none of data: type %u, %zu bytes",
                       (unsigned long long)s->number, s->head[0], s->whole);
    s->opens = s->all || s->whole != FULL_BYTES || s->number % SEALED_EVERY == 0;
    return 0;
}

/* In its place. *ret_n: bytes of plain text with the type behind them and padding behind that. */
static int decrypt(struct sealed *s, size_t *ret_n)
{
    uint8_t nonce[NONCE_BYTES], *tag = s->record + s->whole - TAG_BYTES;
    int n = (int)(s->whole - TAG_BYTES), unused = 0;
    memcpy(nonce, s->iv, sizeof(nonce));
    for (int i = 0; i < 8; i++)
        nonce[NONCE_BYTES - 1 - i] ^= (uint8_t)(s->number >> 8 * i);
    if (EVP_DecryptInit_ex(s->gcm, NULL, NULL, NULL, nonce) != 1 ||
        EVP_DecryptUpdate(s->gcm, NULL, &unused, s->head, HEAD_BYTES) != 1 ||
        EVP_DecryptUpdate(s->gcm, s->record, &n, s->record, n) != 1 ||
        EVP_CIPHER_CTX_ctrl(s->gcm, EVP_CTRL_GCM_SET_TAG, TAG_BYTES, tag) != 1 ||
        EVP_DecryptFinal_ex(s->gcm, s->record + n, &unused) != 1)
        return ERR_PROTOCOL;
    *ret_n = (size_t)n;
    return 0;
}

static int open_record(struct sealed *s, sealed_fn fn, void *arg, struct err *e)
{
    size_t n;
    const unsigned long long number = s->number;
    if (decrypt(s, &n) < 0)
        return err_set(e, ERR_PROTOCOL, "record %llu does not open: it is not the server's, or was changed",
                       number);
    if (s->record[n - 1] == 0)
        return err_set(e, ERR_PROTOCOL, "record %llu is padded, so that its bytes cannot be counted", number);
    unsigned content = s->record[--n];
    if (content == CONTENT_DATA)
        return fn(arg, (char *)s->record, n);
    if (content == CONTENT_HANDSHAKE && n > 0 && s->record[0] == NEW_SESSION_TICKET)
        return 0;
    if (content == CONTENT_ALERT && n == 2)
        return err_set(e, ERR_PROTOCOL, "record %llu is an alert: %s", number,
                       SSL_alert_desc_string_long(s->record[1]));
    return err_set(e, ERR_PROTOCOL, "record %llu holds no data: type %u", number, content);
}

static int end_record(struct sealed *s, sealed_fn fn, void *arg, struct err *e)
{
    int r = s->opens ? open_record(s, fn, arg, e) : fn(arg, NULL, s->whole - TAG_BYTES - 1);
    s->number++;
    s->head_n = 0;
    return r;
}

int sealed_take(struct sealed *s, struct slice bytes, sealed_fn fn, void *arg, struct err *e)
{
    int r = 0;
    assert(s->magic == SEALED_MAGIC);
    while (bytes.n > 0 && r == 0) {
        size_t n;
        if (s->head_n < HEAD_BYTES) {
            n = MIN(bytes.n, HEAD_BYTES - s->head_n);
            memcpy(s->head + s->head_n, bytes.p, n);
            s->head_n += n;
            r = s->head_n == HEAD_BYTES ? begin_record(s, e) : 0;
        } else {
            n = MIN(bytes.n, s->left);
            if (s->opens)
                memcpy(s->record + s->whole - s->left, bytes.p, n);
            s->left -= n;
            r = s->left == 0 ? end_record(s, fn, arg, e) : 0;
        }
        bytes = slice_from(bytes, n);
    }
    return r;
}
