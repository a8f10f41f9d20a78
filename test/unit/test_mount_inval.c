/* layer: mount */
/* threaded */
/* What the node tells of names, from its pipe to the kernel: a mount between a node and a kernel that are
 * made for the test. The kernel is the other end of a socket: it asks, and hears what it is told. */
#include "mount/mount_internal.h"

#include "client_fake.h"

#define HEADER_BYTES    40
#define OUT_BYTES       16
#define ENTRY_OUT_BYTES 128
#define DIRENT_BYTES    24
#define OP_LOOKUP       1
#define OP_INIT         26
#define OP_OPENDIR      27
#define OP_READDIRPLUS  44
#define TOLD_INODE      2
#define TOLD_NAME       3
#define TOLD_EPOCH      8
#define LAST_ID         424242 /* an inode that is told of behind all that was to be told */
#define TIMEOUT_S       600
#define DEADLINE_MS     60000
#define FLOOD           20000 /* names, more than wait in any queue */

/* What the kernel is told: " inode:ID", " name:PARENT/NAME", " epoch"; of names that begin with 'f' how many.
 */
struct told {
    char text[2048];
    size_t n_flood;
};

struct rig {
    struct fake *node;
    struct mount m;
    struct mount_options options;
    int fd; /* the kernel's */
    uint64_t unique;
    uint8_t got[64 * KIB]; /* the last message */
    size_t n;
    /* What happens before the node answers, once. */
    _Atomic uint32_t at_op; /* 0: nothing */
    void (*happens)(struct rig *r);
};

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static uint64_t get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

/* ---- the kernel ---- */

static void hear(struct rig *r)
{
    struct pollfd p = {.fd = r->fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, DEADLINE_MS), 1);
    ssize_t n = recv(r->fd, r->got, sizeof(r->got), 0);
    assert_true(n >= OUT_BYTES);
    r->n = (size_t)n;
}

static void note(const struct rig *r, struct told *t)
{
    size_t at = strlen(t->text), room = sizeof(t->text) - at;
    const uint8_t *body = r->got + OUT_BYTES;
    const char *name = (const char *)body + 16;
    uint32_t code = get32(r->got + 4);
    if (code == TOLD_NAME && name[0] == 'f')
        t->n_flood++;
    else if (code == TOLD_NAME)
        (void)snprintf(t->text + at, room, " name:%d/%s", (int)get64(body), name);
    else if (code == TOLD_INODE && get64(body) != LAST_ID)
        (void)snprintf(t->text + at, room, " inode:%d", (int)get64(body));
    else if (code == TOLD_EPOCH)
        (void)snprintf(t->text + at, room, " epoch");
}

/* Until the kernel has heard that, which it is told of now or soon. */
static struct told hear_until(struct rig *r, const char *end)
{
    struct told t = {0};
    while (!strstr(t.text, end)) {
        hear(r);
        assert_int_equal(get64(r->got + 8), 0); /* not an answer */
        note(r, &t);
    }
    return t;
}

/* All that it is told of what is queued by now. That everything has changed is told behind the names that are
 * in the queue with it: so twice. */
static struct told hear_all(struct rig *r)
{
    struct told t = {0};
    for (int i = 0; i < 2; i++) {
        notifier_drop_attributes(r->m.notifier, LAST_ID);
        do {
            hear(r);
            assert_int_equal(get64(r->got + 8), 0);
            note(r, &t);
        } while (get32(r->got + 4) != TOLD_INODE || get64(r->got + OUT_BYTES) != LAST_ID);
    }
    return t;
}

