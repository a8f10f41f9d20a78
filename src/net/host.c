/*
 * Names of hosts (contract in host.h). The resolver knows of no timeout of ours: a thread of its own asks it,
 * which ends when that does, and what was asked belongs to whoever lets go of it last.
 *
 * Failure modes: those of the contract. A thread that was given up is there for as long as the resolver asks.
 */
#include "net/host.h"

#include "base/lock.h"
#include "base/quit.h"
#include "base/slice.h"
#include "base/sys.h"
#include "base/thread.h"

#include <inttypes.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#define STACK_BYTES (256 * KIB)

struct asking {
    _Atomic uint32_t refs;
    char *name;
    uint16_t port;
    struct lock lock; /* covers what follows */
    struct cond done_there;
    bool done;
    int failure; /* of getaddrinfo */
    struct addrinfo *found;
};

static int ask(const char *name, uint16_t port, int flags, struct addrinfo **ret)
{
    char service[8];
    (void)snprintf(service, sizeof(service), "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
    return getaddrinfo(name, service, &hints, ret);
}

static void asking_unref(struct asking *x)
{
    if (atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    cond_fini(&x->done_there);
    lock_fini(&x->lock);
    if (x->found)
        freeaddrinfo(x->found);
    free(x->name);
    free(x);
}

static void *ask_main(void *arg)
{
    struct asking *x = arg;
    struct addrinfo *found = NULL;
    int g = ask(x->name, x->port, /* flags= */ 0, &found);
    lock_take(&x->lock);
    x->found = found;
    x->failure = g;
    x->done = true;
    cond_broadcast(&x->done_there);
    lock_drop(&x->lock);
    asking_unref(x);
    return NULL;
}

/* Signals are for the program's own threads, which may block them while this one still waits for a resolver
 * that was given up: libforebay runs in programs of others. */
static int start_thread(struct asking *x)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    int r = thread_start(/* ret= */ NULL, STACK_BYTES, ask_main, x);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

/* Two have it: the caller and the thread. NULL: there is no thread. */
static struct asking *begin(const char *name, uint16_t port)
{
    struct asking *x = calloc(1, sizeof(*x));
    assert(x);
    atomic_init(&x->refs, 2);
    x->name = slice_dup(slice_str(name));
    x->port = port;
    lock_init(&x->lock, LOCK_LEAF);
    cond_init(&x->done_there);
    if (start_thread(x) == 0)
        return x;
    asking_unref(x);
    asking_unref(x);
    return NULL;
}

static int wait_answer(struct asking *x, uint64_t timeout_ms, const atomic_bool *cancel,
                       struct addrinfo **ret, struct err *e)
{
    uint64_t began_ms = sys_mono_ms();
    LOCK_SCOPE(&x->lock);
    while (!x->done) {
        uint64_t patience_ms = quit_patience_ms(timeout_ms);
        if (quit_is_now() || (cancel && atomic_load(cancel)))
            return err_set(e, -ECANCELED, "canceled");
        if (sys_mono_ms() - began_ms >= patience_ms)
            return err_set(e, -ETIMEDOUT, "%s: no answer of the name servers for %" PRIu64 " ms", x->name,
                           patience_ms);
        (void)cond_wait_for(&x->done_there, &x->lock, (uint64_t)QUIT_LOOK_MS * 1000000);
    }
    if (x->failure != 0)
        return err_set(e, -EADDRNOTAVAIL, "%s: %s", x->name, gai_strerror(x->failure));
    *ret = TAKE_PTR(x->found);
    return 0;
}

int host_addresses(const char *name, uint16_t port, uint64_t timeout_ms, const atomic_bool *cancel,
                   struct addrinfo **ret, struct err *e)
{
    int g = ask(name, port, AI_NUMERICHOST, ret);
    if (g == 0)
        return 0;
    if (!name)
        return err_set(e, -EADDRNOTAVAIL, "the loopback: %s", gai_strerror(g));
    struct asking *x = begin(name, port);
    if (!x)
        return err_set(e, -EAGAIN, "%s: no thread to ask for its address", name);
    int r = wait_answer(x, timeout_ms, cancel, ret, e);
    asking_unref(x);
    return r;
}

int host_text(const struct addrinfo *a, char ret[HOST_ADDRESS_MAX], struct err *e)
{
    int g = getnameinfo(a->ai_addr, a->ai_addrlen, ret, HOST_ADDRESS_MAX, NULL, 0, NI_NUMERICHOST);
    return g == 0 ? 0 : err_set(e, -EADDRNOTAVAIL, "%s", gai_strerror(g));
}
