/*
 * forebay serve: runs a node until it is told to stop.
 *
 * SIGTERM or SIGINT drains and stops cleanly; a second one ends the process at once, which the next start
 * treats as an unclean stop. SIGHUP reads the options again; what is wrong in them is logged and changes
 * nothing, and while the node stops it is of no effect. The ready line goes to stdout, everything else to
 * stderr.
 */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/log.h"
#include "server/server.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static int print_help(void)
{
    _cleanup_buf_ struct buf b = BUF_INIT(64 * KIB);
    if (option_help(&config_table, &b) < 0)
        return 1;
    (void)printf(
        "usage: forebay serve --data DIR [OPTIONS]\n\nRuns a node.\n\n%s\n"
        "Every option can also stand in the file of --config, or in the environment as FOREBAY_NAME.\n",
        b.p);
    return 0;
}

static int complain(const struct err *e, int status)
{
    command_complain("forebay serve", e->text);
    return status;
}

static void stop_at_once(int signal_number)
{
    static const char text[] = "forebay serve: second signal, stopped at once\n";
    (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
    _exit(128 + signal_number);
}

/* Threads of the node inherit the mask, so that only this one is interrupted. */
static void block_signals(sigset_t *ret_set)
{
    sigemptyset(ret_set);
    sigaddset(ret_set, SIGTERM);
    sigaddset(ret_set, SIGINT);
    sigaddset(ret_set, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, ret_set, NULL);
}

/* Where the options came from, to read them again. */
struct sources {
    int argc;
    char **argv;
    struct config *config; /* what holds now */
    struct server *server;
};

static void on_change(void *arg, const struct option *row, const char *from, const char *to)
{
    unsigned *n = arg;
    (*n)++;
    if (row->reloadable)
        log_info("serve", "SIGHUP: %s: %s, was %s", row->name, row->secret ? "***" : to,
                 row->secret ? "***" : from);
    else
        log_warn("serve",
                 "SIGHUP: %s: stays as it was until the next start; it cannot change while the node runs",
                 row->name);
}

static void reload(const struct sources *s)
{
    struct err e = {0};
    struct config fresh;
    unsigned n = 0;
    int old_level = s->config->log_level;
    int k = config_load(&fresh, s->argc, s->argv, &e);
    if (k < 0) {
        log_error("serve", "SIGHUP: nothing changed: %s", e.text);
        return;
    }
    config_adopt(s->config, &fresh, on_change, &n);
    config_fini(&fresh);
    if (n == 0)
        log_info("serve", "SIGHUP: the options are the same");
    if (s->config->log_level != old_level)
        log_set_level((enum log_level)s->config->log_level);
    server_set_options(s->server, s->config);
}

static int wait_for_signal(const sigset_t *set, const struct sources *s)
{
    int number = 0;
    while (sigwait(set, &number) != 0 || number == SIGHUP)
        if (number == SIGHUP)
            reload(s);
    const struct sigaction again = {.sa_handler = stop_at_once};
    sigset_t
        stops; /* not SIGHUP: there is nothing to reload any more, and its default is to end the process */
    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGINT);
    (void)sigaction(SIGTERM, &again, NULL);
    (void)sigaction(SIGINT, &again, NULL);
    (void)pthread_sigmask(SIG_UNBLOCK, &stops, NULL);
    return number;
}

static int run(struct config *config, int argc, char **argv)
{
    struct err e = {0};
    struct server *server = NULL;
    sigset_t set;
    if (config->log_level != LOG_LEVEL_INFO ||
        !getenv("FOREBAY_LOG")) /* the option's default yields to the variable */
        log_set_level((enum log_level)config->log_level);
    block_signals(&set);
    int k = server_start(config, &server, &e);
    if (k < 0)
        return complain(&e, k == ERR_BAD_OPTION ? 2 : 1);
    /* Whoever waits for the line reads a pipe, and gets it at once. That nobody does is no failure of the
     * node. */
    if (dprintf(STDOUT_FILENO, "%s\n", server_ready_line(server)) < 0)
        log_info("serve", "%s", server_ready_line(server));
    const struct sources sources = {argc, argv, config, server};
    int number = wait_for_signal(&set, &sources);
    log_info("serve", "%s: stopping", number == SIGINT ? "SIGINT" : "SIGTERM");
    server_stop(server);
    server_free(server);
    return 0;
}

int cmd_serve(int argc, char **argv)
{
    struct err e = {0};
    struct config config;
    int k = config_load(&config, argc, argv, &e);
    if (k == -ECANCELED)
        return print_help();
    if (k < 0)
        return complain(&e, k == ERR_BAD_OPTION ? 2 : 1);
    int status = run(&config, argc, argv);
    config_fini(&config);
    return status;
}
