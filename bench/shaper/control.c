/*
 * The proxy's own interface, under /-/shaper/, in JSON:
 *
 *     GET  /-/shaper/stats                 counters
 *     POST /-/shaper/reset                 counters to zero, armed faults away
 *     POST /-/shaper/release               whatever stalls goes on
 *     POST /-/shaper/fault?kind=KIND[&count=N][&match=TEXT][&at=BYTES][&for=TIME][&skip=N]
 *     POST /-/shaper/set?NAME=VALUE[&..]   first-byte, seed, per-connection, total, slow-list, busy-above as
 *                                          on the command line (a seed's sequence begins anew); system:
 *                                          whose requests come from now on
 */
#include "shaper.h"

#include "base/text.h"

#define PREFIX "/-/shaper/"

bool control_owns(struct slice target)
{
    return slice_starts(target, SLICE_LIT(PREFIX));
}

static int refuse(struct buf *b, int status, const char *text)
{
    buf_clear(b);
    if (buf_str(b, "{\"error\": \"") < 0)
        return 500;
    for (const char *p = text; *p; p++)
        (void)buf_char(b, *p == '"' || *p == '\\' || *p < ' ' ? '\'' : *p);
    (void)buf_str(b, "\"}\n");
    return status;
}

static int answer_set(struct shaper *sh, struct slice query, struct buf *b)
{
    struct err e;
    while (query.n) {
        struct slice value = slice_split(&query, '&'), name = slice_split(&value, '=');
        struct buf _cleanup_buf_ text = BUF_INIT(KIB);
        char _cleanup_free_ *n = slice_dup(name);
        if (text_uri_decode(&text, value, /* plus_is_space= */ true) < 0 || !text.p)
            return refuse(b, 400, "value missing or not percent-encoded");
        if (shaper_set(sh, n, text.p, &e) < 0)
            return refuse(b, 400, e.text);
    }
    return buf_str(b, "{}\n") < 0 ? 500 : 200;
}

static int answer_fault(struct shaper *sh, struct slice query, struct buf *b)
{
    struct err e;
    int r = faults_arm(&sh->faults, query, &e);
    if (r < 0)
        return refuse(b, r == ERR_BAD_OPTION ? 400 : 507, e.text);
    r = buf_printf(b, "{\"faults_armed\": %llu}\n", (unsigned long long)faults_armed(&sh->faults));
    return r < 0 ? 500 : 200;
}

int control_answer(struct shaper *sh, struct slice method, struct slice target, struct buf *ret_body)
{
    struct slice query = slice_from(target, sizeof(PREFIX) - 1), name = slice_split(&query, '?');
    bool post = slice_eq_str(method, "POST");
    if (slice_eq_str(name, "stats") && !post)
        return stats_json(&sh->stats, faults_armed(&sh->faults), ret_body) < 0 ? 500 : 200;
    if (slice_eq_str(name, "reset") && post) {
        faults_clear(&sh->faults);
        stats_reset(&sh->stats);
        return buf_str(ret_body, "{}\n") < 0 ? 500 : 200;
    }
    if (slice_eq_str(name, "release") && post) {
        faults_release(&sh->faults);
        return buf_str(ret_body, "{}\n") < 0 ? 500 : 200;
    }
    if (slice_eq_str(name, "fault") && post)
        return answer_fault(sh, query, ret_body);
    if (slice_eq_str(name, "set") && post)
        return answer_set(sh, query, ret_body);
    return refuse(ret_body, 404,
                  "only GET stats, POST reset, POST release, POST fault and POST set are here");
}