/* Asks, and hears the answer: the error, negative. */
static int ask_mount(struct rig *r, uint32_t op, uint64_t id, const void *body, size_t n)
{
    uint64_t request[64] = {0};
    uint32_t len = (uint32_t)(HEADER_BYTES + n);
    assert_true(len <= sizeof(request));
    r->unique += 2;
    memcpy(request, &len, sizeof(len));
    memcpy((char *)request + 4, &op, sizeof(op));
    request[1] = r->unique;
    request[2] = id;
    memcpy((char *)request + HEADER_BYTES, body, n);
    const struct fuse_buf b = {.size = len, .mem = request};
    fuse_session_process_buf(r->m.se, &b);
    do /* what it is told before */
        hear(r);
    while (get64(r->got + 8) == 0);
    assert_int_equal(get64(r->got + 8), r->unique);
    return (int32_t)get32(r->got + 4);
}

/* The inode, or 0: it is not there. The kernel is to believe that. */
static uint64_t look(struct rig *r, const char *name)
{
    assert_int_equal(ask_mount(r, OP_LOOKUP, FUSE_ROOT_ID, name, strlen(name) + 1), 0);
    assert_true(get64(r->got + OUT_BYTES + 16) >= TIMEOUT_S);
    return get64(r->got + OUT_BYTES);
}

static uint64_t open_root(struct rig *r)
{
    const uint32_t body[2] = {0};
    assert_int_equal(ask_mount(r, OP_OPENDIR, FUSE_ROOT_ID, body, sizeof(body)), 0);
    return get64(r->got + OUT_BYTES);
}

/* What a listing says of a name. */
struct listed {
    bool is_there;
    uint64_t id; /* 0: no attributes go with it, and no belief */
    uint64_t timeout_s;
};

static void read_root(struct rig *r, uint64_t fh, uint64_t offset, uint32_t size)
{
    uint64_t body[5] = {fh, offset, size};
    assert_int_equal(ask_mount(r, OP_READDIRPLUS, FUSE_ROOT_ID, body, sizeof(body)), 0);
}

static struct listed find_listed(const struct rig *r, const char *name)
{
    for (const uint8_t *p = r->got + OUT_BYTES; p + ENTRY_OUT_BYTES + DIRENT_BYTES <= r->got + r->n;) {
        const uint8_t *entry = p + ENTRY_OUT_BYTES;
        uint32_t name_n = get32(entry + 16);
        if (slice_eq_str(slice_of((const char *)entry + DIRENT_BYTES, name_n), name))
            return (struct listed){.is_there = true, .id = get64(p), .timeout_s = get64(p + 16)};
        p += ENTRY_OUT_BYTES + (DIRENT_BYTES + name_n + 7) / 8 * 8;
    }
    return (struct listed){0};
}

/* ---- the mount ---- */

static void before_answer(void *arg, uint32_t op)
{
    struct rig *r = arg;
    if (atomic_compare_exchange_strong(&r->at_op, &op, 0))
        r->happens(r);
}

static const struct fuse_lowlevel_ops operations = {
    .lookup = mount_op_lookup,
    .forget = mount_op_forget,
    .opendir = mount_op_opendir,
    .readdirplus = mount_op_readdirplus,
    .releasedir = mount_op_releasedir,
};

static void begin_session(struct rig *r)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    int fds[2];
    char where[32];
    assert_int_equal(fuse_opt_add_arg(&args, "test"), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    r->fd = fds[0];
    (void)snprintf(where, sizeof(where), "/dev/fd/%d", fds[1]);
    r->m.se = fuse_session_new(&args, &operations, sizeof(operations), &r->m);
    assert_non_null(r->m.se);
    assert_int_equal(fuse_session_mount(r->m.se, where), 0);
    fuse_opt_free_args(&args);
    const uint32_t init[16] = {7, 38, 65536}; /* version, read-ahead */
    assert_int_equal(ask_mount(r, OP_INIT, 0, init, sizeof(init)), 0);
}

