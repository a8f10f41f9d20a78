/*
 * The namespace of mirror buckets: the origin is the truth; attributes and pages of listings are remembered
 * as long as the bucket's `validate` allows. A listing of a directory fills the attributes of all its
 * entries.
 *
 * Directories are prefixes. Seen as a file system (WIRE_POSIX), a key names a file, or a directory when keys
 * lie below it or a marker object "key/" exists. Where both exist a listing shows the directory alone; a
 * question for the name finds what was heard last, and asks the origin for the file first. Names that a
 * directory cannot hold (empty, ".", "..", over 255 bytes, with a NUL) are left out of POSIX listings and
 * counted.
 */
#pragma once

#include "namespace/attr.h"
#include "namespace/bucket.h"
#include "namespace/upstream.h"

struct mirror;

struct mirror *mirror_new(uint64_t cache_bytes);
void mirror_free(struct mirror *m);
DEFINE_CLEANUP(struct mirror, mirror_free)

/* `fn` is called after each mirror_learn that may have changed what is remembered, by its thread, and must
 * not call it. is_news: of the key something else was remembered, which is found out only while `listens`
 * says so; is_gone: an object or a directory, and now there is neither. Set before the first. */
typedef bool (*mirror_listens_fn)(void *arg);
typedef void (*mirror_learned_fn)(void *arg, const struct bucket *b, struct slice key, bool is_news,
                                  bool is_gone);
void mirror_on_learned(struct mirror *m, mirror_listens_fn listens, mirror_learned_fn fn, void *arg);

/* Whether what the origin said of the key at confirmed_ns (real time) may be used without asking again. */
bool mirror_is_fresh(const struct bucket *b, struct slice key, uint64_t confirmed_ns, bool is_absent);
/* The same of a listing of the prefix: which names there are. */
bool mirror_listing_is_fresh(const struct bucket *b, struct slice prefix, uint64_t fetched_ns);
/* For how long from now that will be so for something that exists; UINT64_MAX: for ever. */
uint64_t mirror_valid_ms(const struct bucket *b, struct slice key, uint64_t confirmed_ns);

/* What is remembered and fresh enough by the bucket's policy; -ENOENT when nothing is. No I/O. Slices in the
 * arena. */
int mirror_recall(struct mirror *m, const struct bucket *b, struct slice key, struct arena *a,
                  struct attr *ret);
/* As mirror_recall without regard to age: what was last heard. */
int mirror_recall_stale(struct mirror *m, const struct bucket *b, struct slice key, struct arena *a,
                        struct attr *ret);
/* What was known of a key is about to be forgotten, because it is written: kept for mirror_recall_before,
 * which tells of the origin as it last was, and answers nothing else. */
void mirror_note_before(struct mirror *m, const struct bucket *b, struct slice key, const struct attr *attr);
int mirror_recall_before(struct mirror *m, const struct bucket *b, struct slice key, struct arena *a,
                         struct attr *ret);
/* `seen` is from mirror_generation before the origin was asked: an answer that a local write has overtaken
 * meanwhile is not remembered. */
void mirror_learn(struct mirror *m, const struct bucket *b, struct slice key, const struct attr *attr,
                  uint64_t seen);
uint64_t mirror_generation(struct mirror *m, const struct bucket *b, struct slice key);
/* A local write, removal or rename of key: forgets it, its parents' listings, and bumps the generation. */
/* Gives the generation it made: as long as that is current nobody else has changed the key. */
uint64_t mirror_changed(struct mirror *m, const struct bucket *b, struct slice key);
/* Everything of a bucket and of no other: these may have an origin that is away, and nothing else to tell of
 * it. Kept is what mirror_recall_before tells. */
void mirror_forget_bucket(struct mirror *m, const struct bucket *b);

/* Fresh attributes, asking the origin where needed. posix: also directories. full: content type and meta are
 * wanted, of a directory the meta of its marker. -ENOENT. */
int mirror_stat(struct mirror *m, struct upstream *u, struct slice key, bool posix, bool full, bool fresh,
                struct arena *a, struct attr *ret, struct err *e);
/* Whether mirror_stat would not ask the origin. */
bool mirror_knows(struct mirror *m, const struct bucket *b, struct slice key, bool posix, bool full,
                  struct arena *a);
/* What mirror_stat said of the key before, however long ago; -ENOENT: nothing, or that it is not there. */
int mirror_stat_before(struct mirror *m, const struct bucket *b, struct slice key, bool posix, bool full,
                       struct arena *a, struct attr *ret);
/* One page of a listing as in wire_ops.h LIST. Entries are encoded struct wire_entry. One that was listed
 * before, and nothing changed here since, is given where the origin does not answer, however long ago; but
 * not where listings are always asked for, nor with WIRE_FRESH, as jobs ask, which say what is there. */
int mirror_list(struct mirror *m, struct upstream *u, const struct wire_list_req *req, struct arena *a,
                struct wire_list_rep *ret, struct err *e);
/* 0 when the directory `key` (no trailing slash) has no keys below it but its marker, whose size, time and
 * ETag *ret has then, as listings tell them; -ENOTEMPTY, -ENOENT. Always asks the origin. */
int mirror_check_empty(struct upstream *u, struct slice key, struct arena *a, struct origin_attr *ret,
                       struct err *e);
/* Whether a file system can hold this key: every component legal. */
bool mirror_key_is_path(struct slice key);
