/*
 * Power loss at the file-call table. Calls on files below one directory are carried out on the real files and
 * recorded until a sync covers them; crash_sys_crash then puts the real files into a state that a disk may
 * hold after the power went:
 *
 *  - what fsync, fdatasync, syncfs or an O_SYNC descriptor covered is there;
 *  - of the bytes written since, any 4 KiB pages are there, and some pages only in part (512-byte sectors);
 * of the changes of size and the punched holes since, any; a file may have its new length and zeros for
 * bytes;
 *  - of the names made, renamed and removed since, either the first so many in order (a journalling file
 * system) or any that do not build upon a lost one (POSIX promises no more). fsync of a file covers its
 * bytes, not its name; fsync of a directory covers the names in it; syncfs covers everything.
 *
 * A crash sweep reads:
 *
 *     for (uint64_t n = 1; !done; n++)
 *         for (uint64_t seed = 0; seed < 8; seed++) {
 *             crash_sys_start(dir);
 *             crash_sys_kill_at(n);
 *             ... open, work, note what was acknowledged ...
 *             done = !crash_sys_dead();
 *             ... close: every call fails with EIO once dead ...
 *             crash_sys_crash(seed);
 *             ... open again, check that what was acknowledged is there and nothing is wrong ...
 *             crash_sys_stop();
 *         }
 *
 * Only what goes through the table is seen: memory maps, sendfile, io_uring and storage engines are not, and
 * neither are hard links and removed directories. Calls may come from any thread; those that begin with
 * crash_sys_ belong to the test's own, and start, mount, stop and crash to the time when no other runs.
 */
#pragma once

#include "base/macro.h"

#define CRASH_DROP_ALL 0 /* seed: nothing that was not synced survives */
#define CRASH_KEEP_ALL 1 /* seed: everything survives, as after kill -9 */

/* dir must exist. Its sibling DIR.crash is made for files that are between being and not being. */
void crash_sys_start(const char *dir);
/* A directory below dir that counts as a file system of its own: syncfs there covers nothing elsewhere, and
 * syncfs elsewhere nothing there. At most 8 between start and stop. */
void crash_sys_mount(const char *dir);
/* Gives the table back that was there before; what was not synced stays as it is. */
void crash_sys_stop(void);
/* The power goes at the nth call (from 1) that changes or syncs something: that call happens, unsynced, but
 * reports -EIO, as does every later call but close. 0: never. */
void crash_sys_kill_at(uint64_t nth);
/* The power goes now. */
void crash_sys_kill(void);
bool crash_sys_dead(void);
/* Calls that change or sync something since the start or the last crash. */
uint64_t crash_sys_changes(void);
/* Puts the disk into the state that `seed` chooses and the power on again. All descriptors below dir must be
 * closed. */
void crash_sys_crash(uint64_t seed);
