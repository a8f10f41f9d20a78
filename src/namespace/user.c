/*
 * Users in memory and in the control store.
 *
 * Records: key "u/NAME", value text lines, in this order:
 *
 *     forebay-user 1
 *     created=1767225600000000000
 *     role=writer
 *     buckets=train-*,images
 *     share=300                          limits: only those that are set
 *     limit.requests=100
 *     limit.bytes=104857600
 *     key=ACCESS SECRET CREATED          one to USER_KEYS_MAX of them, oldest first
 *
 * Secrets stand in the clear, because signatures are computed from them; the control store lies in the data
 * directory, which is the node's own.
 *
 * Invariants:
 *  1. An access key belongs to one user: keys are 100 random bits, and a record that repeats one is refused.
 *  2. A struct user never changes once it is in the table; a change replaces it and retires it.
 *  3. A role of admin goes with the pattern "*": who makes buckets chooses their origins, and may thereby
 * read whatever the node can.
 *
 * Failure modes: a record that does not decode stops the start with ERR_CORRUPT and the user's name.
 */
#include "namespace/user.h"

#include "base/lock.h"
#include "base/shape.h"
#include "base/sys.h"
#include "base/text.h"

#include <inttypes.h>

#define USER_MAGIC       0x75736572u
#define USER_RECORD_HEAD "forebay-user 1\n"
#define USER_RECORD_MAX  (8 * KIB)

struct user_table {
    struct lock lock; /* covers v, n, cap */
    struct kv *kv;
    struct user **v; /* sorted by name */
    size_t n, cap;
};

static const char *const role_names[] = {
#define X(NAME, name) [USER_##NAME] = name,
    USER_ROLES(X)
#undef X
};

const char *user_role_name(enum user_role role)
{
    return role_names[role];
}

struct user *user_ref(struct user *u)
{
    assert(u->magic == USER_MAGIC);
    (void)atomic_fetch_add(&u->refs, 1);
    return u;
}

void user_unref(struct user *u)
{
    if (!u)
        return;
    assert(u->magic == USER_MAGIC);
    if (atomic_fetch_sub(&u->refs, 1) != 1)
        return;
    explicit_bzero(u, sizeof(*u));
    free(u);
}

/* ---- who may what ---- */

/* One pattern against the whole name; on a mismatch the last '*' takes one more character. */
static bool fits_one(struct slice pattern, struct slice name)
{
    size_t p = 0, i = 0, star = SIZE_MAX, from = 0;
    while (i < name.n) {
        if (p < pattern.n && pattern.p[p] == '*') {
            star = p++;
            from = i;
        } else if (p < pattern.n && pattern.p[p] == name.p[i]) {
            p++;
            i++;
        } else if (star != SIZE_MAX) {
            p = star + 1;
            i = ++from;
        } else {
            return false;
        }
    }
    while (p < pattern.n && pattern.p[p] == '*')
        p++;
    return p == pattern.n;
}

bool user_pattern_fits(struct slice patterns, struct slice bucket)
{
    while (patterns.n > 0)
        if (fits_one(slice_split(&patterns, ','), bucket))
            return true;
    return false;
}

bool user_may(const struct user *u, enum user_right right, struct slice bucket)
{
    if (!u || u->role == USER_ADMIN || right == USER_MAY_ANY)
        return true;
    if (right == USER_MAY_MANAGE || (right == USER_MAY_WRITE && u->role != USER_WRITER))
        return false;
    return user_pattern_fits(slice_str(u->buckets), bucket);
}

/* ---- making and checking ---- */

static int check_name(struct slice name, struct err *e)
{
    bool good = name.n > 0 && name.n <= USER_NAME_MAX;
    for (size_t i = 0; good && i < name.n; i++) {
        char c = name.p[i];
        good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
               c == '_' || c == '.' || c == '@';
    }
    return good ? 0
                : err_set(e, ERR_BAD_OPTION,
                          "user name '" SLICE_FMT "': must be 1 to %d of a-z, A-Z, 0-9, '.', '_', '-', '@'",
                          SLICE_ARG(slice_sub(name, 0, 80)), USER_NAME_MAX);
}

static int set_role(struct user *u, struct slice role, struct err *e)
{
    if (role.n == 0)
        role = slice_str(role_names[USER_READER]);
    for (size_t i = 0; i < ARRAY_SIZE(role_names); i++) {
        if (slice_eq_str(role, role_names[i])) {
            u->role = (enum user_role)i;
            return 0;
        }
    }
    return err_set(e, ERR_BAD_OPTION, "role '" SLICE_FMT "': one of admin, writer, reader",
                   SLICE_ARG(slice_sub(role, 0, 80)));
}

