/* What a watch of names brings, for tests. */
#pragma once

#include "net/wire_names.h"
#include "node_fixture.h"

#include <endian.h>
#include <poll.h>
#include <unistd.h>

struct names_told {
    char text[4096]; /* " key" or " -key" of what is gone, of each record */
};

static inline void on_name_told(void *arg, struct slice key, uint32_t flags)
{
    struct names_told *t = arg;
    size_t n = strlen(t->text);
    (void)snprintf(t->text + n, sizeof(t->text) - n, " %s" SLICE_FMT, flags & WIRE_NAME_GONE ? "-" : "",
                   SLICE_ARG(key));
}

/* What is in the pipe by now. */
static inline struct names_told names_told(int fd)
{
    struct names_told t = {0};
    struct wire_names reader = {0};
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t word;
    while (poll(&p, 1, 0) == 1) {
        assert_int_equal(read(fd, &word, sizeof(word)), sizeof(word));
        word = le64toh(word);
        assert_int_equal(wire_names_take(&reader, &word, 1, on_name_told, &t), 0);
    }
    return t;
}

/* Begins a watch of all names of "data". */
static inline struct wire_watch_names_rep watch_names(struct fixture *f)
{
    struct wire_watch_names_req req = {.bucket = SLICE_LIT("data")};
    struct wire_watch_names_rep rep;
    assert_int_equal(object_watch_names(f->session, &req, f->arena, &rep, NULL), 0);
    return rep;
}
