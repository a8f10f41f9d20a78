#include "mount/before.h"

#include "base/log.h"
#include "base/sys.h"
#include "mount/queue.h"
#include "mount/request.h"

#include <stdatomic.h>

#define FIRST_NS 1000000ull
#define MOST_NS  100000000ull
#define TELL_NS  5000000000ull

static struct client *successor; /* a process has one mount */
static _Atomic bool may_run;

static bool is_change(uint32_t op)
{
    return op == WIRE_OP_PUT_COMMIT || op == WIRE_OP_REMOVE || op == WIRE_OP_COPY || op == WIRE_OP_MKDIR ||
           op == WIRE_OP_RMDIR || op == WIRE_OP_SET_META;
}

/* Ends the sessions before. 1: something runs for them; 0: nothing does, or ever will; or an error: the node
 * does not answer, as perhaps it will not answer what waits for this. */
static int something_runs(void)
{
    struct wire_end_siblings_req req = {0};
    struct wire_end_siblings_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_end_siblings(successor, &req, &b, &rep, &e);
    return r < 0 ? r : rep.n > 0;
}

void before_start(struct client *c)
{
    successor = c;
    atomic_store(&may_run, true);
    (void)something_runs();
}

void before_call(uint32_t op)
{
    if (is_change(op) && (request_unique() == 0 || request_comes_again()))
        before_wait();
}

void before_wait(void)
{
    if (!atomic_load(&may_run))
        return;
    queue_may_wait();
    bool told = false;
    uint64_t waited_ns = 0;
    int r;
    for (uint64_t ns = FIRST_NS; (r = something_runs()) > 0; ns = MIN(2 * ns, MOST_NS)) {
        if (!told && waited_ns > TELL_NS)
            log_info("mount", "waiting for what the process before this one asked the node for");
        told = waited_ns > TELL_NS;
        sys->sleep_ns(ns);
        waited_ns += ns;
    }
    if (r == 0)
        atomic_store(&may_run, false);
}
