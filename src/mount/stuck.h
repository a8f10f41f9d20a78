/*
 * Whether a process was killed and cannot end. One of a mount: its first thread is gone, another one waits
 * inside the kernel for something that only a successor can give. None of its threads will run its program
 * again. One that uses the mount: it waits for our answer, and the kernel does not let it go before that.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

bool stuck_is(pid_t pid);
/* Whether that thread was killed and waits for an answer that it will not look at: SIGKILL is pending for it,
 * which any signal that ends a program without a core becomes for each of its threads. Or it has ended, and
 * its process, too: one that has only begun to read (io_submit, io_uring) may end before the answer, for
 * which others of its process wait. *process: 0 in the first call about a request, which finds it out; of a
 * thread that has ended by then nothing is known, and somebody is taken to wait. */
bool stuck_is_gone(pid_t tid, pid_t *process);
/* Whether /proc/TID/status says that SIGKILL is pending for the thread. */
bool stuck_has_kill(const char *status);
/* The state in a line of /proc/PID/task/TID/stat, as proc(5) has it: 'R', 'S', 'D', 'Z'...; 0: it is none.
 * The name of the program stands before it, and may be anything. */
char stuck_state(const char *stat);
