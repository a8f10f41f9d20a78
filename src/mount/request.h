/*
 * Which request of the kernel a thread is working on. Changes that the node is asked for are numbered after
 * it, so that a request which the kernel sends again, because the process that had read it was killed before
 * it answered, is the same change for the node, which makes it once.
 *
 * | offset | size | struct fuse_in_header          |
 * | ------ | ---- | ------------------------------ |
 * | 4      | 4    | opcode                         |
 * | 8      | 8    | unique, bit 63: it comes again |
 * | 32     | 4    | pid of the thread that asks    |
 *
 * Source: include/uapi/linux/fuse.h, protocol 7.40. The kernel counts `unique` by twos.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* n bytes as read from /dev/fuse: what this thread works on until it reads the next one. */
void request_begin(const void *request, size_t n);
/* 0: this thread works on none. */
uint64_t request_unique(void);
/* The thread that asks, as /proc here has it; 0: this one works on none, or whoever asks cannot be seen. */
pid_t request_asker(void);
/* Where it is noted which process that thread is of, once it was looked for (stuck.h); 0: not yet. */
pid_t *request_process(void);
/* Whether it is one whose answer nobody needs when whoever asks is gone: nothing is changed by it. */
bool request_is_question(void);
/* The kernel sends it again: what it asks for may have been done. */
bool request_comes_again(void);
/* The number of the next change that the request asks for, at most REQUEST_CHANGES of them; 0: this thread
 * works on none. */
#define REQUEST_CHANGES 4
uint64_t request_next_change(void);
