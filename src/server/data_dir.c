/*
 * The data directory (table of its files in data_dir.h).
 *
 * Invariants:
 *  1. At most one process holds the lock; it ends with the process, however that ends. What stands in the
 * file only serves the message to the next one.
 *  2. Credentials and node id are made once and never changed by the node; a file that does not parse is an
 * error for a person to look at, never replaced.
 *
 * Failure modes: -EBUSY with the holder; errors of the file system with the path.
 */
#include "server/data_dir.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/sys.h"

#include <fcntl.h>
#include <sys/file.h>

#define SMALL_FILE_MAX_BYTES 4096
#define DISKS_FILE_MAX_BYTES (1 << 20) /* 256 names of 4 KiB */
#define DISKS_FILE_HEAD      "forebay-disks 1"
#define DISKS_FILE_DEFAULT   "cache"

static char *join(const char *dir, const char *name)
{
    _cleanup_buf_ struct buf b = BUF_INIT(2 * 4096);
    if (buf_printf(&b, "%s/%s", dir, name) < 0)
        abort(); /* paths were checked when the directory was made */
    return buf_take(&b);
}

/* ---- lock ---- */

/* "process 123 (forebay serve --data /d)", from what the holder wrote. */
static void describe_holder(int fd, char ret[256])
{
    char text[224] = "";
    ssize_t n = sys->pread(fd, text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    char *space = strchr(text, ' ');
    if (space)
        *space = '\0';
    if (text[0])
        snprintf(ret, 256, "process %s (%s)", text, space ? space + 1 : "?");
    else
        snprintf(ret, 256, "another process");
}

/* The command line of this process with spaces between arguments. */
static void own_command(char *ret, size_t n)
{
    _cleanup_free_ char *p = NULL;
    size_t len = 0;
    ret[0] = '\0';
    if (sys_read_file("/proc/self/cmdline", 1 << 20, &p, &len) < 0)
        return;
    for (size_t i = 0; i + 1 < len; i++)
        if (p[i] == '\0' || (unsigned char)p[i] < 0x20)
            p[i] = ' ';
    snprintf(ret, n, "%s", p);
}

static int take_lock(const char *dir, int *ret_fd, struct err *e)
{
    _cleanup_free_ char *path = join(dir, "lock");
    _cleanup_close_ int fd = sys->open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(e, fd, "open %s", path);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        char holder[256];
        if (errno != EWOULDBLOCK)
            return err_errno(e, -errno, "lock %s", path);
        describe_holder(fd, holder);
        return err_set(e, -EBUSY, "%s is in use by %s; stop it, or give this node a directory of its own",
                       dir, holder);
    }
    char command[160], text[192];
    own_command(command, sizeof(command));
    int n = snprintf(text, sizeof(text), "%ld %s\n", (long)getpid(), command);
    int k = sys->ftruncate(fd, 0);
    if (k == 0)
        k = sys_pwrite_all(fd, text, (size_t)n, 0);
    if (k < 0)
        return err_errno(e, k, "write %s", path);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* ---- node id ---- */

static int load_node_id(const char *dir, char ret[ID_TEXT_SIZE], struct err *e)
{
    _cleanup_free_ char *path = join(dir, "node-id"), *p = NULL;
    size_t n = 0;
    struct id128 id;
    int k = sys_read_file(path, SMALL_FILE_MAX_BYTES, &p, &n);
    if (k == -ENOENT) {
        char line[ID_TEXT_SIZE + 1];
        id_new(&id);
        id_text(id, line);
        memcpy(ret, line, ID_TEXT_SIZE);
        strcat(line, "\n");
        k = sys_write_file_atomic(path, line, strlen(line), 0644);
        return k < 0 ? err_errno(e, k, "write %s", path) : 0;
    }
    if (k < 0)
        return err_errno(e, k, "read %s", path);
    struct slice rest = slice_of(p, n);
    if (id_parse(slice_split(&rest, '\n'), &id) < 0)
        return err_set(e, -EINVAL, "%s: not 32 hex digits; restore the file, or remove it for a new identity",
                       path);
    id_text(id, ret);
    return 0;
}

/* ---- credentials ---- */

/* Characters without bias: 62 of 256 values are mapped by rejection. */
static void random_text(char *ret, size_t n, const char *alphabet)
{
    size_t letters = strlen(alphabet), limit = 256 / letters * letters;
    for (size_t i = 0; i < n;) {
        uint8_t r;
        sys->random(&r, 1);
        if (r < limit)
            ret[i++] = alphabet[r % letters];
    }
    ret[n] = '\0';
}

static int make_credentials(const char *path, struct data_dir *d, struct err *e)
{
    char access[DATA_DIR_ACCESS_KEY_LEN + 1], secret[DATA_DIR_SECRET_KEY_LEN + 1];
    random_text(access, DATA_DIR_ACCESS_KEY_LEN, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567");
    random_text(secret, DATA_DIR_SECRET_KEY_LEN,
                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789");
    _cleanup_buf_ struct buf b = BUF_INIT(SMALL_FILE_MAX_BYTES);
    int k = buf_printf(&b, "FOREBAY_ACCESS_KEY=%s\nFOREBAY_SECRET_KEY=%s\n", access, secret);
    if (k == 0)
        k = sys_write_file_atomic(path, b.p, b.n, 0600);
    if (k < 0)
        return err_errno(e, k, "write %s", path);
    log_info("server", "made credentials in %s", path);
    d->access_key = slice_dup(slice_str(access));
    d->secret_key = slice_dup(slice_str(secret));
    return 0;
}

static int parse_credentials(const char *path, struct slice text, struct data_dir *d, struct err *e)
{
    for (unsigned line_no = 1; text.n > 0; line_no++) {
        struct slice value = slice_trim(slice_split(&text, '\n'));
        if (value.n == 0 || value.p[0] == '#')
            continue;
        struct slice name = slice_trim(slice_split(&value, '='));
        char **to = slice_eq_str(name, "FOREBAY_ACCESS_KEY")   ? &d->access_key
                    : slice_eq_str(name, "FOREBAY_SECRET_KEY") ? &d->secret_key
                                                               : NULL;
        value = slice_trim(value);
        if (!to || value.n == 0 || *to)
            return err_set(
                e, -EINVAL,
                "%s line %u: expected FOREBAY_ACCESS_KEY=VALUE and FOREBAY_SECRET_KEY=VALUE, once each", path,
                line_no);
        *to = slice_dup(value);
    }
    if (!d->access_key || !d->secret_key)
        return err_set(e, -EINVAL, "%s: %s is missing", path,
                       d->access_key ? "FOREBAY_SECRET_KEY" : "FOREBAY_ACCESS_KEY");
    return 0;
}

static int load_credentials(const char *dir, struct data_dir *d, struct err *e)
{
    _cleanup_free_ char *path = join(dir, "credentials"), *p = NULL;
    size_t n = 0;
    int k = sys_read_file(path, SMALL_FILE_MAX_BYTES, &p, &n);
    if (k == -ENOENT)
        return make_credentials(path, d, e);
    if (k < 0)
        return err_errno(e, k, "read %s", path);
    struct stat st;
    if (sys->stat(path, &st) == 0 && (st.st_mode & 077) != 0)
        log_warn("server", "%s can be read by others; chmod 600 it", path);
    k = parse_credentials(path, slice_of(p, n), d, e);
    explicit_bzero(p, n);
    return k;
}

/* ---- disks ---- */

int data_dir_note_disks(const struct data_dir *d, char *const *paths, size_t n, struct err *e)
{
    assert(d && d->disks_path && (paths || n == 0));
    _cleanup_buf_ struct buf b = BUF_INIT(DISKS_FILE_MAX_BYTES);
    int k = buf_printf(&b, "%s\n%s", DISKS_FILE_HEAD, n == 0 ? DISKS_FILE_DEFAULT "\n" : "");
    for (size_t i = 0; i < n && k == 0; i++) {
        _cleanup_free_ char *whole = realpath(paths[i], NULL);
        if (!whole)
            return err_errno(e, -errno, "disk %s", paths[i]);
        if (strchr(whole, '\n'))
            return err_set(e, ERR_BAD_OPTION, "--disk %s: the directory's name must not hold a line end",
                           whole);
        k = buf_printf(&b, "%s\n", whole);
    }
    if (k == 0)
        k = sys_write_file_atomic(d->disks_path, b.p, b.n, 0644);
    return k < 0 ? err_errno(e, k, "write %s", d->disks_path) : 0;
}

int data_dir_noted_disks(const char *dir, char ***ret_paths, size_t *ret_n, struct err *e)
{
    assert(dir && ret_paths && ret_n);
    _cleanup_free_ char *path = join(dir, "disks"), *p = NULL;
    size_t bytes = 0, n = 0;
    int k = sys_read_file(path, DISKS_FILE_MAX_BYTES, &p, &bytes);
    if (k < 0)
        return err_errno(e, k, "read %s", path);
    struct slice rest = slice_of(p, bytes), head = slice_split(&rest, '\n');
    if (slice_starts(head, slice_str("forebay-disks ")) && !slice_eq_str(head, DISKS_FILE_HEAD))
        return err_set(e, -EPROTONOSUPPORT, "%s: written by another version of forebay", path);
    if (!slice_eq_str(head, DISKS_FILE_HEAD) || rest.n == 0 || rest.p[rest.n - 1] != '\n' ||
        memchr(p, '\0', bytes))
        return err_set(e, -EINVAL, "%s: not a list of disks", path);
    char **paths = calloc(rest.n, sizeof(*paths));
    assert(paths);
    while (rest.n > 0) {
        _cleanup_free_ char *line = slice_dup(slice_split(&rest, '\n'));
        paths[n++] = line[0] == '/' ? TAKE_PTR(line) : join(dir, line);
    }
    *ret_paths = paths;
    *ret_n = n;
    return 0;
}

/* The path without symbolic links, also of what is not there, as a directory on a drive that is not mounted.
 * NULL: nobody can say. */
static char *whole_path(const char *path)
{
    size_t n = strlen(path);
    char *head = NULL;
    for (;;) {
        _cleanup_free_ char *part = n > 0 ? slice_dup(slice_of(path, n)) : slice_dup(SLICE_LIT("."));
        head = realpath(part, NULL);
        if (head || errno != ENOENT || n == 0)
            break;
        while (n > 0 && path[n - 1] == '/')
            n--;
        while (n > 0 && path[n - 1] != '/')
            n--;
    }
    const char *rest = path + n + strspn(path + n, "/");
    if (!head || !*rest)
        return head;
    _cleanup_free_ char *above = head;
    char *whole = join(strcmp(above, "/") == 0 ? "" : above, rest);
    for (size_t i = strlen(whole); i > 1 && whole[i - 1] == '/'; i--)
        whole[i - 1] = '\0';
    return whole;
}

enum place {
    PLACE_HAS_DISK, /* or what cannot be one: who opens it says so */
    PLACE_GONE,
    PLACE_EMPTY, /* a directory, and no disk in it */
    PLACE_DRIVE, /* the same, and a file system is mounted there */
};

/* Gives an enum place. */
static int look_at_place(const char *path, struct err *e)
{
    _cleanup_free_ char *mark = join(path, "forebay-disk"), *above = join(path, "..");
    struct stat st, top;
    int k = sys->stat(path, &st);
    if (k == -ENOENT)
        return PLACE_GONE;
    if (k == 0)
        k = sys->stat(above, &top);
    bool is_drive = k == 0 && st.st_dev != top.st_dev;
    if (k == 0 && S_ISDIR(st.st_mode) && sys->stat(mark, &st) == -ENOENT)
        return is_drive ? PLACE_DRIVE : PLACE_EMPTY;
    return k < 0 ? err_errno(e, k, "disk %s", path) : PLACE_HAS_DISK;
}

static int expect_disk(const struct data_dir *d, const char *path, bool has_hard, char *const *noted,
                       size_t n, struct err *e)
{
    _cleanup_free_ char *whole = whole_path(path);
    bool is_noted = false;
    for (size_t i = 0; whole && i < n; i++)
        is_noted |= strcmp(noted[i], whole) == 0;
    int k = is_noted ? look_at_place(whole, e) : PLACE_HAS_DISK;
    if (k < 0 || k == PLACE_HAS_DISK)
        return k;
    if (k != PLACE_EMPTY && !has_hard) {
        log_warn("server",
                 "disk %s: held a disk of this node at its last start, and is %s now: a new one is made",
                 path, k == PLACE_GONE ? "gone" : "empty");
        return 0;
    }
    return err_set(
        e, -ENODEV,
        "disk %s: held a disk of this node at its last start, and holds none now: mount its drive there. "
        "If it is lost for good, with what was only on it, remove its line from %s, and a new disk is made",
        path, d->disks_path);
}

int data_dir_expect_disks(const struct data_dir *d, char *const *paths, size_t n, bool has_hard,
                          struct err *e)
{
    assert(d && d->disks_path && (paths || n == 0));
    _cleanup_free_ char *dir = slice_dup(slice_str(d->disks_path));
    char **noted = NULL;
    size_t n_noted = 0;
    struct err ignored = {0};
    *strrchr(dir, '/') = '\0';
    if (data_dir_noted_disks(dir, &noted, &n_noted, &ignored) < 0)
        return 0; /* a first start, or nobody can say */
    for (size_t i = 0; i < n_noted; i++) {
        char *whole = whole_path(noted[i]);
        if (whole) {
            free(noted[i]);
            noted[i] = whole;
        }
    }
    int k = n == 0 ? expect_disk(d, d->cache_path, has_hard, noted, n_noted, e) : 0;
    for (size_t i = 0; i < n && k == 0; i++)
        k = expect_disk(d, paths[i], has_hard, noted, n_noted, e);
    for (size_t i = 0; i < n_noted; i++)
        free(noted[i]);
    free(noted);
    return k;
}

int data_dir_open(const char *path, struct data_dir *ret, struct err *e)
{
    assert(path != NULL && ret != NULL);
    struct data_dir d = {.lock_fd = -1};
    if (strlen(path) > 4000)
        return err_set(e, -ENAMETOOLONG, "%.64s...", path);
    int k = sys_mkdir_p(path, 0700);
    if (k < 0)
        return err_errno(e, k, "make %s", path);
    k = take_lock(path, &d.lock_fd, e);
    if (k == 0)
        k = load_node_id(path, d.node_id, e);
    if (k == 0)
        k = load_credentials(path, &d, e);
    if (k < 0) {
        data_dir_close(&d);
        return k;
    }
    d.control_path = join(path, "control");
    d.seal_path = join(path, "secret-key");
    d.cache_path = join(path, "cache");
    d.socket_path = join(path, "run/forebay.sock");
    d.disks_path = join(path, "disks");
    *ret = d;
    return 0;
}

void data_dir_close(struct data_dir *d)
{
    if (d->secret_key)
        explicit_bzero(d->secret_key, strlen(d->secret_key));
    free(d->access_key);
    free(d->secret_key);
    free(d->control_path);
    free(d->seal_path);
    free(d->cache_path);
    free(d->socket_path);
    free(d->disks_path);
    macro_close(&d->lock_fd);
    *d = (struct data_dir){.lock_fd = -1};
}
