/* layer: server */
/* The timer wheel: what is late is shut down, what is busy or has moved its deadline is not, over any span of
 * time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/conn.h"

#include <sys/socket.h>

enum { START = 1000000 };

struct pair {
    struct conn *c;
    int peer;
};

static struct pair make(struct conn_table *t, uint64_t now_ms)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    return (struct pair){conn_new(t, fds[0], CONN_HTTP, now_ms), fds[1]};
}

static void drop(struct conn_table *t, struct pair *p)
{
    (void)close(p->peer);
    conn_free(t, p->c);
}

/* Whether the sweep ended the stream of the connection. */
static bool is_shut(const struct pair *p)
{
    char c;
    bool eof = recv(p->c->fd, &c, 1, MSG_DONTWAIT) == 0;
    assert_int_equal(eof, atomic_load(&p->c->expired));
    return eof;
}

/* Of two who have an event of one connection one gets it, and is told that there was another. */
static void is_claimed_by_one(void **state)
{
    struct conn_table t;
    conn_table_init(&t, START);
    struct pair p = make(&t, START);
    assert_false(conn_claim(p.c, /* hung_up= */ false)); /* who made it owns it, and is told */
    assert_false(conn_claim(p.c, /* hung_up= */ false));
    assert_false(conn_let_go(p.c));
    assert_true(conn_let_go(p.c));
    assert_true(conn_claim(p.c, /* hung_up= */ false));
    assert_true(conn_let_go(p.c));
    assert_true(conn_claim(p.c, /* hung_up= */ false));
    drop(&t, &p);
    conn_table_fini(&t);
}

/* The owner hears of an end, also when it was told of something else before. (Seen to fail where conn_claim
 * leaves no second note.) */
static void an_end_is_told_to_the_owner(void **state)
{
    struct conn_table t;
    conn_table_init(&t, START);
    struct pair p = make(&t, START);
    assert_false(conn_claim(p.c, /* hung_up= */ true));
    assert_false(conn_let_go(p.c));
    assert_true(atomic_exchange(&p.c->hung_up, false));
    assert_false(conn_claim(p.c, /* hung_up= */ false));
    assert_false(conn_claim(p.c, /* hung_up= */ true));
    assert_false(conn_let_go(p.c));
    assert_true(atomic_exchange(&p.c->hung_up, false));
    assert_true(conn_let_go(p.c));
    assert_true(conn_claim(p.c, /* hung_up= */ false));
    assert_false(atomic_load(&p.c->hung_up));
    drop(&t, &p);
    conn_table_fini(&t);
}

/* Who has an event of a connection that is no more, or of another one by now, harms nobody. */
static void outlives_its_events(void **state)
{
    struct conn_table t;
    conn_table_init(&t, START);
    struct pair p = make(&t, START);
    struct conn *before = p.c;
    p.c->head_deadline_ms = 1;
    drop(&t, &p);
    assert_false(conn_claim(before, /* hung_up= */ false));
    p = make(&t, START);
    assert_ptr_equal(p.c, before);
    assert_true(p.c->head_deadline_ms == 0 && p.c->pending == NULL && !p.c->watched);
    assert_true(conn_let_go(p.c));
    assert_true(conn_claim(before, /* hung_up= */ false)); /* its thread looks in vain, and lets it go */
    assert_true(conn_let_go(p.c));
    assert_true(conn_claim(p.c, /* hung_up= */ false));
    drop(&t, &p);
    conn_table_fini(&t);
}

/* A deadline is kept to a tick, neither early nor late, near and far beyond the span of the wheel. */
static void keeps_deadlines_to_a_tick(void **state)
{
    static const uint64_t spans_ms[] = {1,      249,    250,    251,    5000,    127999,
                                        128000, 128250, 200000, 600000, 86400000};
    for (size_t i = 0; i < ARRAY_SIZE(spans_ms); i++) {
        struct conn_table t;
        uint64_t now_ms = START, end_ms = START + spans_ms[i];
        conn_table_init(&t, now_ms);
        struct pair p = make(&t, now_ms);
        conn_set_deadline(&t, p.c, end_ms, /* exact= */ true);
        for (; now_ms < end_ms; now_ms += CONN_TICK_MS) {
            conn_table_sweep(&t, now_ms);
            assert_false(is_shut(&p));
        }
        conn_table_sweep(&t, end_ms + 2 * (uint64_t)CONN_TICK_MS);
        assert_true(is_shut(&p));
        drop(&t, &p);
        conn_table_fini(&t);
    }
}

/* Moving a deadline away needs no lock and no move; the connection lives on until the new one. */
static void follows_deadlines_that_move_away(void **state)
{
    struct conn_table t;
    uint64_t now_ms = START;
    conn_table_init(&t, now_ms);
    struct pair p = make(&t, now_ms);
    for (int request = 0; request < 1000; request++) {
        conn_set_busy(p.c);
        conn_set_deadline(&t, p.c, now_ms + 1000, /* exact= */ false);
        now_ms += 900;
        conn_table_sweep(&t, now_ms);
        assert_false(is_shut(&p));
    }
    conn_table_sweep(&t, now_ms + 2000);
    now_ms += 3000;
    conn_table_sweep(&t, now_ms);
    assert_true(is_shut(&p));
    drop(&t, &p);
    conn_table_fini(&t);
}

