/*
 * One directory of HDFS, in batches; tree.c makes pages of it.
 *
 * Servers without LISTSTATUS_BATCH (HttpFS of earlier versions) are asked with LISTSTATUS, which tells all at
 * once; what a server was found not to have is not asked for again.
 *
 * Failure modes: those of web_perform; ERR_ORIGIN_FAILED for listings that do not come to an end.
 */
#include "origin/hdfs_internal.h"

#include "base/log.h"

#define BATCHES_MAX 100000

static int ask(struct hdfs *h, const char *path, const char *op, const char *after, struct buf *body,
               struct err *e)
{
    struct hdfs_call _cleanup_(hdfs_call_fini) c;
    buf_clear(body);
    int r = hdfs_call_init(&c, h, WEB_GET, "list", op, path, body, e);
    if (r == 0 && after)
        web_query(&c.web, SLICE_LIT("startAfter"), slice_str(after));
    return r < 0 ? r : web_perform(&c.web, e);
}

static int read_batches(struct hdfs *h, const char *path, struct tree_folder *f, struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_LIST_MAX_BYTES);
    char _cleanup_free_ *last = NULL;
    struct origin_walk walk = {0};
    for (int i = 0; i < BATCHES_MAX; i++) {
        char *next = NULL;
        uint64_t left = 0;
        int r = ask(h, path, "LISTSTATUS_BATCH", last, &body, e);
        if (r == 0)
            r = hdfs_json_listing(buf_view(&body), f, &next, &left, e);
        if (r < 0)
            return r;
        free(last);
        last = next;
        if (left == 0)
            return 0;
        struct origin_page batch = {.truncated = true, .reached = last ? slice_str(last) : SLICE_NULL};
        r = origin_walk_on(&walk, &batch, e);
        if (r < 0)
            return r;
    }
    return err_set(e, ERR_ORIGIN_FAILED, "the listing does not come to an end");
}

static int read_whole(struct hdfs *h, const char *path, struct tree_folder *f, struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_LIST_MAX_BYTES);
    char *last = NULL;
    uint64_t left;
    int r = ask(h, path, "LISTSTATUS", NULL, &body, e);
    if (r == 0)
        r = hdfs_json_listing(buf_view(&body), f, &last, &left, e);
    free(last);
    return r;
}

/* Whether the server said that it has no such operation. */
static bool not_known(int r)
{
    return r == ERR_ORIGIN_REFUSED || r == ERR_ORIGIN_SETUP || r == ERR_NOT_IMPLEMENTED;
}

/* What a killed run of this node was writing there. What cannot be removed is met again. */
static void remove_left(struct hdfs *h, const char *path, const struct tree_folder *f)
{
    char whole[HDFS_PATH_SIZE];
    bool there = false;
    for (size_t i = 0; i < f->n_left; i++) {
        int n = snprintf(whole, sizeof(whole), "%s%s%s", path, *path ? "/" : "", f->left[i]);
        if (n > 0 && (size_t)n < sizeof(whole) && hdfs_remove_path(h, whole, &there, NULL) == 0 && there)
            log_info("origin", "removed %s: its writer has ended", whole);
    }
}

int hdfs_read_folder(void *arg, const char *path, struct tree_folder **ret, struct err *e)
{
    struct hdfs *h = arg;
    struct tree_folder *_cleanup_(tree_folder_unrefp) f = tree_folder_new();
    struct hdfs_status st;
    int r = hdfs_stat(h, path, NULL, &st, e);
    if (r == 0 && !st.is_dir)
        r = err_set(e, -ENOENT, "it is no directory");
    if (r == -ENOENT && !*path)
        return err_set(e, ERR_ORIGIN_DOWN, "the server has no directory %s: create it, or correct the path",
                       *h->root ? h->root : "/");
    if (r < 0)
        return r;
    f->self = (struct tree_name){.id = st.id, .mtime_ns = st.mtime_ms * 1000000};
    hdfs_etag(&st, f->self.etag);
    r = atomic_load(&h->no_batch) ? ERR_NOT_IMPLEMENTED : read_batches(h, path, f, e);
    if (not_known(r) && f->n == 0) {
        atomic_store(&h->no_batch, true);
        if (e)
            e->code = 0;
        r = read_whole(h, path, f, e);
    }
    if (r < 0)
        return r;
    remove_left(h, path, f);
    *ret = TAKE_PTR(f);
    return 0;
}
