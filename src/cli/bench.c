/* forebay bench: finds the measurement. */
#include "cli/bench.h"
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

int cmd_bench(int argc, char **argv)
{
    if (argc > 0 && strcmp(argv[0], "epoch") == 0)
        return bench_epoch(argc - 1, argv + 1);
    bool help = argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0);
    (void)fputs(
        "usage: forebay bench epoch [OPTIONS] DIR\n\n"
        "  epoch   read every file of a directory once per epoch, in shuffled order, as training loops do\n",
        help ? stdout : stderr);
    return help ? 0 : 2;
}