static int begin(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));
    struct err e = {0};
    assert_int_equal(setup((void **)&r->node), 0);
    atomic_store(&r->node->gives_fds, true);
    r->node->before = before_answer;
    r->node->before_arg = r;
    r->options = (struct mount_options){.bucket = "b", .directory = "/nowhere/at/all"};
    r->m = (struct mount){.magic = MOUNT_MAGIC,
                          .kind = &mount_mirror,
                          .options = &r->options,
                          .seat = {.fuse_fd = -1, .post_fd = -1},
                          .client = connect_to(r->node, 4),
                          .bucket = slice_dup(SLICE_LIT("b")),
                          .prefix = slice_dup(SLICE_LIT("")),
                          .timeout_s = TIMEOUT_S,
                          .can_expire = true};
    assert_int_equal(kept_new(&r->m.seat.kept, &e), 0);
    kept_begin(r->m.seat.kept);
    r->m.nodes = node_table_new(r->m.seat.kept, /* keeps_all= */ false);
    staging_list_init(&r->m.stagings);
    versions_init(&r->m.versions);
    r->m.warm = warm_start(&r->m, /* max= */ 0, /* fds_max= */ 0);
    r->m.inval = inval_new(&r->m);
    r->m.absent = absent_new();
    begin_session(r);
    notifier_start(&r->m, client_epoch(r->m.client));
    inval_start(r->m.inval);
    (void)hear_all(r);
    *state = r;
    return 0;
}

static int end(void **state)
{
    struct rig *r = *state;
    struct mount *m = &r->m;
    dir_close_all(m);
    inval_end(m->inval);
    warm_end(m->warm);
    notifier_silence(m->notifier);
    notifier_stop(m->notifier);
    warm_free(m->warm);
    inval_free(m->inval);
    absent_free(m->absent);
    staging_list_fini(&m->stagings);
    versions_fini(&m->versions);
    node_table_free(m->nodes);
    fuse_session_destroy(m->se);
    (void)close(r->fd);
    client_free(m->client);
    kept_free(m->seat.kept);
    free(m->bucket);
    free(m->prefix);
    int result = teardown((void **)&r->node);
    free(r);
    return result;
}

/* ---- answers that are on their way ---- */

/* That happens when the node is asked next, and before it answers. */
static void meanwhile(struct rig *r, uint32_t op, void (*happens)(struct rig *r))
{
    r->happens = happens;
    atomic_store(&r->at_op, op);
}

static void k_changes(struct rig *r)
{
    fake_tell_name(r->node, "k", 0);
    (void)hear_until(r, " name:1/k");
}

static void something_else_changes(struct rig *r)
{
    fake_tell_name(r->node, "other", 0);
    (void)hear_until(r, " name:1/other");
}

static void absent_changes(struct rig *r)
{
    fake_tell_name(r->node, "absent", 0);
    (void)hear_until(r, " name:1/absent");
}

static void anything_may_have_changed(struct rig *r)
{
    end_watches(r->node);
    (void)hear_until(r, " inode:1");
}

/* A name that the node told of after it was asked for and before it answered: the kernel, which was told to
 * ask again when it had no answer yet, is told once more behind it. Also when it was not there, and when all
 * that is known is that something changed. (Mutation: inval_check does nothing; or no recent_note_all in
 * forget_all.) */
static void test_an_answer_on_its_way_is_asked_for_again(void **state)
{
    struct rig *r = *state;
    char expected[64];
    meanwhile(r, WIRE_OP_STAT, k_changes);
    (void)snprintf(expected, sizeof(expected), " inode:%d name:1/k", (int)look(r, "k"));
    assert_string_equal(hear_all(r).text, expected);

    meanwhile(r, WIRE_OP_STAT, absent_changes);
    assert_int_equal(look(r, "absent"), 0);
    assert_string_equal(hear_all(r).text, " name:1/absent");

    meanwhile(r, WIRE_OP_STAT, anything_may_have_changed);
    (void)snprintf(expected, sizeof(expected), " inode:%d name:1/l", (int)look(r, "l"));
    assert_non_null(strstr(hear_all(r).text, expected));
}

