/* What writer.c and writer_upload.c share: one writer. */
#pragma once

#include "object/back.h"
#include "object/object_internal.h"
#include "object/upload_here.h"

#include "base/hasher.h"
#include "store/hard.h"

#include <sys/stat.h>

#define WRITER_MAGIC 0x77726974u

struct writer {
    uint32_t magic;
    _Atomic uint32_t refs;
    struct object_service *service;
    struct upstream *upstream;
    struct extent *extent; /* NULL with is_hard */
    struct arena *arena;   /* strings of the request */
    struct origin_put put;
    char *meta;    /* of `put`, when a commit brought it */
    uint64_t size; /* announced, or UINT64_MAX */
    uint32_t via;
    bool streaming, staged; /* staged: the caller writes through a descriptor */
    bool is_unmapped;       /* as the commit that runs said: WIRE_UNMAPPED */
    bool is_hard;           /* bytes go to a hard extent: write=back and not staged, or of an upload */
    bool brings_md5;        /* with the commit */
    pthread_t uploader;
    int fd;                  /* of a staged hard extent: O_RDWR; else -1 */
    struct upload_here here; /* the upload that this is of; UPLOAD_KEEP */
    struct id128 other;      /* busy: the upload that the commit completes, whose file is another one */
    bool has_other;
    const struct quit *quit;  /* of who opened it: the session's, which outlives it */
    _Atomic uint64_t life_ms; /* when bytes left last in the uploader, monotonic; 0: never */
    atomic_bool cancel;

    struct lock lock; /* covers what follows */
    struct cond moved;
    uint64_t written;   /* bytes put in order so far */
    uint64_t body_size; /* what is being uploaded */
    bool final, started, joined;
    bool done; /* of the uploader: `result` is all that comes */
    int result;
    struct err err;
    bool busy, ended;

    /* The operation that runs (busy): */
    bool uploaded; /* the origin has the first body_size bytes of the file as of `uploaded_stat` */
    struct stat uploaded_stat;
    uint64_t
        refused_ns; /* real time, since when the staged file as of `refused_stat` is not taken; 0: never */
    struct stat refused_stat;
    struct origin_file file; /* as which it was uploaded last */
    bool was_live;           /* it was kept once while it could be changed */
    struct hard *hard;       /* of is_hard, from the first byte on */
    bool is_writing;         /* to it: hard_begin_writing */
    bool is_named;           /* a record names it, or may */
    int fault;               /* of the sync that failed; 0: none did */
    bool hashes;             /* md5 is that of the bytes put in order so far */
    struct hasher_stream md5;
    uint64_t confirmed_ns; /* real time before it was sent */
    uint64_t generation;   /* of the key, as our own last change made it */
    bool answer_is_own;    /* the answer tells of what we sent: not of what was found there later */
    struct arena *answer_arena;
    struct origin_attr answer;
};

/* ---- writer.c ---- */

/* is_here: by this process, so that its word on the MD5 is as good as ours. */
struct writer *writer_new(struct object_service *s, struct upstream *u, bool is_here,
                          const struct wire_put_open_req *q);
/* The writer of a handle, with the right to run an operation on it: writer_leave, then writer_unref. NULL:
 * there is none, or it has ended. */
struct writer *writer_enter(struct object_session *ses, uint64_t handle, struct err *e);
void writer_leave(struct writer *w, bool ended);
/* A hard extent that may be written to, with a descriptor to hand out. */
int writer_begin_staged(struct writer *w, struct err *e);
/* Nobody writes to the hard extent from now on. */
void writer_end_writing(struct writer *w);

/* ---- writer_upload.c ---- */

/* The upload that becomes the object, when there is one: as it is remembered from then on, without its ETag.
 */
bool writer_fill_upload(struct writer *w, const struct wire_put_commit_req *q, struct upload_record *ret);
/* The origin has it, or the record of write-back: the upload is completed, unless that was done with the
 * record. */
void writer_complete_upload(struct writer *w, const struct wire_put_commit_req *q);
/* Of an upload that went to the origin and is completed: its file, by another name, as what may be cached. */
void writer_stage_upload(struct writer *w, uint64_t size);
