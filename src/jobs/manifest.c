/*
 * What an export or import wrote, written down beside it: a file for people and for `sha256sum`-like checks.
 *
 *     .forebay-export-20260131T235959Z-17.tsv       kind, time and number of the job
 *
 *     # forebay export 1<TAB>SOURCE<TAB>objects<TAB>failed
 *     KEY<TAB>SIZE<TAB>CHECKSUM<TAB>TIME[<TAB>VERSION]
 *
 * Keys are as at the source, percent-encoded; CHECKSUM is sha256:HEX for what was sent, md5:HEX or etag:TEXT
 * for what was found there as it should be; VERSION is the id of the version that was restored, encoded too.
 */
#include "jobs/ends.h"
#include "jobs/jobs_internal.h"

#include "base/text.h"

#include <inttypes.h>

#define PIECE_BYTES MIB
#define LINE_MAX    (8 * KIB)

struct manifest {
    struct jobs *jobs;
    struct object_session *session;
    struct arena *arena;
    uint64_t handle, at;
    struct buf piece;
};

bool manifest_is(struct slice key)
{
    ssize_t slash = slice_rfind(key, '/');
    struct slice name = slice_from(key, (size_t)(slash + 1));
    return slice_starts(name, SLICE_LIT(".forebay-export-")) ||
           slice_starts(name, SLICE_LIT(".forebay-import-"));
}

static int flush(struct manifest *m, struct err *e)
{
    struct wire_put_write_req req = {.handle = m->handle, .offset = m->at, .data = buf_view(&m->piece)};
    struct wire_put_write_rep rep;
    arena_clear(m->arena);
    int r = m->piece.n > 0 ? object_put_write(m->session, &req, m->arena, &rep, e) : 0;
    m->at += m->piece.n;
    buf_clear(&m->piece);
    return r;
}

static int put_line(struct manifest *m, struct slice key, struct slice rest, struct err *e)
{
    int r = text_uri_encode(&m->piece, key, /* keep_slash= */ true);
    r = r < 0 ? r : buf_printf(&m->piece, "\t" SLICE_FMT "\n", SLICE_ARG(rest));
    if (r < 0)
        return err_set(e, r, "a line of the manifest is too long");
    return m->piece.n >= PIECE_BYTES ? flush(m, e) : 0;
}

static int put_lines(struct manifest *m, const struct job_record *rec, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(JOB_KEY_MAX), to = BUF_INIT(JOB_KEY_MAX);
    job_key_manifest(rec->id, SLICE_NULL, &from);
    int r = kv_prefix_end(buf_view(&from), &to);
    if (r == 0)
        r = buf_printf(&m->piece, "# forebay %s 1\t%s\t%" PRIu64 "\t%" PRIu64 "\n", rec->kind, rec->source,
                       rec->done_objects, rec->failed_objects);
    if (r < 0)
        return err_set(e, r, "manifest");
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(m->jobs->kv, buf_view(&from), buf_view(&to));
    struct slice k, v;
    while ((r = kv_iter_next(it, &k, &v, e)) == 0)
        if ((r = put_line(m, slice_from(k, JOB_KEY_HEAD), v, e)) < 0)
            return r;
    return r == -ENOENT ? flush(m, e) : r;
}

/* "20260131T235959Z" */
static void stamp(uint64_t real_ns, char ret[32])
{
    char iso[32];
    size_t n = 0;
    text_iso8601(real_ns, iso);
    for (const char *p = iso; *p && *p != '.'; p++)
        if (*p != '-' && *p != ':')
            ret[n++] = *p;
    ret[n++] = 'Z';
    ret[n] = '\0';
}

int manifest_write(struct jobs *j, struct object_session *session, const struct job_record *rec,
                   const struct ends *x, struct err *e)
{
    char when[32];
    stamp(rec->created_ns, when);
    _cleanup_(arena_freep) struct arena *a = arena_new(4 * MIB);
    _cleanup_free_ char *name = NULL;
    const char *slash = x->target_prefix.n > 0 && !slice_ends(x->target_prefix, SLICE_LIT("/")) ? "/" : "";
    if (asprintf(&name, SLICE_FMT "%s.forebay-%s-%s-%" PRIu64 ".tsv", SLICE_ARG(x->target_prefix), slash,
                 rec->kind, when, rec->id) < 0)
        abort();
    struct manifest m = {
        .jobs = j, .session = session, .arena = a, .piece = BUF_INIT(PIECE_BYTES + LINE_MAX)};
    struct wire_put_open_req open = {.bucket = x->target_bucket,
                                     .key = slice_str(name),
                                     .size = UINT64_MAX,
                                     .content_type = SLICE_LIT("text/tab-separated-values"),
                                     .via = WIRE_VIA_API};
    struct wire_put_open_rep to;
    int r = object_put_open(session, &open, a, &to, e);
    if (r < 0)
        return err_prefix(e, r, "manifest");
    m.handle = to.handle;
    r = put_lines(&m, rec, e);
    buf_fini(&m.piece);
    if (r == 0) {
        struct wire_put_commit_req commit = {.handle = m.handle, .size = m.at};
        struct wire_put_commit_rep done;
        r = object_put_commit(session, &commit, a, &done, e);
    }
    if (r < 0) {
        struct wire_put_abort_req abort_req = {.handle = m.handle};
        struct wire_put_abort_rep aborted;
        (void)object_put_abort(session, &abort_req, a, &aborted, NULL);
        return err_prefix(e, r, "manifest");
    }
    return 0;
}
