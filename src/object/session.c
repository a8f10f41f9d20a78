/*
 * Sessions and their handles.
 *
 * A handle's id is generation << 32 | index, generation never 0: an id that was closed is refused (-EBADF)
 * even when its place has been given out again. Generations begin at random, so that an id of before a
 * restart is refused too. Invariant: a place holds one reference to its reader or writer.
 */
#include "object/scratch_node.h"

#include "base/sys.h"

struct object_session *object_session_new(struct object_service *s, enum wire_via via)
{
    struct object_session *ses = calloc(1, sizeof(*ses));
    assert(ses && s->magic == OBJECT_SERVICE_MAGIC);
    ses->magic = OBJECT_SESSION_MAGIC;
    ses->service = s;
    ses->via = via;
    lock_init(&ses->lock, LOCK_SESSION);
    LOCK_SCOPE(&s->lock);
    ses->number = ++s->n_sessions;
    ses->next = s->sessions;
    s->sessions = ses;
    return ses;
}

void object_session_set_quit(struct object_session *s, const atomic_bool *flag)
{
    s->quit.now = flag;
}

void object_session_set_family(struct object_session *s, const uint8_t family[WIRE_FAMILY_BYTES])
{
    static_assert(sizeof(s->family) == WIRE_FAMILY_BYTES, "all of it");
    memcpy(&s->family, family, sizeof(s->family));
}

void object_session_set_remote(struct object_session *s)
{
    s->is_remote = true;
}

void object_session_set_peer(struct object_session *s, uint32_t uid, uint32_t gid, const uint32_t *groups,
                             size_t n_groups)
{
    assert(!s->has_peer);
    s->groups = calloc(MAX(n_groups, (size_t)1), sizeof(*s->groups));
    assert(s->groups);
    if (n_groups > 0)
        memcpy(s->groups, groups, n_groups * sizeof(*groups));
    s->uid = uid;
    s->gid = gid;
    s->n_groups = n_groups;
    s->has_peer = true;
}

void object_sent(struct object_session *s, uint32_t op, const void *rep)
{
    const struct wire_open_rep *opened = rep;
    if (op != WIRE_OP_OPEN)
        return;
    reader_passed(s, opened);
    route_passed(s, opened->handle);
}

