/*
 * Unfinished uploads: those in parts that the node drives itself, of a large put or copy, and what goes
 * through (through.c). The service keeps the parts of one, and wants money for them, until it is completed or
 * aborted, also when the node was killed. So each has a record from the moment it has a name at the service;
 * one that a run before has left, or that could not be aborted, is aborted when its place is at hand: a
 * bucket with the same origin, or a job's URL. (Uploads of clients have their own: namespace/upload.h.)
 *
 * Key in the control store: "n/left/", place (16 bytes: MD5 of the origin's URL and of what else says where
 * it is, without credentials), a random number (8 bytes). Value, numbers little endian:
 *
 * | offset | size | record                                  |
 * | ------ | ---- | --------------------------------------- |
 * | 0      | 1    | format: 1                               |
 * | 1      | 2+n  | key below the origin's prefix           |
 * |        | 2+n  | id of the upload, as the service said it |
 *
 * Failure modes: a node that is killed between the service's answer and the record, and power loss, leave one
 * that nobody knows, and so does a record that cannot be written: the origin's own rule for unfinished
 * uploads removes it. A record too many costs one request: the service does not know the upload any more.
 *
 * Threads: any. No lock is held while an origin or the control store is asked.
 */
#pragma once

#include "namespace/upstream.h"

struct object_service;
struct unfinished;

/* Reads what is left. */
int unfinished_open(struct object_service *s, struct unfinished **ret, struct err *e);
void unfinished_close(struct unfinished *t);
/* What this origin begins is noted from now on (origin_note_upload). Before others have the upstream, which
 * is closed before the table. */
void unfinished_watch(struct unfinished *t, struct upstream *u);
/* Aborts what is left at the upstream's place, each by one try; after the first failure no more, and the next
 * time that one comes last. 0, or that failure. */
int unfinished_tidy(struct unfinished *t, struct upstream *u);
/* The same for all buckets: 2 s after one was left, then after twice as long each time, up to once a minute.
 * The steward's. */
void unfinished_turn(struct object_service *s);
/* How many are left that nobody works on. */
size_t unfinished_left(struct unfinished *t);
