/*
 * Whether a process was killed and cannot end: its first thread is gone, another one waits inside the kernel
 * for something that only a successor can give. None of its threads will run its program again.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

bool stuck_is(pid_t pid);
/* The state in a line of /proc/PID/task/TID/stat, as proc(5) has it: 'R', 'S', 'D', 'Z'...; 0: it is none.
 * The name of the program stands before it, and may be anything. */
char stuck_state(const char *stat);
