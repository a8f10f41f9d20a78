/* What the parsers of layouts share. */
#pragma once

#include "object/layout.h"

#define LAYOUT_PLACES_MAX 65536 /* members that are looked at; more: no layout */

/* A growing list of places. */
struct layout_places {
    uint64_t *at;
    size_t n, room;
};

/* false when there are too many. */
bool layout_add(struct layout_places *p, uint64_t at);
void layout_places_fini(struct layout_places *p);
/* Sorts the places, leaves out what is twice there and what is not below `end`, and joins small pieces until
 * they are blocks. NULL when nothing is left, or too much. Takes the places over. */
struct layout *layout_make(enum layout_kind kind, struct layout_places *p, uint64_t end);
/* The same for places that rise already and are not to be joined: every `group` of them is a row. */
struct layout *layout_make_rows(enum layout_kind kind, struct layout_places *p, uint64_t end, uint32_t group);

/* Each as layout_see, for its own kind. */
void layout_see_safetensors(struct layout_look *look, struct slice bytes, uint64_t size, struct layout **ret);
void layout_see_zip(struct layout_look *look, struct slice bytes, uint64_t size, struct layout **ret);
void layout_see_parquet(struct layout_look *look, struct slice bytes, uint64_t size, struct layout **ret);
/* Where the end of an archive, and of a parquet file, is looked at first. */
struct layout_look layout_zip_tail(uint64_t size);
struct layout_look layout_parquet_tail(uint64_t size);
