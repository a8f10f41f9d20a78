/*
 * forebay: finds the command and runs it. The commands are rows of cli/cli.h.
 */
#include "cli/cli.h"
#include "cli/mount_helper.h"

#include "base/macro.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *doc;
} commands[] = {
#define X(function, name, doc) {name, cmd_##function, doc},
    CLI_COMMANDS(X)
#undef X
};

static void print_help(FILE *to)
{
    (void)fputs("usage: forebay COMMAND [OPTIONS]\n\n", to);
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        (void)fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].doc);
    (void)fputs("\nforebay COMMAND --help tells about a command; forebay --version about this program.\n",
                to);
}

/* A standard descriptor that the caller has closed would be given out again, to a socket or to a file of the
 * store, and what is printed would go there. What takes its place refuses, as the closed one did. */
static void keep_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            _exit(1);
}

/* The last word on what was printed: a list that a full disk cut short is no success. */
static int finish(int status)
{
    bool failed = fflush(stdout) != 0 || ferror(stdout) != 0;
    failed = (close(STDOUT_FILENO) < 0 && errno != EBADF) || failed;
    if (!failed || status != 0)
        return status;
    (void)fputs("forebay: standard output: not all of it could be written\n", stderr);
    return 1;
}

/* Whether "NAME=VALUE" says something that is nobody else's business: origin.secret_key, events.token... */
static bool is_secret(const char *argument)
{
    static const char *const words[] = {"secret", "token", "_key", ".sas"};
    size_t n = strcspn(argument, "=");
    bool is = false;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const char *at = strstr(argument, words[i]);
        is = is || (at && (size_t)(at - argument) < n);
    }
    return is && argument[n] == '=';
}

/* Overwrites the value of "NAME=VALUE", also behind "--set=", when it is a secret. */
static void hide(char *argument)
{
    char *value = strchr(argument, '=');
    if (value && !is_secret(argument) && strncmp(argument, "--", 2) == 0) {
        argument = value + 1;
        value = strchr(argument, '=');
    }
    if (value && is_secret(argument))
        memset(value + 1, '*', strlen(value + 1));
}

/* Runs it with a copy of its arguments. Those that the process was started with are there for every user of
 * the machine to see, for as long as a command waits. */
static int run(const struct command *c, int argc, char **argv)
{
    size_t bytes = 0;
    for (int i = 0; i < argc; i++)
        bytes += strlen(argv[i]) + 1;
    char **own = calloc((size_t)argc + 1, sizeof(*own)), *text = malloc(bytes), *at = text;
    if (!own || !text)
        abort();
    for (int i = 0; i < argc; i++) {
        own[i] = at;
        at = stpcpy(at, argv[i]) + 1;
        hide(argv[i]);
    }
    int status = finish(c->run(argc - 2, own + 2));
    free(own);
    free(text);
    return status;
}

int main(int argc, char **argv)
{
    keep_standard_descriptors();
    (void)signal(SIGXFSZ, SIG_IGN); /* what `ulimit -f` forbids is one write's error, EFBIG */
    if (argc > 0 && mount_helper_is(argv[0]))
        return finish(mount_helper_run(argc, argv));
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return finish(0);
    }
    if (strcmp(argv[1], "--version") == 0) {
        (void)puts("forebay " FOREBAY_VERSION);
        return finish(0);
    }
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return run(&commands[i], argc, argv);
    if (argv[1][0] == '-')
        (void)fprintf(stderr, "forebay: %s: options stand behind the command: forebay COMMAND %s\n", argv[1],
                      argv[1]);
    else
        (void)fprintf(stderr, "forebay: %s: no such command; forebay --help lists them\n", argv[1]);
    return 2;
}