/* An answer is believed when nothing was told meanwhile, or something else. (Mutation: inval_check that does
 * not ask which name it was.) */
static void test_other_answers_are_believed(void **state)
{
    struct rig *r = *state;
    assert_true(look(r, "k") > 0);
    assert_string_equal(hear_all(r).text, "");
    meanwhile(r, WIRE_OP_STAT, something_else_changes);
    assert_true(look(r, "k") > 0);
    assert_string_equal(hear_all(r).text, "");
}

static void a_changes(struct rig *r)
{
    fake_tell_name(r->node, "a", 0);
    (void)hear_until(r, " name:1/a");
}

/* Of a listing that was begun before the node told of a name in it, the kernel believes nothing about that
 * name. (Mutation: add_listed does not ask whether it is current.) */
static void test_a_listing_of_before_is_not_believed(void **state)
{
    struct rig *r = *state;
    uint64_t fh = open_root(r);
    meanwhile(r, WIRE_OP_LIST, a_changes);
    read_root(r, fh, 0, 4096);
    struct listed a = find_listed(r, "a"), z = find_listed(r, "z");
    assert_true(a.is_there && z.is_there);
    assert_int_equal(a.id, 0);
    assert_true(z.id > 0 && z.timeout_s >= TIMEOUT_S);
    fh = open_root(r); /* and of the next one, it does */
    read_root(r, fh, 0, 4096);
    a = find_listed(r, "a");
    assert_true(a.id > 0 && a.timeout_s >= TIMEOUT_S);
}

static void a_changes_next(struct rig *r)
{
    meanwhile(r, WIRE_OP_LIST, a_changes);
}

/* One reply has entries of two pages: what the node tells of an entry of the first while the second is waited
 * for comes before the reply, and the kernel is told once more behind it. (Mutation: check_given only gives
 * the nodes back.) */
static void test_an_entry_that_changes_while_the_next_page_is_waited_for(void **state)
{
    struct rig *r = *state;
    char expected[64];
    uint64_t fh = open_root(r);
    meanwhile(r, WIRE_OP_LIST, a_changes_next);
    read_root(r, fh, 0, 4096);
    struct listed a = find_listed(r, "a"), z = find_listed(r, "z");
    assert_int_equal(atomic_load(&r->node->seen[WIRE_OP_LIST]), 2);
    assert_true(a.id > 0 && a.timeout_s >= TIMEOUT_S && z.id > 0);
    (void)snprintf(expected, sizeof(expected), " inode:%d name:1/a", (int)a.id);
    assert_string_equal(hear_all(r).text, expected);
}

/* Nor does what it says take the place of what the kernel was told since: a file that has become a directory,
 * in which somebody is by now, stays the same one. (Seen to fail where such entries were given as another
 * inode that is not believed: the kernel takes away what it had, and what is mounted there.) */
static void test_a_listing_of_before_replaces_nothing(void **state)
{
    struct rig *r = *state;
    uint64_t fh = open_root(r);
    read_root(r, fh, 0, 2 * (ENTRY_OUT_BYTES + DIRENT_BYTES + 8)); /* room for "." and ".." */
    assert_true(find_listed(r, "..").is_there && !find_listed(r, "a").is_there);
    assert_int_equal(atomic_load(&r->node->seen[WIRE_OP_LIST]), 1);
    atomic_store(&r->node->directory, "a");
    a_changes(r);
    uint64_t id = look(r, "a");
    read_root(r, fh, 2, 4096);
    assert_true(find_listed(r, "a").is_there);
    assert_int_equal(find_listed(r, "a").id, 0);
    assert_int_equal(look(r, "a"), id);
}

/* ---- which names ---- */

/* What is told of a name below a directory that the kernel knows is told of that name only; of a removal, of
 * the directory, too. (Mutations: pass_on that asks for every directory again, or for none.) */