static int set_buckets(struct user *u, struct slice patterns, struct err *e)
{
    if (patterns.n == 0)
        patterns = SLICE_LIT("*");
    bool good = patterns.n <= USER_PATTERN_MAX;
    for (size_t i = 0; good && i < patterns.n; i++) {
        char c = patterns.p[i];
        good =
            (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '*' || c == ',';
    }
    if (!good)
        return err_set(e, ERR_BAD_OPTION,
                       "buckets '" SLICE_FMT
                       "': must be names of buckets with commas between, '*' for any characters",
                       SLICE_ARG(slice_sub(patterns, 0, 80)));
    if (u->role == USER_ADMIN && !slice_eq_str(patterns, "*"))
        return err_set(e, ERR_BAD_OPTION,
                       "buckets '" SLICE_FMT "': an admin makes buckets and so reaches all; give *",
                       SLICE_ARG(slice_sub(patterns, 0, 80)));
    memcpy(u->buckets, patterns.p, patterns.n);
    u->buckets[patterns.n] = 0;
    return 0;
}

static struct user *user_new(struct slice name)
{
    struct user *u = calloc(1, sizeof(*u));
    assert(u && name.n <= USER_NAME_MAX);
    u->magic = USER_MAGIC;
    atomic_init(&u->refs, 1);
    u->limits.share = SHAPE_WEIGHT_ONE;
    memcpy(u->name, name.p, name.n);
    return u;
}

/* A copy to change, of the same record. */
static struct user *user_copy(const struct user *old)
{
    struct user *u = user_new(slice_str(old->name));
    u->created_ns = old->created_ns;
    u->version = old->version;
    u->role = old->role;
    memcpy(u->buckets, old->buckets, sizeof(u->buckets));
    u->limits = old->limits;
    memcpy(u->keys, old->keys, sizeof(u->keys));
    u->n_keys = old->n_keys;
    return u;
}

/* Five bits of randomness a character. */
static void random_text(char *ret, size_t n)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    uint8_t bytes[USER_SECRET_KEY_LEN];
    assert(n <= sizeof(bytes));
    sys->random(bytes, n);
    for (size_t i = 0; i < n; i++)
        ret[i] = letters[bytes[i] % 32];
    ret[n] = 0;
    explicit_bzero(bytes, sizeof(bytes));
}

static void put_new_key(struct user *u)
{
    struct user_key *k = &u->keys[u->n_keys++];
    random_text(k->access_key, USER_ACCESS_KEY_LEN);
    random_text(k->secret_key, USER_SECRET_KEY_LEN);
    k->created_ns = sys->real_ns();
}

int user_line(const struct user *u, struct buf *out)
{
    int r = buf_printf(out, "%s %s %s %" PRIu64 " ", u->name, role_names[u->role], u->buckets, u->created_ns);
    for (size_t i = 0; r == 0 && i < u->n_keys; i++)
        r = buf_printf(out, "%s%s", i ? "," : "", u->keys[i].access_key);
    return r ? r
             : buf_printf(out, " %" PRIu32 " %" PRIu64 " %" PRIu64 "\n", u->limits.share,
                          u->limits.requests_per_s, u->limits.bytes_per_s);
}

/* One line "NAME=VALUE" of limits. */
static int set_limit(struct user_limits *l, struct slice line, struct err *e)
{
    struct slice value = line, name = slice_split(&value, '=');
    uint64_t n = 0;
    if (slice_eq_str(name, "share") && slice_u64(value, &n) == 0 && n >= 1 && n <= USER_SHARE_MAX)
        l->share = (uint32_t)n;
    else if (slice_eq_str(name, "limit.requests") && slice_u64(value, &n) == 0)
        l->requests_per_s = n;
    else if (slice_eq_str(name, "limit.bytes") && text_parse_size(value, &n) == 0)
        l->bytes_per_s = n;
    else
        return err_set(e, ERR_BAD_OPTION,
                       "'" SLICE_FMT "': must be share=N (1 to %d), limit.requests=N or limit.bytes=SIZE",
                       SLICE_ARG(slice_sub(line, 0, MIN(line.n, (size_t)80))), USER_SHARE_MAX);
    return 0;
}

/* ---- records ---- */

