/*
 * What others change in a mirror bucket, as the node tells it (WATCH_NAMES), is passed on to the kernel: it
 * asks again for the name, whether it was there or not, and for its attributes, instead of believing them
 * until the mount's attribute timeout is over.
 *
 * The node does not wait for that: its answer to who made the change, and the kernel's hearing of it, are
 * some microseconds apart, or as long as a program's own request about the same directory takes.
 */
#pragma once

#include "base/slice.h"

#include <stdbool.h>
#include <stdint.h>

struct inval;
struct mount;
struct node;

struct inval *inval_new(struct mount *m); /* never NULL */
/* Begins to listen, unless the kernel believes nothing. After the notifier, which does what follows. */
void inval_start(struct inval *v);
/* Ends it; from here on nothing is passed on. */
void inval_end(struct inval *v);
void inval_free(struct inval *v); /* NULL accepted */

/* To be read before the node is asked about a name. */
uint64_t inval_serial(const struct inval *v);
/* Whether an answer of then about the name that stat shows by this number is one of now. */
bool inval_is_current(struct inval *v, uint64_t serial, uint64_t ino);
/* After the kernel was given an answer about a name in the directory that may be of that time: it is told to
 * ask again if the name was told of since, because the kernel did not have the answer then. */
void inval_check(struct inval *v, uint64_t serial, struct node *dir, struct slice name);
/* The same of the name that a node has, after an entry of a listing was given with its attributes. */
void inval_check_node(struct inval *v, uint64_t serial, struct node *n);
