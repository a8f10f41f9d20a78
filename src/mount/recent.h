/*
 * Which names the node told of lately, by the number that stat shows for them (node_ino): an answer about a
 * name that was asked for before, and is given afterwards, may be of the time before.
 *
 * All functions may be called by any thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define RECENT_MAX 1024 /* names; of more than that any may have been told of */

struct recent;

struct recent *recent_new(void); /* never NULL */
void recent_free(struct recent *r);

/* To be read before the node is asked. */
uint64_t recent_serial(const struct recent *r);
void recent_note(struct recent *r, uint64_t ino);
void recent_note_all(struct recent *r);
/* Whether the name may have been told of since then. */
bool recent_has(struct recent *r, uint64_t serial, uint64_t ino);
