/*
 * AES-256-GCM over small values.
 *
 * Invariants:
 *  1. A nonce is never used twice with a key, but by chance: 96 random bits, for a few thousand sealings of a
 * key's life.
 *  2. Nothing of a value is given out before its tag was found right.
 *  3. The key never leaves this file but into its own file.
 *
 * Failure modes: in seal.h. A crash while the key is made leaves the file whole or absent; nothing is sealed
 * before it is there.
 */
#include "namespace/seal.h"

#include "base/sys.h"
#include "base/text.h"

#include <openssl/evp.h>

#define FILE_HEAD   "forebay-secret-key 1\n"
#define FILE_MAX    4096
#define FORM        1
#define NONCE_BYTES 12
#define TAG_BYTES   16
#define HEAD_BYTES  (1 + NONCE_BYTES)
#define SECRET_MAX  (16 * KIB)

struct seal {
    uint8_t key[SEAL_KEY_BYTES];
};

struct seal *seal_new(const uint8_t key[SEAL_KEY_BYTES])
{
    struct seal *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    memcpy(s->key, key, SEAL_KEY_BYTES);
    return s;
}

void seal_free(struct seal *s)
{
    if (!s)
        return;
    explicit_bzero(s, sizeof(*s));
    free(s);
}

/* ---- the key file ---- */

static int make_file(const char *path, struct seal **ret, struct err *e)
{
    uint8_t key[SEAL_KEY_BYTES];
    char text[sizeof(FILE_HEAD) + 2 * SEAL_KEY_BYTES + 1] = FILE_HEAD;
    size_t head = strlen(FILE_HEAD);
    sys->random(key, sizeof(key));
    text_hex(key, sizeof(key), text + head);
    text[head + (size_t)2 * SEAL_KEY_BYTES] = '\n';
    int r = sys_write_file_atomic(path, text, sizeof(text) - 1, 0600);
    if (r == 0)
        *ret = seal_new(key);
    explicit_bzero(key, sizeof(key));
    explicit_bzero(text, sizeof(text));
    return r < 0 ? err_errno(e, r, "write %s", path) : 0;
}

static int parse_file(const char *path, struct slice text, struct seal **ret, struct err *e)
{
    uint8_t key[SEAL_KEY_BYTES];
    bool ours = slice_starts(text, SLICE_LIT(FILE_HEAD));
    struct slice hex = ours ? slice_from(text, strlen(FILE_HEAD)) : SLICE_NULL;
    hex = slice_split(&hex, '\n');
    if (!ours || hex.n != (size_t)2 * SEAL_KEY_BYTES || text_unhex(hex, key, sizeof(key)) < 0)
        return err_set(e, -EINVAL, "%s: is no secret key of a node; restore the file", path);
    *ret = seal_new(key);
    explicit_bzero(key, sizeof(key));
    return 0;
}

int seal_open(const char *path, struct seal **ret, struct err *e)
{
    assert(path && ret);
    char _cleanup_free_ *text = NULL;
    size_t n = 0;
    struct stat st;
    int r = sys_read_file(path, FILE_MAX, &text, &n);
    if (r == -ENOENT)
        return make_file(path, ret, e);
    if (r < 0)
        return err_errno(e, r, "read %s", path);
    if (sys->stat(path, &st) == 0 && (st.st_mode & 077) != 0)
        r = err_set(e, -EINVAL, "%s can be read by others; chmod 600 it", path);
    else
        r = parse_file(path, slice_of(text, n), ret, e);
    explicit_bzero(text, n);
    return r;
}

/* ---- values ---- */

static void cipher_freep(EVP_CIPHER_CTX **c)
{
    EVP_CIPHER_CTX_free(*c);
}

static const unsigned char *bytes(struct slice s)
{
    return (const unsigned char *)(s.p ? s.p : "");
}

int seal_wrap(const struct seal *s, struct slice context, struct slice secret, struct buf *out)
{
    uint8_t plain[HEAD_BYTES] = {FORM};
    int n = 0, last = 0;
    if (secret.n > SECRET_MAX)
        return -E2BIG;
    sys->random(plain + 1, NONCE_BYTES);
    size_t total = HEAD_BYTES + secret.n + TAG_BYTES;
    uint8_t _cleanup_free_ *sealed = malloc(total);
    EVP_CIPHER_CTX *_cleanup_(cipher_freep) c = EVP_CIPHER_CTX_new();
    if (!sealed || !c)
        abort();
    memcpy(sealed, plain, HEAD_BYTES);
    bool ok = EVP_EncryptInit_ex(c, EVP_aes_256_gcm(), NULL, s->key, sealed + 1) == 1 &&
              EVP_EncryptUpdate(c, NULL, &n, bytes(context), (int)context.n) == 1 &&
              EVP_EncryptUpdate(c, sealed + HEAD_BYTES, &n, bytes(secret), (int)secret.n) == 1 &&
              EVP_EncryptFinal_ex(c, sealed + HEAD_BYTES + n, &last) == 1 &&
              EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, TAG_BYTES, sealed + HEAD_BYTES + secret.n) == 1;
    assert(ok && (size_t)(n + last) == secret.n);
    return text_base64(out, slice_of(sealed, total));
}

int seal_unwrap(const struct seal *s, struct slice context, struct slice text, struct buf *out, struct err *e)
{
    struct buf _cleanup_buf_ sealed = BUF_INIT(2 * SECRET_MAX);
    int n = 0, last = 0;
    if (text_unbase64(&sealed, text) < 0 || sealed.n < HEAD_BYTES + TAG_BYTES || sealed.p[0] != FORM)
        return err_set(e, ERR_CORRUPT, "a sealed secret is damaged");
    size_t secret_n = sealed.n - HEAD_BYTES - TAG_BYTES;
    uint8_t *p = (uint8_t *)sealed.p, _cleanup_free_ *plain = malloc(secret_n + 1);
    EVP_CIPHER_CTX *_cleanup_(cipher_freep) c = EVP_CIPHER_CTX_new();
    if (!plain || !c)
        abort();
    bool ok = EVP_DecryptInit_ex(c, EVP_aes_256_gcm(), NULL, s->key, p + 1) == 1 &&
              EVP_DecryptUpdate(c, NULL, &n, bytes(context), (int)context.n) == 1 &&
              EVP_DecryptUpdate(c, plain, &n, p + HEAD_BYTES, (int)secret_n) == 1 &&
              EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, TAG_BYTES, p + HEAD_BYTES + secret_n) == 1 &&
              EVP_DecryptFinal_ex(c, plain + n, &last) == 1;
    int r = ok ? buf_append(out, plain, secret_n)
               : err_set(e, ERR_CORRUPT, "a secret was sealed with another key, or is damaged");
    explicit_bzero(plain, secret_n);
    return r;
}