static int record_encode(const struct user *u, struct buf *out)
{
    int r = buf_printf(out, USER_RECORD_HEAD "created=%" PRIu64 "\nrole=%s\nbuckets=%s\n", u->created_ns,
                       role_names[u->role], u->buckets);
    if (r == 0 && u->limits.share != SHAPE_WEIGHT_ONE)
        r = buf_printf(out, "share=%" PRIu32 "\n", u->limits.share);
    if (r == 0 && u->limits.requests_per_s != 0)
        r = buf_printf(out, "limit.requests=%" PRIu64 "\n", u->limits.requests_per_s);
    if (r == 0 && u->limits.bytes_per_s != 0)
        r = buf_printf(out, "limit.bytes=%" PRIu64 "\n", u->limits.bytes_per_s);
    for (size_t i = 0; r == 0 && i < u->n_keys; i++)
        r = buf_printf(out, "key=%s %s %" PRIu64 "\n", u->keys[i].access_key, u->keys[i].secret_key,
                       u->keys[i].created_ns);
    return r;
}

/* The value of the next line, which must have this name. */
static int record_field(struct slice *rest, const char *name, struct slice *ret)
{
    struct slice line = slice_split(rest, '\n');
    *ret = line;
    return slice_eq_str(slice_split(ret, '='), name) ? 0 : -EINVAL;
}

static int record_key(struct user *u, struct slice text)
{
    struct slice access_key = slice_split(&text, ' '), secret_key = slice_split(&text, ' ');
    if (u->n_keys == USER_KEYS_MAX || access_key.n != USER_ACCESS_KEY_LEN ||
        secret_key.n != USER_SECRET_KEY_LEN)
        return -EINVAL;
    struct user_key *k = &u->keys[u->n_keys++];
    memcpy(k->access_key, access_key.p, access_key.n);
    memcpy(k->secret_key, secret_key.p, secret_key.n);
    return slice_u64(text, &k->created_ns);
}

static int record_decode(struct slice name, struct slice value, struct user **ret, struct err *e)
{
    struct slice rest = slice_from(value, sizeof(USER_RECORD_HEAD) - 1), created, role, buckets, key;
    if (check_name(name, NULL) < 0 || !slice_starts(value, SLICE_LIT(USER_RECORD_HEAD)))
        return err_set(e, ERR_CORRUPT, "record of user '" SLICE_FMT "' is not one of ours", SLICE_ARG(name));
    _cleanup_(user_unrefp) struct user *u = user_new(name);
    int r = record_field(&rest, "created", &created);
    if (r == 0)
        r = slice_u64(created, &u->created_ns);
    if (r == 0)
        r = record_field(&rest, "role", &role);
    if (r == 0)
        r = set_role(u, role, NULL);
    if (r == 0)
        r = record_field(&rest, "buckets", &buckets);
    if (r == 0)
        r = set_buckets(u, buckets, NULL);
    while (r == 0 && rest.n > 0 && !slice_starts(rest, SLICE_LIT("key=")))
        r = set_limit(&u->limits, slice_split(&rest, '\n'), NULL);
    while (r == 0 && rest.n > 0) {
        r = record_field(&rest, "key", &key);
        if (r == 0)
            r = record_key(u, key);
    }
    if (r < 0 || u->n_keys == 0)
        return err_set(e, ERR_CORRUPT, "record of user '%s' is broken", u->name);
    *ret = TAKE_PTR(u);
    return 0;
}

static void put_record_name(const char *name, struct buf *key)
{
    int r = buf_printf(key, "u/%s", name);
    assert(r == 0);
    (void)r;
}

static int record_commit(struct user_table *t, struct user *u, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(USER_NAME_MAX + 3), value = BUF_INIT(USER_RECORD_MAX);
    _cleanup_(kv_txn_freep) struct kv_txn *txn = kv_txn_new(t->kv);
    put_record_name(u->name, &key);
    int r = record_encode(u, &value);
    assert(r == 0); /* all its parts have a maximum */
    kv_txn_check(txn, buf_view(&key), u->version);
    kv_txn_put(txn, buf_view(&key), buf_view(&value));
    r = kv_txn_commit(txn, KV_DURABLE, e);
    buf_clear(&value);
    if (r == 0)
        r = kv_get(t->kv, buf_view(&key), &value, &u->version, e);
    if (value.p)
        explicit_bzero(value.p, value.n);
    return r;
}

/* ---- table ---- */

