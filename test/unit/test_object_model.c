/* layer: object */
/* threaded */
#include "base/sys.h"
#include "object/object.h"
#include "support/seeds.h"
#include "support/tmpdir.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmocka.h>

/*
 * Threads write, remove, change behind the node's back and read; a model knows what was acknowledged.
 *
 * Each change of a key has a number, given when it starts; its bytes carry it. `floor` is the oldest number
 * that may still be there (the last acknowledged one), `started` the newest. A reader notes the floor before
 * it opens and `started` after it has opened: what it reads must be whole and have a number between the two.
 * Run with FOREBAY_SOAK=SECONDS for longer, FOREBAY_TEST_SEED=N for another order.
 *
 * Seen to fail without the look at the generation in object_making_begin (src/object/object.c).
 */
#define KEYS        6
#define READERS     3
#define WRITERS     3
#define CHANGES_MAX 200000
#define RUN_SECONDS 8

struct model_key {
    const char *bucket;
    char name[32], *path;
    pthread_mutex_t one_writer;
    _Atomic uint32_t floor, started;
    uint8_t *absent; /* by number; atomic */
};

struct world {
    char *dir;
    struct kv *kv;
    struct store *store;
    struct budget *budget;
    struct object_service *service;
    struct model_key keys[2][KEYS]; /* [0]: changed from outside, too; [1]: only here, validate=never */
    uint64_t seed, deadline_ns;
    _Atomic uint64_t reads, changes, missing, unsettled;
    _Atomic bool failed;
};

struct hand {
    struct world *w;
    uint64_t random;
    struct object_session *session;
    struct arena *arena;
};

static uint64_t next_random(struct hand *h)
{
    h->random ^= h->random << 13;
    h->random ^= h->random >> 7;
    h->random ^= h->random << 17;
    return h->random;
}

static uint64_t size_of(uint32_t number)
{
    return number % 16 == 5 ? 4 * MIB + 500000 + number : 4 + (number * 7919ull) % 300000;
}

static char byte_of(uint32_t number, uint64_t i)
{
    return i < 4 ? (char)(number >> (8 * i)) : (char)(number * 37 + i * 11 + (i >> 11));
}

static char *bytes_of(uint32_t number)
{
    uint64_t n = size_of(number);
    char *p = malloc(n);
    assert(p);
    for (uint64_t i = 0; i < n; i++)
        p[i] = byte_of(number, i);
    return p;
}

static void complain(struct world *w, const struct model_key *k, const char *what, long long a, long long b,
                     long long c)
{
    atomic_store(&w->failed, true);
    (void)fprintf(stderr, "seed %llu: %s/%s: %s (%lld, %lld, %lld)\n", (unsigned long long)w->seed, k->bucket,
                  k->name, what, a, b, c);
}

/* ---- bytes ---- */

/* Whether the whole object reads as one version; its number, or an error. */
static int64_t read_number(struct hand *h, const struct wire_open_rep *o)
{
    char *piece = malloc(MIB);
    uint64_t size = o->attr.size_bytes;
    int64_t number = -1;
    int r = 0;
    for (uint64_t at = 0; at < size && r == 0;) {
        struct wire_fetch_req req = {.handle = o->handle, .offset = at, .n = MIN(size - at, MIB)};
        struct wire_fetch_rep rep;
        arena_clear(h->arena);
        r = object_fetch(h->session, &req, h->arena, &rep, NULL);
        if (r < 0)
            break;
        uint64_t n = rep.data.n ? rep.data.n : MIN(rep.available, MIB);
        if (rep.data.n)
            memcpy(piece, rep.data.p, n);
        else
            r = n > 0 ? sys_pread_all(o->fd, piece, n, at) : -ENODATA;
        if (r == 0 && at == 0) {
            assert(n >= 4);
            number = 0;
            for (int i = 3; i >= 0; i--)
                number = number << 8 | (unsigned char)piece[i];
            if (size_of((uint32_t)number) != size)
                r = ERR_CORRUPT;
        }
        for (uint64_t i = 0; i < n && r == 0; i++)
            if (piece[i] != byte_of((uint32_t)number, at + i))
                r = ERR_CORRUPT;
        at += n;
    }
    free(piece);
    return r < 0 ? r : number;
}