static void test_directories_are_asked_for_again_when_something_went(void **state)
{
    struct rig *r = *state;
    char expected[64];
    atomic_store(&r->node->directory, "dir");
    int id = (int)look(r, "dir");
    fake_tell_name(r->node, "dir/k", 0);
    fake_tell_name(r->node, "last", 0);
    (void)snprintf(expected, sizeof(expected), " name:%d/k name:1/last", id);
    assert_string_equal(hear_until(r, " name:1/last").text, expected);
    fake_tell_name(r->node, "dir/k", WIRE_NAME_GONE);
    fake_tell_name(r->node, "last", 0);
    (void)snprintf(expected, sizeof(expected), " inode:%d name:1/dir name:%d/k name:1/last", id, id);
    assert_string_equal(hear_until(r, " name:1/last").text, expected);
}

/* A directory that was removed while somebody is in it, so that the kernel has its inode still and believes
 * that the name is absent: it is asked for again when something is made below it. (Seen to fail where a
 * directory of which there is an inode was taken for one that is there.) */
static void test_a_directory_that_was_absent_and_is_in_use_is_asked_for_again(void **state)
{
    struct rig *r = *state;
    char expected[64];
    atomic_store(&r->node->directory, "dir");
    int id = (int)look(r, "dir");
    atomic_store(&r->node->is_empty, true);
    assert_int_equal(look(r, "dir"), 0);
    fake_tell_name(r->node, "dir/k", 0);
    fake_tell_name(r->node, "last", 0);
    (void)snprintf(expected, sizeof(expected), " inode:%d name:1/dir name:%d/k name:1/last", id, id);
    assert_string_equal(hear_until(r, " name:1/last").text, expected);
    atomic_store(&r->node->is_empty, false);
    assert_int_equal(look(r, "dir"), id);
    fake_tell_name(r->node, "dir/l", 0);
    fake_tell_name(r->node, "last", 0);
    (void)snprintf(expected, sizeof(expected), " name:%d/l name:1/last", id);
    assert_string_equal(hear_until(r, " name:1/last").text, expected);
}

/* ---- everything ---- */

/* Nothing more is written to the kernel until it hears. */
static void deafen(struct rig *r)
{
    const uint32_t filler[4] = {sizeof(filler)};
    while (send(fuse_session_fd(r->m.se), filler, sizeof(filler), MSG_DONTWAIT) >= 0)
        ;
    assert_int_equal(errno, EAGAIN);
}

/* While the kernel does not listen more names change than the queue holds: then it is told to ask again for
 * every name that it knows, or believes absent, and no more was remembered than there is room for.
 * (Mutations: of notifier_expire_name that tells nothing of what finds no room; that has no limit.) */
static void test_more_names_than_the_queue_holds_are_every_name(void **state)
{
    struct rig *r = *state;
    char name[32];
    uint64_t id = look(r, "k");
    assert_int_equal(look(r, "absent"), 0);
    deafen(r);
    for (int i = 0; i < FLOOD; i++) {
        (void)snprintf(name, sizeof(name), "f%d", i);
        notifier_expire_name(r->m.notifier, FUSE_ROOT_ID, slice_str(name), /* is_dir= */ false, /* id= */ 0);
    }
    notifier_expire_name(r->m.notifier, FUSE_ROOT_ID, SLICE_LIT("k"), /* is_dir= */ false, id);
    struct told t = hear_all(r);
    (void)snprintf(name, sizeof(name), " inode:%d name:1/k", (int)id);
    assert_non_null(strstr(t.text, " inode:1"));
    assert_non_null(strstr(t.text, name));
    assert_non_null(strstr(t.text, " name:1/absent"));
    assert_null(strstr(t.text, "epoch"));
    assert_true(t.n_flood > 0 && t.n_flood < FLOOD);
}

