/* Targets of measurements: which kind a text means, and the sink that verifies; contract in bench_target.h.
 */
#include "cli/bench_target.h"

#include "base/sys.h"

#include <inttypes.h>

static bool is_directory(const char *text)
{
    struct stat st;
    return text[0] == '/' || text[0] == '.' || (sys->stat(text, &st) == 0 && S_ISDIR(st.st_mode));
}

/* "bucket/some/prefix" */
static int split(struct slice text, const char *shown, struct bench_target *t, struct err *e)
{
    struct slice prefix = text, bucket = slice_split(&prefix, '/');
    if (bucket.n == 0)
        return err_set(e, ERR_BAD_OPTION, "%s: must be DIR, s3://BUCKET[/PREFIX] or BUCKET[/PREFIX]", shown);
    t->root = slice_dup(bucket);
    size_t n = prefix.n + (prefix.n && prefix.p[prefix.n - 1] != '/');
    t->prefix = malloc(n + 1);
    assert(t->prefix);
    (void)snprintf(t->prefix, n + 1, SLICE_FMT "/", SLICE_ARG(prefix));
    t->prefix[n] = '\0';
    return 0;
}

/* Told before anything was made, and not as a failure of whichever connection came too late. */
static int room_for_connections(const struct bench_target *t, struct err *e)
{
    uint64_t n = t->options->connections, needed = n * t->ops->files_per_connection + BENCH_FILES_FREE;
    uint64_t files = sys_raise_file_limit();
    return needed <= files ? 0
                           : err_set(e, ERR_BAD_OPTION,
                                     "%" PRIu64 " connections to a %s may need %" PRIu64
                                     " open files, and this process may have %" PRIu64 ": see ulimit -n",
                                     n, t->ops->kind, needed, files);
}

int bench_target_open(const char *text, const struct bench_target_options *options, struct bench_target *ret,
                      struct err *e)
{
    struct bench_target t = {.options = options};
    int r = 0;
    if (slice_starts(slice_str(text), SLICE_LIT("s3://"))) {
        t.ops = &bench_s3_ops;
        r = split(slice_from(slice_str(text), 5), text, &t, e);
    } else if (is_directory(text)) {
        t.ops = &bench_dir_ops;
        t.root = slice_dup(slice_str(text));
        t.prefix = slice_dup(SLICE_LIT(""));
    } else {
        t.ops = &bench_bucket_ops;
        r = split(slice_str(text), text, &t, e);
    }
    r = r < 0 ? r : room_for_connections(&t, e);
    r = r < 0 ? r : t.ops->open(&t, e);
    if (r < 0) {
        free(t.root);
        free(t.prefix);
        return r;
    }
    *ret = t;
    return 0;
}

void bench_target_close(struct bench_target *t)
{
    if (!t->ops)
        return;
    t->ops->close(t);
    free(t->root);
    free(t->prefix);
    *t = (struct bench_target){0};
}

int bench_verify_piece(struct pattern p, const char *key, uint64_t offset, const void *from, size_t n,
                       struct err *e)
{
    int64_t at = pattern_check(p, offset, from, n);
    if (at < 0)
        return 0;
    return err_set(e, ERR_CORRUPT, "%s: byte %" PRId64 " is not what was written", key, at);
}

int bench_verify_sink(void *verify, uint64_t offset, const void *p, size_t n)
{
    struct bench_verify *v = verify;
    v->bytes += n;
    return bench_verify_piece(v->pattern, v->key, offset, p, n, v->e);
}