/* A deadline that comes nearer is kept when it is set exactly: a head that begins on an idle connection. */
static void follows_exact_deadlines_that_come_nearer(void **state)
{
    struct conn_table t;
    conn_table_init(&t, START);
    struct pair p = make(&t, START);
    conn_set_deadline(&t, p.c, START + 100000, /* exact= */ true);
    conn_table_sweep(&t, START + 1000);
    conn_set_deadline(&t, p.c, START + 2000, /* exact= */ true);
    conn_table_sweep(&t, START + 1900);
    assert_false(is_shut(&p));
    conn_table_sweep(&t, START + 2500);
    assert_true(is_shut(&p));
    drop(&t, &p);
    conn_table_fini(&t);
}

/* A busy connection is never shut, however long it is busy, and is seen again afterwards. */
static void leaves_busy_connections_alone(void **state)
{
    struct conn_table t;
    conn_table_init(&t, START);
    struct pair p = make(&t, START);
    uint64_t now_ms = START;
    for (int i = 0; i < 5000; i++)
        conn_table_sweep(&t, now_ms += CONN_TICK_MS);
    assert_false(is_shut(&p));
    conn_set_deadline(&t, p.c, now_ms + 10, /* exact= */ false);
    for (int i = 0; i < 20; i++) /* it is looked at again within 8 ticks */
        conn_table_sweep(&t, now_ms += CONN_TICK_MS);
    assert_true(is_shut(&p));
    drop(&t, &p);
    conn_table_fini(&t);
}

/* A response whose peer takes a little in each span goes on, for as long as it does, and is shut one span
 * after the last byte was taken. Without the look at the socket's queue it is shut after the first span. */
static void slow_peers_are_waited_for(void **state)
{
    struct conn_table t;
    uint64_t now_ms = START;
    char piece[4096] = {0};
    conn_table_init(&t, now_ms);
    struct pair p = make(&t, now_ms);
    for (int i = 0; i < 8; i++)
        assert_int_equal(send(p.c->fd, piece, sizeof(piece), 0), sizeof(piece));
    conn_set_busy(p.c);
    p.c->phase = CONN_REST;
    conn_wait_for_room(&t, p.c, now_ms, 10000);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(recv(p.peer, piece, sizeof(piece), 0), sizeof(piece));
        for (int tick = 0; tick < 42; tick++)
            conn_table_sweep(&t, now_ms += CONN_TICK_MS);
        assert_false(is_shut(&p));
    }
    for (int tick = 0; tick < 42; tick++)
        conn_table_sweep(&t, now_ms += CONN_TICK_MS);
    assert_true(is_shut(&p));
    drop(&t, &p);
    conn_table_fini(&t);
}

/* CONN_NEVER is never. */
static void never_is_never(void **state)
{
    struct conn_table t;
    conn_table_init(&t, START);
    struct pair p = make(&t, START);
    conn_set_deadline(&t, p.c, CONN_NEVER, /* exact= */ false);
    for (uint64_t now_ms = START; now_ms < START + 10000000; now_ms += 10000)
        conn_table_sweep(&t, now_ms);
    assert_false(is_shut(&p));
    drop(&t, &p);
    conn_table_fini(&t);
}

/* A clock that jumps over the whole wheel ends what is late and loses nothing. */
static void survives_jumps_of_the_clock(void **state)
{
    struct conn_table t;
    conn_table_init(&t, START);
    struct pair late = make(&t, START), alive = make(&t, START);
    uint64_t jump_ms = START + 3 * (uint64_t)CONN_SLOTS * CONN_TICK_MS;
    conn_set_deadline(&t, late.c, START + 100000, /* exact= */ true);
    conn_set_deadline(&t, alive.c, jump_ms + 5000, /* exact= */ true);
    conn_table_sweep(&t, jump_ms);
    assert_true(is_shut(&late));
    assert_false(is_shut(&alive));
    for (uint64_t now_ms = jump_ms; now_ms < jump_ms + (uint64_t)CONN_SLOTS * CONN_TICK_MS + 10000;
         now_ms += CONN_TICK_MS)
        conn_table_sweep(&t, now_ms);
    assert_true(is_shut(&alive));
    drop(&t, &late);
    drop(&t, &alive);
    conn_table_fini(&t);
}

/* Many connections with deadlines all over: each is shut by its own, none by another's. */
static void keeps_many_apart(void **state)
{
    enum { N = 400 };
    struct conn_table t;
    struct pair pairs[N];
    conn_table_init(&t, START);
    for (int i = 0; i < N; i++) {
        pairs[i] = make(&t, START);
        conn_set_deadline(&t, pairs[i].c, START + 1 + (uint64_t)(i * 7919 % N) * 500, /* exact= */ true);
    }
    for (uint64_t now_ms = START; now_ms < START + N * 500 + 1000; now_ms += CONN_TICK_MS) {
        conn_table_sweep(&t, now_ms);
        for (int i = 0; i < N; i++) {
            uint64_t deadline_ms = START + 1 + (uint64_t)(i * 7919 % N) * 500;
            bool shut = is_shut(&pairs[i]);
            assert_true(shut ? now_ms >= deadline_ms : now_ms < deadline_ms + 2 * (uint64_t)CONN_TICK_MS);
        }
    }
    conn_table_shutdown(&t, /* busy_too= */ true);
    for (int i = 0; i < N; i++)
        drop(&t, &pairs[i]);
    conn_table_fini(&t);
}

