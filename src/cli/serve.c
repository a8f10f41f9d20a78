/*
 * forebay serve: runs a node until it is told to stop.
 *
 * SIGTERM or SIGINT drains and stops cleanly; a second one ends the process at once, which the next start
 * treats as an unclean stop. The ready line goes to stdout, everything else to stderr.
 */
#include "cli/cli.h"

#include "base/log.h"
#include "server/server.h"

#include <signal.h>
#include <string.h>

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
    (void)fprintf(stderr, "forebay serve: %s\n", e->text);
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
    (void)pthread_sigmask(SIG_BLOCK, ret_set, NULL);
}

static int wait_for_signal(const sigset_t *set)
{
    int number = 0;
    while (sigwait(set, &number) != 0)
        ;
    const struct sigaction again = {.sa_handler = stop_at_once};
    (void)sigaction(SIGTERM, &again, NULL);
    (void)sigaction(SIGINT, &again, NULL);
    (void)pthread_sigmask(SIG_UNBLOCK, set, NULL);
    return number;
}

static int run(const struct config *config)
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
    (void)puts(server_ready_line(server));
    (void)fflush(stdout); /* whoever waits for the line reads a pipe */
    int number = wait_for_signal(&set);
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
    int status = run(&config);
    config_fini(&config);
    return status;
}
