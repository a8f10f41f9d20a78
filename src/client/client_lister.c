/*
 * Listings page by page (contract in client_lister.h).
 *
 * Invariant: `rest` points into `page`, and holds whole entries not given out yet; `next` is where the page
 * after it begins. A page that broke in the middle ends the walk with ERR_PROTOCOL, however often it is asked
 * on: who has given out the entries before it hears of that with the next question.
 */
#include "client/client_lister.h"

struct client_lister {
    struct client *c;
    char *bucket, *prefix, *next;
    size_t bucket_n, prefix_n, next_n;
    char delimiter;
    uint32_t flags, page_keys;
    bool ended; /* no page follows */
    bool is_broken;
    struct buf page;
    struct slice rest;
};

struct client_lister *client_lister_new(struct client *c, const struct client_lister_open *o)
{
    assert(c != NULL && o != NULL);
    struct client_lister *l = calloc(1, sizeof(*l));
    if (!l)
        abort();
    l->c = c;
    l->bucket = slice_dup(o->bucket);
    l->bucket_n = o->bucket.n;
    l->prefix = slice_dup(o->prefix);
    l->prefix_n = o->prefix.n;
    l->next = slice_dup(o->after);
    l->next_n = o->after.n;
    l->delimiter = o->delimiter;
    l->flags = o->flags;
    l->page_keys = o->page;
    l->page = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return l;
}

void client_lister_free(struct client_lister *l)
{
    if (!l)
        return;
    buf_fini(&l->page);
    free(l->bucket);
    free(l->prefix);
    free(l->next);
    free(l);
}

size_t client_lister_bytes(const struct client_lister *l)
{
    return l ? sizeof(*l) + l->bucket_n + l->prefix_n + l->next_n + l->page.cap : 0;
}

static int next_page(struct client_lister *l, struct err *e)
{
    struct wire_list_req req = {
        .bucket = slice_of(l->bucket, l->bucket_n),
        .prefix = slice_of(l->prefix, l->prefix_n),
        .delimiter = (uint32_t)(unsigned char)l->delimiter,
        .after = slice_of(l->next, l->next_n),
        .max = l->page_keys,
        .flags = l->flags | client_no_wait(l->c),
    };
    struct wire_list_rep rep;
    int r = client_list(l->c, &req, &l->page, &rep, e);
    if (r < 0)
        return r;
    macro_close(&rep.fd);
    bool stuck = rep.truncated && (rep.next.n == 0 || slice_eq(rep.next, req.after));
    if (stuck)
        return err_set(e, ERR_PROTOCOL, "listing does not go on");
    l->ended = !rep.truncated;
    l->rest = rep.entries;
    free(l->next);
    l->next = slice_dup(rep.next);
    l->next_n = rep.next.n;
    return 0;
}

int client_lister_next(struct client_lister *l, struct wire_entry *ret, struct err *e)
{
    assert(l != NULL && ret != NULL);
    while (l->rest.n == 0 && !l->is_broken) {
        if (l->ended)
            return 0;
        int r = next_page(l, e);
        if (r < 0)
            return r;
    }
    l->is_broken = l->is_broken || wire_entry_decode(&l->rest, ret) < 0;
    if (l->is_broken) {
        l->rest = SLICE_NULL;
        return err_set(e, ERR_PROTOCOL, "broken entry in a listing");
    }
    return 1;
}
