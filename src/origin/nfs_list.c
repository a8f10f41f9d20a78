/*
 * One directory of an NFS server, with the attributes that READDIRPLUS tells; tree.c makes pages of it.
 *
 * Links are asked for one by one: to a file they are that file, to a directory that directory.
 *
 * Failure modes: as nfs_error; names that vanished meanwhile are left out.
 */
#include "origin/nfs_internal.h"

#include "base/log.h"

#include <sys/stat.h>

/* Numbers of files are those of one file system; a directory may hold others (crossmnt). */
static uint64_t place_of(const struct nfs_stat_64 *st)
{
    return st->nfs_ino ^ st->nfs_dev * 0x9e3779b97f4a7c15ull;
}

static void name_of_stat(const struct nfs_stat_64 *st, struct tree_name *ret)
{
    *ret = (struct tree_name){
        .id = place_of(st), .size = S_ISREG(st->nfs_mode) ? st->nfs_size : 0, .mtime_ns = nfs_mtime_ns(st)};
    nfs_etag(st, ret->etag);
}

/* Servers that keep no ctime are believed their mtime. */
static uint64_t changed_ns(const struct nfs_stat_64 *st)
{
    return MAX(st->nfs_ctime * 1000000000 + st->nfs_ctime_nsec, nfs_mtime_ns(st));
}

/* READDIRPLUS says as much as a stat; without attributes, or for a link, the server is asked again. */
static int add_entry(struct nfs_conn *c, const char *path, const struct nfsdirent *d, struct tree_folder *f)
{
    char whole[NFS_PATH_SIZE + 256];
    struct nfs_stat_64 st = {.nfs_dev = d->dev,
                             .nfs_ino = d->inode,
                             .nfs_mode = d->mode & ~(unsigned)S_IFMT,
                             .nfs_size = d->size,
                             .nfs_mtime = (uint64_t)d->mtime.tv_sec,
                             .nfs_mtime_nsec = d->mtime_nsec,
                             .nfs_ctime = (uint64_t)d->ctime.tv_sec,
                             .nfs_ctime_nsec = d->ctime_nsec};
    if (d->type == 1 || d->type == 2) { /* NF3REG, NF3DIR */
        st.nfs_mode |= d->type == 1 ? S_IFREG : S_IFDIR;
    } else {
        int n = snprintf(whole, sizeof(whole), "%s/%s", path, d->name);
        int r = n < (int)sizeof(whole) ? nfs_call_stat(c, whole, &st) : -ENOENT;
        bool gone = r == -ENOENT || r == -ELOOP || r == -EACCES || r == -EINVAL; /* or leads nowhere */
        if (gone || (r == 0 && !S_ISREG(st.nfs_mode) && !S_ISDIR(st.nfs_mode))) {
            f->hides = true;
            return 0;
        }
        if (r < 0)
            return r;
    }
    if (!S_ISDIR(st.nfs_mode) && file_tmp_is_left(d->name, changed_ns(&st))) {
        int n = snprintf(whole, sizeof(whole), "%s/%s", path, d->name);
        if (n < (int)sizeof(whole) && nfs_call_unlink(c, whole) == 0)
            log_info("origin", "removed %s: its writer has ended", whole);
        return 0;
    }
    struct tree_name x;
    name_of_stat(&st, &x);
    return tree_folder_add(f, slice_str(d->name), S_ISDIR(st.nfs_mode), &x);
}

static int add_entries(struct nfs_conn *c, const char *path, struct nfsdir *dir, struct tree_folder *f)
{
    struct nfsdirent *d;
    int r = 0;
    while (r == 0 && (d = nfs_call_readdir(c, dir)))
        if (strcmp(d->name, ".") != 0 && strcmp(d->name, "..") != 0)
            r = add_entry(c, path, d, f);
    return r;
}

/* One that does not end is found by the number of requests, before its names can be counted. */
static int refuse_folder(struct nfs_conn *c, int r, const char *path, struct err *e)
{
    if (r != -E2BIG)
        return nfs_error(c, e, r, "list", slice_str(path));
    return err_set(e, ERR_ORIGIN_FAILED,
                   "directory %s has more than %d names, or its listing does not end there", path,
                   TREE_NAMES_MAX);
}

int nfs_read_folder(void *arg, const char *path, struct tree_folder **ret, struct err *e)
{
    struct tree_folder *_cleanup_(tree_folder_unrefp) f = tree_folder_new();
    struct nfs_conn *_cleanup_(nfs_conn_givep) c = NULL;
    char own[NFS_PATH_SIZE + 256];
    struct nfs_stat_64 st;
    struct nfsdir *dir;
    int r = nfs_conn_take(arg, NULL, &c, e);
    if (r < 0)
        return r;
    (void)snprintf(own, sizeof(own), "%s%s", *path ? "/" : "", path);
    r = nfs_call_stat(c, *own ? own : "/", &st);
    if (r >= 0 && !S_ISDIR(st.nfs_mode))
        r = -ENOTDIR;
    if (r >= 0)
        r = nfs_call_opendir(c, *own ? own : "/", &dir);
    if (r < 0)
        return refuse_folder(c, r, path, e);
    name_of_stat(&st, &f->self);
    r = add_entries(c, own, dir, f);
    nfs_call_closedir(c, dir);
    if (r < 0)
        return refuse_folder(c, r, path, e);
    *ret = TAKE_PTR(f);
    return 0;
}