static bool is_ended(const struct pair *p)
{
    char c;
    return recv(p->c->fd, &c, 1, MSG_DONTWAIT) == 0;
}

static bool can_answer(const struct pair *p)
{
    return send(p->c->fd, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

/* Of the connections whose threads wait, those are cut that moved next to nothing meanwhile, and no more than
 * are asked for; one that receives can still answer. (Seen to fail: SHUT_RDWR or SHUT_RD for all in
 * cut_locked, or its result ignored.) */
static void cuts_slow_clients_only(void **state)
{
    const uint64_t waited_ms = SLOW_GRACE_MS + 10000, enough = SLOW_BYTES_PER_S * 10;
    struct conn_table t;
    conn_table_init(&t, START);
    struct pair idle = make(&t, START), fast = make(&t, START), begun = make(&t, START),
                sends = make(&t, START), slow = make(&t, START), slower = make(&t, START);
    struct pair *const waits[] = {&fast, &begun, &sends, &slow, &slower};
    for (size_t i = 0; i < ARRAY_SIZE(waits); i++)
        waits[i]->c->pace.since_ms = START;
    idle.c->pace.waited_ms = 1000000;
    fast.c->pace.bytes = enough;
    begun.c->pace.since_ms = START + 10001;
    sends.c->pace.step = enough; /* it may have taken nearly all of it */
    slow.c->pace.bytes = enough - 1;
    assert_int_equal(conn_table_cut_slow(&t, START + waited_ms, 10, /* of_holders= */ true), 0);
    assert_int_equal(conn_table_cut_slow(&t, START + waited_ms, 1, /* of_holders= */ false), 1);
    assert_int_equal(is_ended(&slow) + is_ended(&slower), 1);
    assert_int_equal(conn_table_cut_slow(&t, START + waited_ms, 1, /* of_holders= */ false),
                     0); /* it counts until it waits no more */
    assert_int_equal(conn_table_cut_slow(&t, START + waited_ms, 10, /* of_holders= */ false), 1);
    assert_true(is_ended(&slow) && is_ended(&slower));
    assert_false(is_ended(&idle) || is_ended(&fast) || is_ended(&begun) || is_ended(&sends));
    assert_true(can_answer(&slow) && can_answer(&slower) && can_answer(&sends));
    sends.c->pace.step = 1;
    assert_int_equal(conn_table_cut_slow(&t, START + waited_ms, 10, /* of_holders= */ false), 1);
    assert_true(is_ended(&sends) && !can_answer(&sends));
    drop(&t, &idle);
    drop(&t, &fast);
    drop(&t, &begun);
    drop(&t, &sends);
    drop(&t, &slow);
    drop(&t, &slower);
    conn_table_fini(&t);
}

/* Draining shuts those that wait for a request, and leaves alone those that run one or send a rest. */
static void draining_ends_only_what_waits(void **state)
{
    struct conn_table t;
    conn_table_init(&t, START);
    struct pair waits = make(&t, START), busy = make(&t, START), rest = make(&t, START);
    conn_set_deadline(&t, waits.c, START + 100000, /* exact= */ false);
    rest.c->phase = CONN_REST;
    conn_set_deadline(&t, rest.c, START + 100000, /* exact= */ true);
    conn_table_shutdown(&t, /* busy_too= */ false);
    assert_true(is_shut(&waits));
    assert_false(is_shut(&busy));
    assert_false(is_shut(&rest));
    conn_table_shutdown(&t, /* busy_too= */ true);
    assert_true(is_shut(&busy));
    assert_true(is_shut(&rest));
    drop(&t, &waits);
    drop(&t, &busy);
    drop(&t, &rest);
    conn_table_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_claimed_by_one),
        cmocka_unit_test(an_end_is_told_to_the_owner),
        cmocka_unit_test(outlives_its_events),
        cmocka_unit_test(keeps_deadlines_to_a_tick),
        cmocka_unit_test(follows_deadlines_that_move_away),
        cmocka_unit_test(follows_exact_deadlines_that_come_nearer),
        cmocka_unit_test(leaves_busy_connections_alone),
        cmocka_unit_test(never_is_never),
        cmocka_unit_test(slow_peers_are_waited_for),
        cmocka_unit_test(survives_jumps_of_the_clock),
        cmocka_unit_test(keeps_many_apart),
        cmocka_unit_test(draining_ends_only_what_waits),
        cmocka_unit_test(cuts_slow_clients_only),
    };
    return cmocka_run_group_tests_name("server_conn", tests, NULL, NULL);
}