static size_t table_position(const struct user_table *t, struct slice name, bool *ret_found)
{
    size_t low = 0, high = t->n;
    *ret_found = false;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int c = slice_cmp(slice_str(t->v[mid]->name), name);
        if (c == 0) {
            *ret_found = true;
            return mid;
        }
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Takes over the reference; replaces a user of the same name. */
static void table_put_locked(struct user_table *t, struct user *u)
{
    bool found;
    size_t i = table_position(t, slice_str(u->name), &found);
    lock_assert_held(&t->lock);
    if (found) {
        atomic_store(&t->v[i]->retired, true);
        user_unref(t->v[i]);
        t->v[i] = u;
        return;
    }
    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 16;
        t->v = realloc(t->v, t->cap * sizeof(t->v[0]));
        assert(t->v);
    }
    memmove(t->v + i + 1, t->v + i, (t->n - i) * sizeof(t->v[0]));
    t->v[i] = u;
    t->n++;
}

static struct user *find_key_locked(struct user_table *t, struct slice access_key, size_t *ret_at)
{
    for (size_t i = 0; access_key.n == USER_ACCESS_KEY_LEN && i < t->n; i++)
        for (size_t k = 0; k < t->v[i]->n_keys; k++)
            if (memcmp(t->v[i]->keys[k].access_key, access_key.p, USER_ACCESS_KEY_LEN) == 0) {
                *ret_at = k;
                return t->v[i];
            }
    return NULL;
}

static int table_load(struct user_table *t, struct err *e)
{
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(t->kv, SLICE_LIT("u/"), SLICE_LIT("u0"));
    LOCK_SCOPE(&t->lock);
    for (;;) {
        struct slice key, value;
        struct user *u = NULL;
        size_t at;
        int r = kv_iter_next(it, &key, &value, e);
        if (r == -ENOENT)
            return 0;
        if (r == 0)
            r = record_decode(slice_from(key, 2), value, &u, e);
        for (size_t i = 0; r == 0 && i < u->n_keys; i++)
            if (find_key_locked(t, slice_str(u->keys[i].access_key), &at))
                r = err_set(e, ERR_CORRUPT, "record of user '%s' has another user's key", u->name);
        /* A record whose version cannot be read could not be changed later. */
        _cleanup_buf_ struct buf again = BUF_INIT(USER_RECORD_MAX);
        if (r == 0)
            r = kv_get(t->kv, key, &again, &u->version, e);
        if (r < 0) {
            user_unref(u);
            return r;
        }
        table_put_locked(t, u);
    }
}

int user_table_open(struct kv *kv, struct user_table **ret, struct err *e)
{
    _cleanup_(user_table_closep) struct user_table *t = calloc(1, sizeof(*t));
    assert(t);
    lock_init(&t->lock, LOCK_BUCKET);
    t->kv = kv;
    int r = table_load(t, e);
    if (r < 0)
        return err_prefix(e, r, "users");
    *ret = TAKE_PTR(t);
    return 0;
}

void user_table_close(struct user_table *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n; i++)
        user_unref(t->v[i]);
    free(t->v);
    lock_fini(&t->lock);
    free(t);
}

struct user *user_find_key(struct user_table *t, struct slice access_key,
                           char ret_secret_key[USER_SECRET_KEY_LEN + 1])
{
    size_t at = 0;
    LOCK_SCOPE(&t->lock);
    struct user *u = find_key_locked(t, access_key, &at);
    if (u && ret_secret_key)
        memcpy(ret_secret_key, u->keys[at].secret_key, sizeof(u->keys[at].secret_key));
    return u ? user_ref(u) : NULL;
}

static int find_locked(struct user_table *t, struct slice name, struct user **ret, struct err *e)
{
    bool found;
    size_t i = table_position(t, name, &found);
    if (!found)
        return err_set(e, -ENOENT, "user '" SLICE_FMT "' does not exist", SLICE_ARG(slice_sub(name, 0, 80)));
    *ret = t->v[i];
    return 0;
}

int user_find(struct user_table *t, struct slice name, struct user **ret, struct err *e)
{
    struct user *u;
    LOCK_SCOPE(&t->lock);
    int r = find_locked(t, name, &u, e);
    if (r == 0)
        *ret = user_ref(u);
    return r;
}

/* Changes hold the table's lock over the commit: they are rare, and two of one name must not both succeed. */