/* What an open finds; nothing else changes the key. */
static int64_t read_here(struct hand *h, struct model_key *k)
{
    struct wire_open_req req = {
        .bucket = slice_str(k->bucket), .key = slice_str(k->name), .expect = UINT64_MAX, .via = WIRE_VIA_API};
    struct wire_open_rep o;
    arena_clear(h->arena);
    int r = object_open(h->session, &req, h->arena, &o, NULL);
    if (r < 0)
        return r;
    int64_t number = read_number(h, &o);
    struct wire_close_req c = {.handle = o.handle};
    struct wire_close_rep rep;
    (void)object_close(h->session, &c, h->arena, &rep, NULL);
    return number;
}

static uint32_t number_outside(const struct model_key *k)
{
    unsigned char head[4] = {0};
    int _cleanup_close_ fd = open(k->path, O_RDONLY);
    if (fd < 0 || sys_pread_all(fd, head, sizeof(head), 0) < 0)
        return UINT32_MAX;
    return (uint32_t)head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16 | (uint32_t)head[3] << 24;
}

/* ---- changes ---- */

static uint32_t begin_change(struct model_key *k, bool absent)
{
    uint32_t number = atomic_load(&k->started) + 1;
    assert(number < CHANGES_MAX);
    __atomic_store_n(&k->absent[number], absent, __ATOMIC_SEQ_CST);
    atomic_store(&k->started, number);
    return number;
}

static int put(struct hand *h, struct model_key *k, uint32_t number)
{
    uint64_t n = size_of(number);
    struct wire_put_open_req open = {.bucket = slice_str(k->bucket),
                                     .key = slice_str(k->name),
                                     .size = number % 2 ? n : UINT64_MAX,
                                     .via = WIRE_VIA_API};
    struct wire_put_open_rep o;
    int r = object_put_open(h->session, &open, h->arena, &o, NULL);
    if (r < 0)
        return r;
    char *p = bytes_of(number);
    for (uint64_t at = 0; r == 0 && at < n; at += 300 * KIB) {
        struct wire_put_write_req w = {
            .handle = o.handle, .offset = at, .data = slice_of(p + at, MIN(n - at, 300 * KIB))};
        struct wire_put_write_rep rep;
        r = object_put_write(h->session, &w, h->arena, &rep, NULL);
    }
    free(p);
    struct wire_put_commit_req c = {.handle = o.handle, .size = n};
    struct wire_put_commit_rep rep;
    return r < 0 ? r : object_put_commit(h->session, &c, h->arena, &rep, NULL);
}

static int remove_key(struct hand *h, struct model_key *k)
{
    struct wire_remove_req req = {.bucket = slice_str(k->bucket), .key = slice_str(k->name)};
    struct wire_remove_rep rep;
    return object_remove(h->session, &req, h->arena, &rep, NULL);
}

static int write_outside(struct hand *h, struct model_key *k, uint32_t number)
{
    char tmp[300];
    (void)snprintf(tmp, sizeof(tmp), "%s/outside-%s", h->w->dir, k->name);
    char *p = bytes_of(number);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    int r = fd < 0 ? -errno : sys_pwrite_all(fd, p, size_of(number), 0);
    if (fd >= 0)
        (void)close(fd);
    free(p);
    return r < 0 ? r : rename(tmp, k->path);
}

struct twin {
    struct hand hand;
    struct model_key *key;
    uint32_t number;
    int result;
};

static void *twin_main(void *arg)
{
    struct twin *t = arg;
    t->result = put(&t->hand, t->key, t->number);
    return NULL;
}

/* Two puts at the same time: either may be what stays. */
static int put_twins(struct hand *h, struct model_key *k)
{
    struct twin t = {.hand = *h, .key = k, .number = begin_change(k, false)};
    t.hand.arena = arena_new(MIB);
    uint32_t mine = begin_change(k, false);
    pthread_t thread;
    int r = pthread_create(&thread, NULL, twin_main, &t);
    assert(r == 0);
    r = put(h, k, mine);
    (void)pthread_join(thread, NULL);
    arena_free(t.hand.arena);
    atomic_store(&k->floor, t.number);
    uint32_t there = number_outside(k);
    if (r == 0 && t.result == 0 && read_here(h, k) != (int64_t)there)
        complain(h->w, k, "after two puts the cache and the origin differ", there, t.number, mine);
    return r < 0 ? r : t.result;
}