/* The handle that a reply brings, or 0, and which operation closes it. */
static uint64_t opened_by(uint32_t op, const void *rep, uint32_t *ret_close)
{
    switch (op) {
#define X(NAME, name, CLOSE)                                                                                 \
    case WIRE_OP_##NAME:                                                                                     \
        *ret_close = WIRE_OP_##CLOSE;                                                                        \
        return ((const struct wire_##name##_rep *)rep)->handle;
        X(OPEN, open, CLOSE)
        X(WATCH, watch, CLOSE)
        X(WATCH_NAMES, watch_names, CLOSE)
        X(PUT_OPEN, put_open, PUT_ABORT)
        X(UPLOAD_PART, upload_part, UPLOAD_END)
        X(UPLOAD_RESUME, upload_resume, PUT_ABORT)
        X(TREE_CREATE, tree_create, CLOSE)
        X(TREE_OPEN, tree_open, CLOSE)
#undef X
    default:
        return 0;
    }
}

static void close_unsent(struct object_session *s, uint32_t close, uint64_t handle, struct arena *a)
{
    const struct wire_close_req end = {.handle = handle};
    const struct wire_put_abort_req abort = {.handle = handle};
    const struct wire_upload_end_req cancel = {.handle = handle, .flags = WIRE_CANCEL};
    const void *req = close == WIRE_OP_PUT_ABORT    ? (const void *)&abort
                      : close == WIRE_OP_UPLOAD_END ? (const void *)&cancel
                                                    : &end;
    union {
        struct wire_close_rep end;
        struct wire_put_abort_rep abort;
        struct wire_upload_end_rep cancel;
    } done = {0};
    (void)object_call(s, close, req, a, &done, NULL);
}

void object_unsent(struct object_session *s, uint32_t op, const void *req, const void *rep, struct arena *a)
{
    uint32_t close;
    uint64_t handle = opened_by(op, rep, &close);
    object_sent(s, op, rep);
    if (handle != 0)
        close_unsent(s, close, handle, a);
    scratch_tell_all(s, op, req);
}

static uint64_t fetched_bytes(struct object_session *s, const struct wire_fetch_req *q)
{
    uint64_t n = 0;
    enum handle_kind kind = session_kind(s, q->handle);
    void *x = kind == HANDLE_READ || kind == HANDLE_SREAD ? session_get(s, kind, q->handle, NULL) : NULL;
    if (x && kind == HANDLE_READ) {
        n = reader_reply_bytes(x, q);
        reader_unref(x);
    } else if (x) {
        n = sreader_reply_bytes(x, q);
        sreader_unref(x);
    }
    return n;
}

uint64_t object_reply_bytes(struct object_session *s, uint32_t op, const void *req)
{
    switch (op) {
    case WIRE_OP_FETCH:
        return fetched_bytes(s, req);
    case WIRE_OP_TREE_READ:
        return MIN((uint64_t)((const struct wire_tree_read_req *)req)->n, (uint64_t)OBJECT_TREE_PIECE_BYTES);
    default:
        return 0;
    }
}

/* Users are many, and each may have as many sessions as it likes. */
static bool enter_users(struct object_session *ses)
{
    struct object_service *s = ses->service;
    if (!ses->access_key || atomic_fetch_add(&s->of_users, 1) < atomic_load(&s->of_users_max))
        return true;
    (void)atomic_fetch_sub(&s->of_users, 1);
    return false;
}

static void leave_users(struct object_session *ses)
{
    if (ses->access_key)
        (void)atomic_fetch_sub(&ses->service->of_users, 1);
}

static void drop(enum handle_kind kind, void *object)
{
    if (kind == HANDLE_READ)
        reader_unref(object);
    else if (kind == HANDLE_WRITE)
        writer_unref(object);
    else if (kind == HANDLE_WATCH)
        watch_free(object);
    else if (kind == HANDLE_SREAD)
        sreader_unref(object);
    else if (kind == HANDLE_SWRITE)
        swriter_unref(object);
    else if (kind == HANDLE_PART)
        part_write_unref(object);
    else if (kind == HANDLE_THROUGH)
        through_unref(object);
    else if (kind == HANDLE_VALUE)
        value_handle_unref(object);
    else if (kind == HANDLE_TREE)
        stree_linger(
            object); /* who closes handles does it by CLOSE: another process may take the mount over */
}

void object_session_free(struct object_session *ses)
{
    if (!ses)
        return;
    assert(ses->magic == OBJECT_SESSION_MAGIC);
    struct object_service *s = ses->service;
    lock_take(&s->lock);
    struct object_session **at = &s->sessions;
    while (*at != ses)
        at = &(*at)->next;
    *at = ses->next;
    status_forget_mount_locked(ses);
    lock_drop(&s->lock);
    /* Watches end before the files that they are about are let go: what nobody uses may change without a word
     * to anybody. */
    for (int is_watch = 1; is_watch >= 0; is_watch--)
        for (uint32_t i = 0; i < ses->n_handles; i++)
            if (ses->handles[i].kind != HANDLE_FREE && (ses->handles[i].kind == HANDLE_WATCH) == is_watch) {
                drop(ses->handles[i].kind, ses->handles[i].object);
                leave_users(ses);
            }
    watch_free(ses->company);
    slocks_end_session(s->scratch->locks, ses);
    route_session_free(ses->route);
    user_unref(ses->user);
    free(ses->access_key);
    free(ses->mount_point);
    free(ses->mount_bucket);
    free(ses->mount_reason);
    free(ses->handles);
    free(ses->groups);
    lock_fini(&ses->lock);
    ses->magic = 0;
    free(ses);
}

void object_session_abandon(struct object_session *ses)
{
    assert(ses->magic == OBJECT_SESSION_MAGIC);
    slocks_end_session(ses->service->scratch->locks, ses);
}

static int grow_locked(struct object_session *ses)
{
    if (ses->n_handles >= OBJECT_HANDLES_MAX)
        return -EMFILE;
    uint32_t n = ses->n_handles ? ses->n_handles * 2 : 4;
    ses->handles = realloc(ses->handles, n * sizeof(ses->handles[0]));
    assert(ses->handles);
    memset(ses->handles + ses->n_handles, 0, (n - ses->n_handles) * sizeof(ses->handles[0]));
    for (uint32_t i = ses->n_handles; i < n; i++) {
        ses->handles[i].next_free = ses->free_head;
        ses->free_head = i + 1;
        sys->random(&ses->handles[i].generation, sizeof(ses->handles[i].generation));
    }
    ses->n_handles = n;
    return 0;
}

int session_put(struct object_session *ses, enum handle_kind kind, void *object, uint64_t *ret_handle)
{
    LOCK_SCOPE(&ses->lock);
    int r = ses->free_head ? 0 : grow_locked(ses);
    if (r == 0 && !enter_users(ses))
        r = -EMFILE;
    if (r < 0)
        return r;
    uint32_t i = ses->free_head - 1;
    struct handle *h = &ses->handles[i];
    ses->free_head = h->next_free;
    h->kind = kind;
    h->object = object;
    h->bucket_id = 0;
    h->generation = MAX(h->generation + 1, 1u);
    *ret_handle = (uint64_t)h->generation << 32 | i;
    return 0;
}

int session_check_room(struct object_session *ses, struct err *e)
{
    struct object_service *s = ses->service;
    LOCK_SCOPE(&ses->lock);
    bool is_full = !ses->free_head && ses->n_handles >= OBJECT_HANDLES_MAX;
    bool are_full = ses->access_key && atomic_load(&s->of_users) >= atomic_load(&s->of_users_max);
    return is_full || are_full ? session_no_room(-EMFILE, e) : 0;
}

int session_no_room(int r, struct err *e)
{
    return err_set(e, r, "too many open handles: one session may have %d, those of all users together %d",
                   OBJECT_HANDLES_MAX, OBJECT_OF_USERS_MAX);
}

static struct handle *find_locked(struct object_session *ses, enum handle_kind kind, uint64_t handle)
{
    uint32_t i = (uint32_t)handle;
    if (i >= ses->n_handles)
        return NULL;
    struct handle *h = &ses->handles[i];
    return h->kind == kind && h->generation == handle >> 32 ? h : NULL;
}

void *session_get(struct object_session *ses, enum handle_kind kind, uint64_t handle, struct err *e)
{
    assert(kind != HANDLE_FREE && kind != HANDLE_WATCH && kind != HANDLE_TREE);
    LOCK_SCOPE(&ses->lock);
    struct handle *h = find_locked(ses, kind, handle);
    if (!h) {
        (void)err_set(e, -EBADF, "handle is not open");
        return NULL;
    }
    if (kind == HANDLE_READ)
        reader_ref(h->object);
    else if (kind == HANDLE_WRITE)
        writer_ref(h->object);
    else if (kind == HANDLE_SREAD)
        sreader_ref(h->object);
    else if (kind == HANDLE_PART)
        part_write_ref(h->object);
    else if (kind == HANDLE_THROUGH)
        through_ref(h->object);
    else if (kind == HANDLE_VALUE)
        value_handle_ref(h->object);
    else
        swriter_ref(h->object);
    return h->object;
}

struct stree *session_use_tree(struct object_session *ses, uint64_t handle, struct err *e)
{
    LOCK_SCOPE(&ses->lock);
    struct handle *h = find_locked(ses, HANDLE_TREE, handle);
    if (!h) {
        (void)err_set(e, -EBADF, "handle is not open");
        return NULL;
    }
    stree_use(h->object);
    return h->object;
}

enum handle_kind session_kind(struct object_session *ses, uint64_t handle)
{
    LOCK_SCOPE(&ses->lock);
    uint32_t i = (uint32_t)handle;
    if (i >= ses->n_handles || ses->handles[i].generation != handle >> 32)
        return HANDLE_FREE;
    return ses->handles[i].kind;
}

static struct handle *open_handle_locked(struct object_session *ses, uint64_t handle)
{
    uint32_t i = (uint32_t)handle;
    if (handle == 0 || i >= ses->n_handles || ses->handles[i].generation != handle >> 32)
        return NULL;
    return ses->handles[i].kind == HANDLE_FREE ? NULL : &ses->handles[i];
}

void session_note_bucket(struct object_session *ses, uint64_t handle, uint64_t bucket_id)
{
    LOCK_SCOPE(&ses->lock);
    struct handle *h = open_handle_locked(ses, handle);
    if (h)
        h->bucket_id = bucket_id;
}

uint64_t session_bucket(struct object_session *ses, uint64_t handle)
{
    LOCK_SCOPE(&ses->lock);
    const struct handle *h = open_handle_locked(ses, handle);
    return h ? h->bucket_id : 0;
}

void *session_take(struct object_session *ses, enum handle_kind kind, uint64_t handle)
{
    LOCK_SCOPE(&ses->lock);
    struct handle *h = find_locked(ses, kind, handle);
    if (!h)
        return NULL;
    leave_users(ses);
    h->kind = HANDLE_FREE;
    h->next_free = ses->free_head;
    ses->free_head = (uint32_t)handle + 1;
    return TAKE_PTR(h->object);
}
