/* forebay bench: finds the measurement. */
#include "cli/bench.h"
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

static const struct measurement {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *doc;
} measurements[] = {
#define X(function, name, doc) {name, bench_##function, doc},
    BENCH_COMMANDS(X)
#undef X
};

static void print_help(FILE *to)
{
    (void)fputs("usage: forebay bench MEASUREMENT [OPTIONS] ...\n\n", to);
    for (size_t i = 0; i < ARRAY_SIZE(measurements); i++)
        (void)fprintf(to, "  %-12s %s\n", measurements[i].name, measurements[i].doc);
    (void)fputs("\nforebay bench MEASUREMENT --help tells about one.\n", to);
}

int cmd_bench(int argc, char **argv)
{
    if (argc == 0) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        print_help(stdout);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_SIZE(measurements); i++)
        if (strcmp(argv[0], measurements[i].name) == 0)
            return measurements[i].run(argc - 1, argv + 1);
    (void)fprintf(stderr, "forebay bench: %s: no such measurement; forebay bench --help lists them\n",
                  argv[0]);
    return 2;
}