static void change(struct hand *h, struct model_key *k, bool outside_too)
{
    (void)pthread_mutex_lock(&k->one_writer);
    uint64_t choice = next_random(h) % 100;
    int r;
    if (choice < 15) {
        r = put_twins(h, k);
    } else {
        bool removes = choice < 30;
        uint32_t number = begin_change(k, removes);
        r = removes                      ? remove_key(h, k)
            : outside_too && choice < 50 ? write_outside(h, k, number)
                                         : put(h, k, number);
        atomic_store(&k->floor, number);
    }
    if (r < 0)
        complain(h->w, k, "a change failed", r, (long long)choice, 0);
    atomic_fetch_add(&h->w->changes, 1);
    (void)pthread_mutex_unlock(&k->one_writer);
}

/* ---- reads ---- */

static bool absent_between(struct model_key *k, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i <= to; i++)
        if (__atomic_load_n(&k->absent[i], __ATOMIC_SEQ_CST))
            return true;
    return false;
}

static void read_key(struct hand *h, struct model_key *k)
{
    struct world *w = h->w;
    uint32_t floor = atomic_load(&k->floor);
    struct wire_open_req req = {.bucket = slice_str(k->bucket),
                                .key = slice_str(k->name),
                                .expect = next_random(h) % 2 ? UINT64_MAX : 0,
                                .via = next_random(h) % 2 ? WIRE_VIA_API : WIRE_VIA_MOUNT};
    struct wire_open_rep o;
    struct err e = {0};
    arena_clear(h->arena);
    int r = object_open(h->session, &req, h->arena, &o, &e);
    uint32_t started = atomic_load(&k->started);
    atomic_fetch_add(&w->reads, 1);
    if (r == -ENOENT) {
        atomic_fetch_add(&w->missing, 1);
        if (!absent_between(k, floor, started))
            complain(w, k, "not found, but was never removed", floor, started, 0);
        return;
    }
    int64_t number = r < 0 ? r : read_number(h, &o);
    if (number == ERR_VERSION_CHANGED || number == ERR_PRECONDITION)
        atomic_fetch_add(&w->unsettled, 1); /* an honest answer while the key is being changed */
    else if (number < 0)
        complain(w, k, r < 0 ? e.text : "read failed or mixed versions", number, floor, started);
    else if (number < floor || number > started)
        complain(w, k, "an old version", number, floor, started);
    if (r == 0) {
        struct wire_close_req c = {.handle = o.handle};
        struct wire_close_rep rep;
        (void)object_close(h->session, &c, h->arena, &rep, NULL);
    }
}

/* ---- the run ---- */

static struct hand hand_new(struct world *w, uint64_t n)
{
    return (struct hand){.w = w,
                         .random = (w->seed * 1000003 + n) | 1,
                         .session = object_session_new(w->service, WIRE_VIA_API),
                         .arena = arena_new(32 * MIB)};
}

struct worker {
    struct hand hand;
    bool writes;
    pthread_t thread;
};

static void *worker_main(void *arg)
{
    struct worker *x = arg;
    struct hand *h = &x->hand;
    while (sys->mono_ns() < h->w->deadline_ns && !atomic_load(&h->w->failed)) {
        size_t kind = next_random(h) % 2;
        struct model_key *k = &h->w->keys[kind][next_random(h) % KEYS];
        arena_clear(h->arena);
        if (x->writes)
            change(h, k, /* outside_too= */ kind == 0);
        else
            read_key(h, k);
    }
    return NULL;
}

static void make_bucket(struct world *w, struct object_session *ses, struct arena *a, const char *name,
                        const char *settings)
{
    char *dir = arena_printf(a, "%s/%s", w->dir, name);
    assert_int_equal(mkdir(dir, 0755), 0);
    struct wire_bucket_create_req req = {
        .name = slice_str(name),
        .settings = slice_str(arena_printf(a, "origin=file://%s\n%s", dir, settings))};
    struct wire_bucket_create_rep rep;
    struct err e = {0};
    if (object_bucket_create(ses, &req, a, &rep, &e) < 0)
        fail_msg("%s", e.text);
}

