/*
 * Uploads in parts that this process works on: who runs, and the copy of the bytes that may become the cached
 * object. What is true of an upload is in the control store (namespace/upload.h); all of this may be lost.
 *
 * Any thread.
 */
#pragma once

#include "namespace/upload.h"
#include "object/part_send.h"

struct upload_slot;

/* A part on its way, embedded by who sends it, or has the origin copy it. */
struct upload_way {
    struct upload_way *next;
    struct part_send *send; /* or */
    atomic_bool *stop_copy; /* set once it is to be given up; it is on its way until upload_slot_unsend */
};

/* The slot of an upload, made when there is none. Leave with upload_slot_put. */
struct upload_slot *upload_slot_get(struct object_service *s, uint64_t bucket, struct id128 id);
void upload_slot_put(struct object_service *s, struct upload_slot *slot);

/* A part begins: -ENOENT while the upload is being completed or aborted. */
int upload_slot_enter(struct object_service *s, struct upload_slot *slot, struct err *e);
void upload_slot_leave(struct object_service *s, struct upload_slot *slot);
/* What sends it, so that an abort can stop that: from now on until upload_slot_unsend, at the latest before
 * the sender is freed. -ENOENT as above. */
int upload_slot_send(struct object_service *s, struct upload_slot *slot, struct upload_way *w,
                     struct part_send *send, struct err *e);
/* The same of a copy: the origin may have all of it at any time. */
int upload_slot_copy(struct object_service *s, struct upload_slot *slot, struct upload_way *w,
                     atomic_bool *stop, struct err *e);
/* Also of one that is none. */
void upload_slot_unsend(struct object_service *s, struct upload_slot *slot, struct upload_way *w);
/* Whether a part of the upload is on its way now. Makes no slot. */
bool upload_slots_busy(struct object_service *s, uint64_t bucket, struct id128 id);
/* No part can begin any more. Those that still come are waited for by nobody: an end is about parts that were
 * acknowledged. ERR_CONFLICT: someone else is at it. */
int upload_slot_close(struct object_service *s, struct upload_slot *slot, struct err *e);
/* Of a closed one, before its end goes to the origin: parts that still come are stopped, and their next piece
 * is refused. Parts of which the origin may have all bytes, and copies, get five seconds to end; afterwards
 * nothing of the upload is sent to the origin any more. What that goes on copying by itself nobody stops. */
void upload_slot_stop(struct object_service *s, struct upload_slot *slot);
/* Of a closed one: it was completed, or is being aborted. What parts come to that were stopped is that there
 * is no such upload; before, nobody knows, and they may come again. */
void upload_slot_end(struct object_service *s, struct upload_slot *slot);
bool upload_slot_has_ended(struct object_service *s, struct upload_slot *slot);
/* Of an upload that is still there. */
void upload_slot_reopen(struct object_service *s, struct upload_slot *slot);

/* Copies that nothing was added to for an hour: their room is worth more. The steward's. */
void upload_slots_drop_idle(struct object_service *s);
/* The copies of a bucket that was removed. */
void upload_slots_forget(struct object_service *s, uint64_t bucket);

/* ---- the copy: as long as parts of equal size come, but for the last, and there is room ---- */

/* Uploads that have one at the same time: each is an open file, and some 10 KiB. Others go on without. */
#define UPLOAD_COPIES_MAX 1024

struct upload_stage {
    struct extent *extent; /* NULL: the part is not copied */
    uint64_t offset;
    uint32_t number;
};
void upload_stage_begin(struct object_service *s, struct upload_slot *slot, struct upstream *u,
                        struct slice key, uint32_t number, uint64_t size, struct upload_stage *ret);
void upload_stage_write(struct object_service *s, struct upload_slot *slot, struct upload_stage *g,
                        uint64_t at, struct slice data);
/* ok: the origin has the part, and all of it was copied. */
void upload_stage_end(struct object_service *s, struct upload_slot *slot, struct upload_stage *g, bool ok);
/* The whole object's bytes, when the copy has exactly these parts (numbers 1 to n of these sizes): a
 * reference, else NULL. The slot has no copy any more. */
struct extent *upload_stage_take(struct object_service *s, struct upload_slot *slot, const uint32_t *numbers,
                                 const uint64_t *sizes, size_t n);
