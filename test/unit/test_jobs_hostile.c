/* layer: jobs */
/* threaded */
/* Every operation of the wire protocol as a broken client sends it: whatever stands in the fields of a
 * request that decodes, it is answered, and the node goes on. The layer is that of the jobs, so that all
 * operations are there. */
#include "jobs_common.h"

#include "base/hash.h"

#define LONGEST_BYTES (WIRE_BODY_MAX_BYTES - 64 * KIB)
#define ANSWER_BYTES  (WIRE_BODY_MAX_BYTES + 256 * KIB) /* what the front end gives a request */
#define ROUNDS        40                                /* of each operation, with several fields at once */
#define HANDLES_MAX   16
#define N_BUCKETS     5

enum field_kind { FIELD_u32, FIELD_u64, FIELD_i64, FIELD_str, FIELD_attr, FIELD_inode };

struct field {
    const char *name;
    enum field_kind kind;
    size_t at;
};

struct op {
    uint32_t number;
    const char *name;
    size_t req_bytes, rep_bytes;
    struct field fields[16];
    size_t n;
};

#define FIELD(kind_, field_)                                                                                 \
    op->fields[op->n++] = (struct field){#field_, FIELD_##kind_, (size_t)((char *)&q.field_ - (char *)&q)};
#define X(NAME, name_, number_)                                                                              \
    static void describe_##name_(struct op *op)                                                              \
    {                                                                                                        \
        struct wire_##name_##_req q = {0};                                                                   \
        (void)q;                                                                                             \
        *op = (struct op){.number = (number_),                                                               \
                          .name = #name_,                                                                    \
                          .req_bytes = sizeof(q),                                                            \
                          .rep_bytes = sizeof(struct wire_##name_##_rep)};                                   \
        WIRE_REQ_##name_(FIELD)                                                                              \
    }
WIRE_OPS(X)
#undef X

typedef void (*describe_fn)(struct op *op);
static const describe_fn all_ops[] = {
#define X(NAME, name, number) describe_##name,
    WIRE_OPS(X)
#undef X
};

/* What is there to be named: made anew for each operation, because operations end it. */
struct things {
    struct fixture *f;
    struct arena *a; /* of one request, as large as the front end's */
    const char *origin_url;
    uint64_t ino, dir;
    uint64_t handles[HANDLES_MAX];
    size_t n_handles;
    char *longest;
    uint64_t random;
};

static uint64_t below(struct things *t, uint64_t n)
{
    t->random = hash_mix(t->random, 7);
    return t->random % n;
}

/* ---- what is there ---- */

static void make_bucket(struct things *t, const char *name, const char *settings)
{
    struct wire_bucket_create_req req = {.name = slice_str(name), .settings = slice_str(settings)};
    struct wire_bucket_create_rep rep;
    struct err e = {0};
    int r = object_bucket_create(t->f->session, &req, t->f->arena, &rep, &e);
    if (r < 0 && r != ERR_BUCKET_EXISTS)
        fail_msg("%s", e.text);
}

static void keep_handle(struct things *t, int r, uint64_t handle)
{
    if (r == 0 && handle != 0)
        t->handles[t->n_handles++] = handle;
}

static void open_put(struct things *t, const char *bucket, uint64_t size, uint32_t flags)
{
    struct wire_put_open_req req = {.bucket = slice_str(bucket),
                                    .key = SLICE_LIT("written"),
                                    .size = size,
                                    .via = WIRE_VIA_API,
                                    .flags = flags};
    struct wire_put_open_rep rep = {0};
    keep_handle(t, object_put_open(t->f->session, &req, t->f->arena, &rep, NULL), rep.handle);
}

static void put_and_open(struct things *t, const char *bucket)
{
    struct wire_put_open_req po = {
        .bucket = slice_str(bucket), .key = SLICE_LIT("key"), .size = 4, .via = WIRE_VIA_API};
    struct wire_put_open_rep por = {0};
    struct wire_put_write_rep written;
    struct wire_put_commit_rep committed;
    if (object_put_open(t->f->session, &po, t->f->arena, &por, NULL) == 0) {
        struct wire_put_write_req pw = {.handle = por.handle, .data = SLICE_LIT("text")};
        struct wire_put_commit_req pc = {.handle = por.handle, .size = 4};
        (void)object_put_write(t->f->session, &pw, t->f->arena, &written, NULL);
        (void)object_put_commit(t->f->session, &pc, t->f->arena, &committed, NULL);
    }
    struct wire_open_req open = {.bucket = slice_str(bucket), .key = SLICE_LIT("key"), .via = WIRE_VIA_API};
    struct wire_open_rep opened = {0};
    keep_handle(t, object_open(t->f->session, &open, t->f->arena, &opened, NULL), opened.handle);
}

static void make_tree(struct things *t, const char *bucket)
{
    struct wire_tree_create_req file = {.bucket = slice_str(bucket),
                                        .parent = 1,
                                        .name = SLICE_LIT("name"),
                                        .mode = S_IFREG | 0644,
                                        .flags = WIRE_WRITE};
    struct wire_tree_create_req dir = {
        .bucket = slice_str(bucket), .parent = 1, .name = SLICE_LIT("dir"), .mode = S_IFDIR | 0755};
    struct wire_tree_create_rep rep = {0};
    int r = object_tree_create(t->f->session, &file, t->f->arena, &rep, NULL);
    keep_handle(t, r, rep.handle);
    t->ino = r == 0 ? rep.inode.ino : t->ino;
    if (object_tree_create(t->f->session, &dir, t->f->arena, &rep, NULL) == 0)
        t->dir = rep.inode.ino;
}

static void make_things(struct things *t)
{
    char *mirror = arena_printf(t->f->arena, "origin=%s\nretry=0s\n", t->origin_url);
    char *back = arena_printf(t->f->arena, "origin=%s\nretry=0s\nwrite=back\n", t->origin_url);
    make_bucket(t, "data", mirror);
    make_bucket(t, "back", back);
    make_bucket(t, "scratch", "");
    make_bucket(t, "limited", "quota=4MiB\n");
    make_bucket(t, "values", "values=memory\n");
    t->n_handles = 0;
    static const char *const buckets[] = {"data", "scratch", "values"};
    for (size_t i = 0; i < ARRAY_SIZE(buckets); i++) {
        put_and_open(t, buckets[i]);
        open_put(t, buckets[i], UINT64_MAX, 0);
    }
    open_put(t, "data", 10, WIRE_STAGED);
    open_put(t, "limited", UINT64_MAX, WIRE_STAGED);
    make_tree(t, "limited");
    make_tree(t, "scratch");
}

static void forget_things(struct things *t)
{
    object_session_free(t->f->session); /* with its handles */
    t->f->session = object_session_new(t->f->service, WIRE_VIA_API);
    arena_clear(t->f->arena);
}

/* ---- what stands in the fields ---- */

static const uint64_t numbers[] = {0,
                                   1,
                                   2,
                                   4095,
                                   0x7fffffff,
                                   0x80000000,
                                   0xffffffff,
                                   (uint64_t)1 << 40,
                                   INT64_MAX - 4095,
                                   INT64_MAX,
                                   (uint64_t)INT64_MAX + 1,
                                   UINT64_MAX - 4096,
                                   UINT64_MAX - 1,
                                   UINT64_MAX};

static const struct slice texts[] = {
    {"", 0},
    {"\0", 1},
    {"/", 1},
    {"*", 1},
    {"..", 2},
    {"a/../b", 6},
    {"a//b/", 6},
    {"x\ny=z\n", 6},
    {"=\n=", 3},
    {"\xff\xfe", 2},
    {"%s%n%1000000d", 13},
    {"[{\"Records\":[", 13},
    {"0123456789abcdef", 16},
    {"-1", 2},
    {"99999999999999999999", 20},
};
static const size_t lengths[] = {255, 256, 1023, 1024, 1025, 4097, 70000, LONGEST_BYTES};

static size_t n_values(const struct things *t, const struct field *f)
{
    return f->kind == FIELD_str ? ARRAY_SIZE(texts) + ARRAY_SIZE(lengths)
                                : ARRAY_SIZE(numbers) + (strcmp(f->name, "handle") == 0 ? t->n_handles : 0);
}

static struct slice text_of(const struct things *t, size_t i)
{
    return i < ARRAY_SIZE(texts) ? texts[i] : slice_of(t->longest, lengths[i - ARRAY_SIZE(texts)]);
}

static uint64_t number_of(const struct things *t, size_t i)
{
    return i < ARRAY_SIZE(numbers) ? numbers[i] : t->handles[i - ARRAY_SIZE(numbers)];
}

static void set_value(struct things *t, const struct field *f, void *req, size_t i)
{
    char *to = (char *)req + f->at;
    if (f->kind == FIELD_str) {
        struct slice s = text_of(t, i);
        memcpy(to, &s, sizeof(s));
        return;
    }
    uint64_t v = number_of(t, i);
    uint32_t v32 = (uint32_t)v;
    memcpy(to, f->kind == FIELD_u32 ? (void *)&v32 : (void *)&v,
           f->kind == FIELD_u32 ? sizeof(v32) : sizeof(v));
}

/* X(field, text): a request that makes sense. */
#define SENSIBLE(X)                                                                                          \
    X("key", "key")                                                                                          \
    X("from", "key")                                                                                         \
    X("to", "other")                                                                                         \
    X("name", "name")                                                                                        \
    X("to_name", "other")                                                                                    \
    X("target", "data/")                                                                                     \
    X("source", "data/")                                                                                     \
    X("kind", "evict")                                                                                       \
    X("action", "pause")                                                                                     \
    X("settings", "readahead=1MiB\n")                                                                        \
    X("data", "text")                                                                                        \
    X("json", "{\"Records\":[]}")

static bool names_bucket(const struct op *op, const struct field *f)
{
    return strcmp(f->name, "bucket") == 0 ||
           (strncmp(op->name, "bucket_", 7) == 0 && strcmp(f->name, "name") == 0);
}

static size_t n_buckets_of(const struct op *op)
{
    for (size_t i = 0; i < op->n; i++)
        if (names_bucket(op, &op->fields[i]))
            return N_BUCKETS;
    return 1;
}

static void set_sensible(struct things *t, const struct op *op, size_t i, void *req, const char *bucket)
{
    const struct field *f = &op->fields[i];
    char *to = (char *)req + f->at;
    if (f->kind == FIELD_str) {
        struct slice s = SLICE_NULL;
#define X(field, text)                                                                                       \
    if (strcmp(f->name, field) == 0)                                                                         \
        s = SLICE_LIT(text);
        SENSIBLE(X)
#undef X
        if (names_bucket(op, f))
            s = slice_str(bucket);
        if (strcmp(f->name, "url") == 0)
            s = slice_str(t->origin_url);
        memcpy(to, &s, sizeof(s));
        return;
    }
    uint64_t v = strcmp(f->name, "ino") == 0                                           ? t->ino
                 : strcmp(f->name, "parent") == 0 || strcmp(f->name, "to_parent") == 0 ? t->dir
                 : strcmp(f->name, "handle") == 0                                      ? t->handles[0]
                                                                                       : 0;
    uint32_t v32 = (uint32_t)v;
    memcpy(to, f->kind == FIELD_u32 ? (void *)&v32 : (void *)&v,
           f->kind == FIELD_u32 ? sizeof(v32) : sizeof(v));
}

/* ---- asking ---- */

/* As the front end does: what is answered has to fit into a frame, or is an error too. */
static void ask(struct things *t, const struct op *op, const void *req)
{
    _cleanup_free_ void *rep = calloc(1, op->rep_bytes);
    _cleanup_buf_ struct buf out = BUF_INIT(WIRE_BODY_MAX_BYTES);
    struct err e = {0};
    arena_clear(t->a);
    if (object_call_shaped(t->f->session, op->number, req, t->a, rep, &e) == 0)
        (void)wire_op_info(op->number)->encode_rep(rep, &out);
}

/* What asks for nothing that is wrong, but for hours of work: files of 1 TiB, all of whose holes are read to
 * be sealed. */
static bool is_work(const struct op *op, const struct field *f, size_t i)
{
    return op->number == WIRE_OP_TREE_SETATTR && strcmp(f->name, "size") == 0 && i < ARRAY_SIZE(numbers) &&
           numbers[i] > UINT32_MAX && numbers[i] < INT64_MAX;
}

static const char *bucket_at(uint64_t i)
{
    static const char *const buckets[N_BUCKETS] = {"scratch", "data", "values", "limited", "back"};
    return buckets[i % N_BUCKETS];
}

/* One field after the other makes no sense, then several at once. */
static void try_op(struct things *t, const struct op *op)
{
    _cleanup_free_ char *req = calloc(1, op->req_bytes);
    for (size_t b = 0; b < n_buckets_of(op); b++) {
        for (size_t i = 0; i < op->n; i++)
            for (size_t v = 0; v < n_values(t, &op->fields[i]); v++) {
                for (size_t k = 0; k < op->n; k++)
                    set_sensible(t, op, k, req, bucket_at(b));
                set_value(t, &op->fields[i], req, v);
                if (!is_work(op, &op->fields[i], v))
                    ask(t, op, req);
            }
        forget_things(t);
        make_things(t);
    }
    for (int round = 0; round < ROUNDS; round++) {
        const char *bucket = bucket_at(below(t, N_BUCKETS));
        for (size_t k = 0; k < op->n; k++) {
            set_sensible(t, op, k, req, bucket);
            size_t v = below(t, n_values(t, &op->fields[k]));
            if (below(t, 2) == 0 && !is_work(op, &op->fields[k], v))
                set_value(t, &op->fields[k], req, v);
        }
        ask(t, op, req);
    }
}

/* No request that decodes ends the node, and one that makes sense is answered afterwards. */
static void broken_requests_are_answered(void **state)
{
    struct things t = {
        .f = *state, .a = arena_new(ANSWER_BYTES), .longest = malloc(LONGEST_BYTES), .random = 1};
    char url[256];
    assert_non_null(t.longest);
    memset(t.longest, 'x', LONGEST_BYTES);
    (void)snprintf(url, sizeof(url), "file://%s", t.f->origin);
    t.origin_url = url;
    for (size_t i = 0; i < ARRAY_SIZE(all_ops); i++) {
        struct op op;
        all_ops[i](&op);
        make_things(&t);
        try_op(&t, &op);
        forget_things(&t);
    }
    make_things(&t);
    struct wire_stat_req req = {.bucket = SLICE_LIT("scratch"), .key = SLICE_LIT("key")};
    struct wire_stat_rep rep;
    assert_int_equal(object_stat(t.f->session, &req, t.f->arena, &rep, NULL), 0);
    assert_int_equal(rep.attr.size_bytes, 4);
    free(t.longest);
    arena_free(t.a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(broken_requests_are_answered, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