static void note_absent(struct rig *r, int n, uint64_t until_ms)
{
    char name[32];
    for (int i = 0; i < n; i++) {
        (void)snprintf(name, sizeof(name), "f%d", i);
        absent_note(r->m.absent, FUSE_ROOT_ID, slice_str(name), until_ms);
    }
}

/* The kernel forgets all its names at once, and with them what is mounted below, only when it believes more
 * of them absent than are remembered: not because that many were once looked up. (Seen to fail where they
 * were counted since the last time.) */
static void test_what_is_no_longer_believed_takes_nothing_away(void **state)
{
    struct rig *r = *state;
    note_absent(r, 4 * ABSENT_MAX, /* until_ms= */ 0);
    notifier_expire_all(r->m.notifier);
    struct told t = hear_all(r);
    assert_string_equal(t.text, " inode:1");
    assert_int_equal(t.n_flood, ABSENT_MAX);
    note_absent(r, ABSENT_MAX, UINT64_MAX);
    notifier_expire_all(r->m.notifier);
    assert_string_equal(hear_all(r).text, " inode:1");
    note_absent(r, ABSENT_MAX + 1, UINT64_MAX);
    notifier_expire_all(r->m.notifier);
    assert_string_equal(hear_all(r).text, " inode:1 epoch");
}

/* ---- taking over ---- */

static pthread_t asleep; /* who shall not sleep */
static atomic_bool has_slept;

static void note_sleep(uint64_t ns)
{
    if (pthread_equal(pthread_self(), asleep))
        atomic_store(&has_slept, true);
    sys_real.sleep_ns(ns);
}

/* In a process that takes over, what nobody has asked for again is waited for by another thread than the
 * notifier's, which is to tell of names meanwhile. (Seen to fail where it slept for two seconds, and
 * published then.) */
static void test_who_takes_over_tells_of_names_at_once(void **state)
{
    (void)state;
    struct rig *r = NULL;
    static struct sys table;
    table = sys_real;
    table.sleep_ns = note_sleep;
    asleep = pthread_self();
    atomic_store(&has_slept, false);
    sys = &table;
    assert_int_equal(begin((void **)&r), 0);
    mirror_resume(&r->m);
    mirror_resumed(&r->m);
    assert_false(atomic_load(&has_slept));
    assert_string_equal(hear_all(r).text, " epoch");
    takeover_end(&r->m);
    takeover_free(&r->m);
    r->m.takeover = NULL;
    assert_int_equal(end((void **)&r), 0);
    sys = &sys_real;
}

/* Kept open, as after its last close. */
static void keep_open(struct rig *r, struct warm *w, const char *key)
{
    const struct node_attr attr = {.size_bytes = BODY_BYTES, .etag = SLICE_LIT("v")};
    const struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = slice_str(key)};
    struct warm_trash *trash = NULL;
    struct client_file *file = NULL;
    struct err e = {0};
    struct node *root = node_get(r->m.nodes, NODE_ROOT_ID);
    struct node *n = node_look_up(r->m.nodes, root, slice_str(key), &attr);
    if (client_file_open(r->m.client, &o, &file, &e) < 0)
        fail_msg("%s", e.text);
    lock_take(node_table_lock(r->m.nodes));
    n->backing_file = file;
    warm_track_locked(w, n, hash_placement(slice_str(key)), warm_serial(w), /* valid_ms= */ 600000);
    assert_true(warm_keep_locked(w, n, &trash));
    lock_drop(node_table_lock(r->m.nodes));
    assert_null(trash);
    node_unref(r->m.nodes, n);
    node_unref(r->m.nodes, root);
}

/* What the node lets go of at once is closed by one call, behind all of it: a node that is slow to answer
 * holds up nothing else that it has told. (With a call for each file there are three.) */
