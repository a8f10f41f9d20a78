/*
 * forebay: finds the command and runs it. The commands are rows of cli/cli.h.
 */
#include "cli/cli.h"

#include "base/macro.h"

#include <errno.h>
#include <fcntl.h>
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

int main(int argc, char **argv)
{
    keep_standard_descriptors();
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        (void)puts("forebay " FOREBAY_VERSION);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return finish(commands[i].run(argc - 2, argv + 2));
    (void)fprintf(stderr, "forebay: %s: no such command; forebay --help lists them\n", argv[1]);
    return 2;
}
