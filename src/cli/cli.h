/*
 * The command line: one file per command, one row per command here. A command gets the arguments behind its
 * name and returns the exit status: 0 done, 1 failed, 2 not understood. Its errors are one line on stderr
 * that begins with "forebay COMMAND: ".
 */
#pragma once

/* X(function, name, what --help says) */
#define CLI_COMMANDS(X) X(serve, "serve", "run a node")

#define X(function, name, doc) int cmd_##function(int argc, char **argv);
CLI_COMMANDS(X)
#undef X