static void make_world(struct world *w, enum object_route route)
{
    const char *soak = getenv("FOREBAY_SOAK");
    uint64_t seconds = soak ? strtoull(soak, NULL, 10) : RUN_SECONDS / 2;
    w->seed = seeds_first();
    w->deadline_ns = sys->mono_ns() + MAX(seconds, 1ull) * 1000000000;
    w->dir = tmpdir_new();
    _cleanup_free_ char *disk = tmpdir_path(w->dir, "disk");
    assert_int_equal(kv_open_memory(&w->kv), 0);
    w->budget = budget_new(256 * MIB);
    struct store_disk_config dc = {.path = disk, .size_bytes = 64 * MIB};
    struct store_config sc = {.disks = &dc, .n_disks = 1, .memory_bytes = 32 * MIB, .flush_interval_ms = 500};
    assert_int_equal(store_open(&sc, &w->store, NULL), 0);
    struct object_config oc = {.control = w->kv, .store = w->store, .budget = w->budget, .route = route};
    assert_int_equal(object_service_open(&oc, &w->service, NULL), 0);
    struct hand h = hand_new(w, 0);
    make_bucket(w, h.session, h.arena, "shared", "validate=always\n");
    make_bucket(w, h.session, h.arena, "alone", "validate=never\n");
    object_session_free(h.session);
    arena_free(h.arena);
    for (size_t i = 0; i < 2 * KEYS; i++) {
        struct model_key *k = &w->keys[i / KEYS][i % KEYS];
        k->bucket = i < KEYS ? "shared" : "alone";
        (void)snprintf(k->name, sizeof(k->name), "key%zu", i % KEYS);
        _cleanup_free_ char *bucket = tmpdir_path(w->dir, k->bucket);
        k->path = tmpdir_path(bucket, k->name);
        (void)pthread_mutex_init(&k->one_writer, NULL);
        k->absent = calloc(CHANGES_MAX, sizeof(*k->absent));
        assert_non_null(k->absent);
        k->absent[0] = 1;
    }
}

static void drop_world(struct world *w)
{
    object_service_close(w->service);
    assert_int_equal(budget_used(w->budget), 0);
    store_close(w->store);
    kv_close(w->kv);
    budget_free(w->budget);
    for (size_t i = 0; i < 2 * KEYS; i++) {
        (void)pthread_mutex_destroy(&w->keys[i / KEYS][i % KEYS].one_writer);
        free(w->keys[i / KEYS][i % KEYS].absent);
        free(w->keys[i / KEYS][i % KEYS].path);
    }
    tmpdir_free(w->dir);
}

static void run(enum object_route route)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    make_world(w, route);
    struct worker workers[READERS + WRITERS] = {0};
    for (size_t i = 0; i < ARRAY_SIZE(workers); i++) {
        workers[i].hand = hand_new(w, i + 1);
        workers[i].writes = i < WRITERS;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
    }
    for (size_t i = 0; i < ARRAY_SIZE(workers); i++)
        (void)pthread_join(workers[i].thread, NULL);
    for (size_t i = 0; i < 2 * KEYS; i++) /* all is quiet: what is left is the last of each */
        read_key(&workers[0].hand, &w->keys[i / KEYS][i % KEYS]);
    for (size_t i = 0; i < ARRAY_SIZE(workers); i++) {
        object_session_free(workers[i].hand.session);
        arena_free(workers[i].hand.arena);
    }
    print_message("seed %llu: %llu reads (%llu found nothing, %llu were told of a change), %llu changes\n",
                  (unsigned long long)w->seed, (unsigned long long)w->reads, (unsigned long long)w->missing,
                  (unsigned long long)w->unsettled, (unsigned long long)w->changes);
    bool failed = atomic_load(&w->failed);
    drop_world(w);
    free(w);
    assert_false(failed);
}

/* No read ever gives a version older than the last acknowledged one, nor bytes of two. */
static void test_reads_agree_with_the_model(void **state)
{
    (void)state;
    run(OBJECT_ROUTE_LOCAL);
}

/* The same with every operation going over a socket. */
static void test_reads_agree_with_the_model_over_a_socket(void **state)
{
    (void)state;
    run(OBJECT_ROUTE_LOOP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_agree_with_the_model),
        cmocka_unit_test(test_reads_agree_with_the_model_over_a_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