static void test_what_is_let_go_together_is_closed_together(void **state)
{
    struct rig *r = *state;
    struct fake *f = r->node;
    static const char *const keys[] = {"x", "y", "z"};
    uint64_t records[ARRAY_SIZE(keys)];
    struct warm *w = warm_start(&r->m, /* max= */ 16, /* fds_max= */ 16);
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        keep_open(r, w, keys[i]);
        records[i] = htole64(hash_placement(slice_str(keys[i])));
    }
    int before = atomic_load(&f->seen[WIRE_OP_CLOSE]), closed = atomic_load(&f->n_closed);
    pthread_mutex_lock(&f->lock);
    assert_int_equal(atomic_load(&f->n_watches), 1);
    assert_int_equal(write(f->watch_fds[0], records, sizeof(records)), sizeof(records));
    pthread_mutex_unlock(&f->lock);
    for (uint64_t until_ms = sys_mono_ms() + DEADLINE_MS;
         atomic_load(&f->n_closed) < closed + (int)ARRAY_SIZE(keys) && sys_mono_ms() < until_ms;)
        sys->sleep_ns(1000000);
    assert_int_equal(atomic_load(&f->n_closed), closed + (int)ARRAY_SIZE(keys));
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_CLOSE]), before);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_CLOSE_MANY]), 1);
    warm_end(w);
    warm_free(w);
}

/* The kernel is told to believe the name of what is kept open. */
static struct node *tell_kept(struct rig *r, struct warm *w, const char *key)
{
    keep_open(r, w, key);
    struct node *root = node_get(r->m.nodes, NODE_ROOT_ID), *n = node_find(r->m.nodes, root, slice_str(key));
    lock_take(node_table_lock(r->m.nodes));
    assert_true(warm_tell_ms_locked(w, n) > 0);
    lock_drop(node_table_lock(r->m.nodes));
    node_unref(r->m.nodes, root);
    return n;
}

/* Of what came while the kernel was told to believe a name for long, that name is dropped behind the answer
 * if it was about it, and no other: not what is known of all files because somebody writes one. (Fails where
 * all names are dropped, and where what was dropped before the answer counts as done.) */
static void test_a_record_beside_an_answer_is_about_its_own_name(void **state)
{
    struct rig *r = *state;
    struct warm *w = warm_start(&r->m, /* max= */ 16, /* fds_max= */ 16);
    struct node *x = tell_kept(r, w, "x"), *y = tell_kept(r, w, "y");
    uint64_t serial = warm_serial(w);
    assert_string_equal(hear_all(r).text, "");
    fake_tell(r->node, "y");
    assert_string_equal(hear_until(r, " name:1/y").text, " name:1/y");
    assert_true(warm_serial(w) != serial);
    warm_check_told(w, x);
    warm_check_told(w, y);
    assert_string_equal(hear_all(r).text, " name:1/y");
    node_unref(r->m.nodes, x);
    node_unref(r->m.nodes, y);
    warm_end(w);
    warm_free(w);
    (void)hear_all(r); /* of x: the end of the watch lets go of everything */
}

#define MOUNT_TEST(name) cmocka_unit_test_setup_teardown(test_##name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        MOUNT_TEST(an_answer_on_its_way_is_asked_for_again),
        MOUNT_TEST(other_answers_are_believed),
        MOUNT_TEST(a_listing_of_before_is_not_believed),
        MOUNT_TEST(an_entry_that_changes_while_the_next_page_is_waited_for),
        MOUNT_TEST(a_listing_of_before_replaces_nothing),
        MOUNT_TEST(directories_are_asked_for_again_when_something_went),
        MOUNT_TEST(a_directory_that_was_absent_and_is_in_use_is_asked_for_again),
        MOUNT_TEST(more_names_than_the_queue_holds_are_every_name),
        MOUNT_TEST(what_is_no_longer_believed_takes_nothing_away),
        MOUNT_TEST(what_is_let_go_together_is_closed_together),
        MOUNT_TEST(a_record_beside_an_answer_is_about_its_own_name),
        cmocka_unit_test(test_who_takes_over_tells_of_names_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
