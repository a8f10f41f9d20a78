/*
 * What commands that talk to a node share: where it is, parsing, messages, progress, recursive walks.
 */
#pragma once

#include "base/option.h"
#include "client/client.h"
#include "client/client_lister.h"

/* First member of such a command's options. */
struct command_node {
    char *data, *socket, *endpoint;
    uint64_t timeout_ms;
    uint32_t connections; /* most at a time; 0: as many as clients usually have */
};

#define COMMAND_NODE_ROWS(owner) COMMAND_NODE_ROWS_AT(owner, node)
/* The same where the struct command_node has another name. */
#define COMMAND_NODE_ROWS_AT(owner, node_)                                                                   \
    {.name = "data",                                                                                         \
     .type = OPTION_STRING,                                                                                  \
     .offset = offsetof(struct owner, node_.data),                                                           \
     .arg = "DIR",                                                                                           \
     .doc = "the node's data directory, where its socket and credentials are"},                              \
        {.name = "socket",                                                                                   \
         .type = OPTION_STRING,                                                                              \
         .offset = offsetof(struct owner, node_.socket),                                                     \
         .arg = "PATH",                                                                                      \
         .doc = "the node's Unix socket"},                                                                   \
        {.name = "endpoint",                                                                                 \
         .type = OPTION_STRING,                                                                              \
         .offset = offsetof(struct owner, node_.endpoint),                                                   \
         .arg = "HOST:PORT",                                                                                 \
         .doc = "the node's wire address, for a node on another machine"},                                   \
    {                                                                                                        \
        .name = "timeout", .type = OPTION_DURATION, .offset = offsetof(struct owner, node_.timeout_ms),      \
        .arg = "TIME", .def = "60s", .min = 100, .max = 86400000,                                            \
        .doc = "how long to wait for a node that does not answer; one that answers others and waits for an " \
               "origin is waited for, by the bucket's property retry, but one without memory for a request " \
               "only so long: it says so after its --request-timeout"                                        \
    }

#define COMMAND_FLAG(owner, field, name_, short_, doc_)                                                      \
    {                                                                                                        \
        .name = (name_), .short_flag = (short_), .type = OPTION_BOOL,                                        \
        .offset = offsetof(struct owner, field), .doc = (doc_)                                               \
    }

struct command_usage {
    const char *command;            /* "forebay ls", also the beginning of error lines */
    const char *operands;           /* "BUCKET[/PREFIX]" */
    const char *about;              /* a paragraph */
    int min_operands, max_operands; /* max -1: any */
};

/* Parses. True: go on with argv[0..*ret_n); false: help or an error was printed, end with *ret_status. */
bool command_parse(const struct command_usage *u, const struct option_table *t, void *opts, int argc,
                   char **argv, int *ret_n, int *ret_status);
/* Prints "forebay ls: TEXT" as one line, whatever names are in it. */
void command_complain(const char *command, const char *text);
/* The same of an error; gives the exit status that fits the code (1, or 2 for ERR_BAD_OPTION). */
int command_fail(const char *command, int code, const struct err *e);
int command_connect(const struct command_node *n, struct client **ret, struct err *e);

/* An error of one of several objects: begins with which one, unless it names it anyway. Gives `code`. */
int command_blame(struct err *e, int code, const char *path);

/* Options as mount(8) gives them: separated by commas, but for those within double quotes. How long the first
 * one is; and the next of *rest, which is changed, NULL at the end. */
size_t command_option_length(const char *text);
char *command_next_option(char **rest);

/* "bucket/key...": cut at the first slash; "forebay://bucket/key" too. -EINVAL when there is no bucket. */
int command_path(const char *text, struct slice *ret_bucket, struct slice *ret_key, struct err *e);

/* A member of what a node said as JSON; 0, also for what is below it, and "" when it is not there. */
struct json_t;
uint64_t command_number(const struct json_t *o, const char *name);
const char *command_text(const struct json_t *o, const char *name);

/* What ends a JSON list of which `began` says whether something was printed: also where the rest cannot be
 * had, so that a program can read what there is. */
void command_json_end(bool began, bool is_whole);

/* Prints the buckets, as `forebay bucket ls` and `forebay ls` do. */
int command_list_buckets(struct client *c, bool json, struct err *e);

/* A line of text for people, or one JSON string: control bytes are shown escaped; JSON holds U+FFFD for what
 * is no UTF-8. */
void command_print_name(FILE *to, struct slice name);
void command_json_string(FILE *to, struct slice s);
/* JSON as it is, but for what terminals take for commands in its strings; the second to standard output. */
void command_json_text(FILE *to, struct slice text);
void command_json_print(const struct json_t *j, size_t flags);

/* Draws over the line before on the terminal that standard error is, no wider than that: what goes on in the
 * next line could not be drawn over. ASCII. */
void command_redraw(struct slice line);

/*
 * Progress of long work: on a terminal one line that is redrawn (objects, bytes, rate, time left), otherwise
 * nothing until the end. total 0: unknown. Any thread may add.
 */
struct progress;
struct progress *progress_new(const char *verb, uint64_t total_objects, uint64_t total_bytes, bool quiet);
void progress_add(struct progress *p, uint64_t objects, uint64_t bytes);
/* More work became known. */
void progress_grow(struct progress *p, uint64_t objects, uint64_t bytes);
/* Ends the line with a summary ("got 2000 objects, 219.6 MiB in 3s, 73.2 MiB/s"), and frees. NULL accepted.
 */
void progress_end(struct progress *p);
/* Frees without a summary. NULL accepted. */
void progress_drop(struct progress *p);