int user_create(struct user_table *t, struct slice name, struct slice role, struct slice buckets,
                struct user **ret, struct err *e)
{
    int r = check_name(name, e);
    if (r < 0)
        return r;
    _cleanup_(user_unrefp) struct user *u = user_new(name);
    r = set_role(u, role, e);
    if (r == 0)
        r = set_buckets(u, buckets, e);
    if (r < 0)
        return r;
    u->created_ns = sys->real_ns();
    put_new_key(u);
    LOCK_SCOPE(&t->lock);
    bool found;
    (void)table_position(t, name, &found);
    if (found)
        return err_set(e, -EEXIST, "user '%s' exists already", u->name);
    if (t->n == USERS_MAX)
        return err_set(e, -ENOSPC, "user '%s': there are %d users already", u->name, USERS_MAX);
    r = record_commit(t, u, e);
    if (r < 0)
        return err_prefix(e, r, "create user %s", u->name);
    table_put_locked(t, user_ref(u));
    *ret = TAKE_PTR(u);
    return 0;
}

int user_add_key(struct user_table *t, struct slice name, struct user **ret, struct err *e)
{
    struct user *old;
    LOCK_SCOPE(&t->lock);
    int r = find_locked(t, name, &old, e);
    if (r < 0)
        return r;
    if (old->n_keys == USER_KEYS_MAX)
        return err_set(e, -ENOSPC, "user '%s' has %d keys already: remove one first", old->name,
                       USER_KEYS_MAX);
    _cleanup_(user_unrefp) struct user *u = user_copy(old);
    put_new_key(u);
    r = record_commit(t, u, e);
    if (r < 0)
        return err_prefix(e, r, "add a key of user %s", u->name);
    table_put_locked(t, user_ref(u));
    *ret = TAKE_PTR(u);
    return 0;
}

int user_set_limits(struct user_table *t, struct slice name, struct slice settings, struct err *e)
{
    struct user *old;
    LOCK_SCOPE(&t->lock);
    int r = find_locked(t, name, &old, e);
    if (r < 0)
        return r;
    _cleanup_(user_unrefp) struct user *u = user_copy(old);
    while (r == 0 && settings.n > 0) {
        struct slice line = slice_split(&settings, '\n');
        r = line.n > 0 ? set_limit(&u->limits, line, e) : 0;
    }
    if (r == 0)
        r = record_commit(t, u, e);
    if (r < 0)
        return err_prefix(e, r, "user %s", u->name);
    table_put_locked(t, TAKE_PTR(u));
    return 0;
}

int user_remove_key(struct user_table *t, struct slice name, struct slice access_key, struct err *e)
{
    struct user *old;
    size_t at = 0;
    LOCK_SCOPE(&t->lock);
    int r = find_locked(t, name, &old, e);
    if (r < 0)
        return r;
    if (find_key_locked(t, access_key, &at) != old)
        return err_set(e, -ENOENT, "user '%s' has no key '" SLICE_FMT "'", old->name,
                       SLICE_ARG(slice_sub(access_key, 0, 80)));
    if (old->n_keys == 1)
        return err_set(e, -EPERM,
                       "user '%s': this is its last key; remove the user, or add another key first",
                       old->name);
    _cleanup_(user_unrefp) struct user *u = user_copy(old);
    memmove(&u->keys[at], &u->keys[at + 1], (u->n_keys - at - 1) * sizeof(u->keys[0]));
    u->n_keys--;
    r = record_commit(t, u, e);
    if (r < 0)
        return err_prefix(e, r, "remove a key of user %s", u->name);
    table_put_locked(t, TAKE_PTR(u));
    return 0;
}

int user_delete(struct user_table *t, struct slice name, struct err *e)
{
    LOCK_SCOPE(&t->lock);
    bool found;
    size_t i = table_position(t, name, &found);
    struct user *u;
    int r = find_locked(t, name, &u, e);
    if (r < 0)
        return r;
    _cleanup_buf_ struct buf key = BUF_INIT(USER_NAME_MAX + 3);
    _cleanup_(kv_txn_freep) struct kv_txn *txn = kv_txn_new(t->kv);
    put_record_name(u->name, &key);
    kv_txn_check(txn, buf_view(&key), u->version);
    kv_txn_delete(txn, buf_view(&key));
    r = kv_txn_commit(txn, KV_DURABLE, e);
    if (r < 0)
        return err_prefix(e, r, "remove user %s", u->name);
    atomic_store(&u->retired, true);
    memmove(t->v + i, t->v + i + 1, (t->n - i - 1) * sizeof(t->v[0]));
    t->n--;
    user_unref(u);
    return 0;
}

size_t user_page(struct user_table *t, struct slice after, struct user **ret, size_t max)
{
    LOCK_SCOPE(&t->lock);
    bool found;
    size_t i = table_position(t, after, &found), n = 0;
    if (found)
        i++;
    for (; i < t->n && n < max; i++)
        ret[n++] = user_ref(t->v[i]);
    return n;
}
