/* Operations on users. Who may call them was decided before (access.c). */
#include "object/object_internal.h"
#include "object/scratch_node.h"

#include "base/log.h"

#define PAGE_USERS     1000
#define PAGE_MAX_BYTES (2 * MIB)
#define LINE_MAX_BYTES (2 * KIB)

/* The newest key of a user, into the arena. */
static void give_key(const struct user *u, struct arena *a, struct slice *ret_access,
                     struct slice *ret_secret)
{
    const struct user_key *k = &u->keys[u->n_keys - 1];
    *ret_access = arena_dup(a, slice_str(k->access_key));
    *ret_secret = arena_dup(a, slice_str(k->secret_key));
}

int op_user_create(struct object_session *ses, const struct wire_user_create_req *req, struct arena *a,
                   struct wire_user_create_rep *rep, struct err *e)
{
    _cleanup_(user_unrefp) struct user *u = NULL;
    int r = user_create(ses->service->users, req->name, req->role, req->buckets, &u, e);
    if (r < 0)
        return r;
    log_info("object", "user %s created: %s of %s", u->name, user_role_name(u->role), u->buckets);
    give_key(u, a, &rep->access_key, &rep->secret_key);
    return 0;
}

int op_user_list(struct object_session *ses, const struct wire_user_list_req *req, struct arena *a,
                 struct wire_user_list_rep *rep, struct err *e)
{
    struct user **page = arena_alloc(a, (PAGE_USERS + 1) * sizeof(*page));
    size_t n = user_page(ses->service->users, req->after, page, PAGE_USERS + 1);
    _cleanup_buf_ struct buf out = BUF_INIT(PAGE_MAX_BYTES);
    int r = 0;
    for (size_t i = 0; i < n; i++) {
        if (r == 0 && i < PAGE_USERS)
            r = user_line(page[i], &out);
        user_unref(page[i]);
    }
    if (r < 0)
        return err_set(e, r, "listing of users is too long");
    rep->users = arena_dup(a, buf_view(&out));
    rep->truncated = n > PAGE_USERS;
    return 0;
}

int op_user_get(struct object_session *ses, const struct wire_user_get_req *req, struct arena *a,
                struct wire_user_get_rep *rep, struct err *e)
{
    _cleanup_(user_unrefp) struct user *u = NULL;
    _cleanup_buf_ struct buf line = BUF_INIT(LINE_MAX_BYTES);
    int r = user_find(ses->service->users, req->name, &u, e);
    if (r < 0)
        return r;
    r = user_line(u, &line);
    assert(r == 0);
    rep->user = arena_dup(a, buf_view(&line));
    return 0;
}

int op_user_remove(struct object_session *ses, const struct wire_user_remove_req *req, struct arena *a,
                   struct wire_user_remove_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    int r = user_delete(ses->service->users, req->name, e);
    watch_end_users(ses->service); /* what he has open is not opened again without asking */
    if (r == 0) {
        smounts_user_gone(ses->service->scratch, req->name);
        log_info("object", "user " SLICE_FMT " removed", SLICE_ARG(req->name));
    }
    return r;
}

int op_user_add_key(struct object_session *ses, const struct wire_user_add_key_req *req, struct arena *a,
                    struct wire_user_add_key_rep *rep, struct err *e)
{
    _cleanup_(user_unrefp) struct user *u = NULL;
    int r = user_add_key(ses->service->users, req->name, &u, e);
    if (r == 0)
        give_key(u, a, &rep->access_key, &rep->secret_key);
    return r;
}

int op_user_remove_key(struct object_session *ses, const struct wire_user_remove_key_req *req,
                       struct arena *a, struct wire_user_remove_key_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    int r = user_remove_key(ses->service->users, req->name, req->access_key, e);
    watch_end_users(ses->service);
    return r;
}

int op_user_limit(struct object_session *ses, const struct wire_user_limit_req *req, struct arena *a,
                  struct wire_user_limit_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    int r = user_set_limits(ses->service->users, req->name, req->settings, e);
    if (r == 0)
        shaped_look(ses->service);
    return r;
}
