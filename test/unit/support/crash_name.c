/*
 * Power loss for the names of files.
 *
 * A list of what was made, removed and renamed since the last sync that covered it. At a crash all of it is
 * undone on the real directories, newest first, and what the seed chooses is done again, oldest first. Files
 * whose making is undone wait in the graveyard meanwhile.
 *
 * Invariants:
 *  1. An operation leaves the list only together with every earlier one that it builds upon, so those that
 * stay can be undone without it.
 *
 * Failure modes: abort when a rename fails, which means that the directories were changed past the table.
 */
#include "support/crash_internal.h"

#include "support/tmpdir.h"

enum kind { MADE, REMOVED, RENAMED };

struct op {
    enum kind kind;
    char *a, *b; /* b: RENAMED, the new name */
    struct crash_file *lost;
    bool mark;
};

static struct {
    char *graveyard;
    struct op *v;
    size_t n;
} names;

static void free_op(struct op *op)
{
    free(op->a);
    free(op->b);
    crash_data_unref(op->lost);
}

void crash_name_start(const char *graveyard)
{
    names.graveyard = slice_dup(slice_str(graveyard));
    if (mkdir(graveyard, 0700) < 0)
        crash_abort("mkdir", graveyard);
}

void crash_name_stop(void)
{
    for (size_t i = 0; i < names.n; i++)
        free_op(&names.v[i]);
    free(TAKE_PTR(names.v));
    names.n = 0;
    if (rmdir(names.graveyard) < 0)
        crash_abort("rmdir", names.graveyard);
    free(TAKE_PTR(names.graveyard));
}

static void add(enum kind kind, const char *a, const char *b, struct crash_file *lost)
{
    names.v = reallocarray(names.v, names.n + 1, sizeof(*names.v));
    if (!names.v)
        crash_abort("out of memory", a);
    names.v[names.n++] =
        (struct op){kind, slice_dup(slice_str(a)), b ? slice_dup(slice_str(b)) : NULL, lost, false};
}

void crash_name_made(const char *path)
{
    add(MADE, path, NULL, NULL);
}

void crash_name_removed(const char *path, struct crash_file *lost)
{
    add(REMOVED, path, NULL, lost);
}

void crash_name_renamed(const char *from, const char *to, struct crash_file *lost)
{
    add(RENAMED, from, to, lost);
}

static bool is_in(const char *path, const char *dir)
{
    return path && (size_t)(strrchr(path, '/') - path) == strlen(dir) && strncmp(path, dir, strlen(dir)) == 0;
}

/* Whether one path is the other, or a directory above it. */
static bool related(const char *a, const char *b)
{
    if (!a || !b)
        return false;
    size_t n = MIN(strlen(a), strlen(b));
    return strncmp(a, b, n) == 0 && (a[n] == '\0' || a[n] == '/') && (b[n] == '\0' || b[n] == '/');
}

static bool touches(const struct op *x, const struct op *y)
{
    return related(x->a, y->a) || related(x->a, y->b) || related(x->b, y->a) || related(x->b, y->b);
}

/* Marks what marked operations build upon, and takes all that is marked off the list. */
static void remove_marked(void)
{
    for (size_t i = names.n; i-- > 0;)
        for (size_t later = i + 1; later < names.n && !names.v[i].mark; later++)
            names.v[i].mark = names.v[later].mark && touches(&names.v[i], &names.v[later]);
    size_t kept = 0;
    for (size_t i = 0; i < names.n; i++) {
        if (names.v[i].mark)
            free_op(&names.v[i]);
        else
            names.v[kept++] = names.v[i];
    }
    names.n = kept;
}

void crash_name_synced(const char *dir)
{
    for (size_t i = 0; i < names.n; i++)
        names.v[i].mark = is_in(names.v[i].a, dir) || is_in(names.v[i].b, dir);
    remove_marked();
}

void crash_name_synced_fs(unsigned fs)
{
    for (size_t i = 0; i < names.n; i++)
        names.v[i].mark = crash_fs_of(names.v[i].a) == fs;
    remove_marked();
}

static void move(const char *from, const char *to)
{
    if (rename(from, to) < 0)
        crash_abort("rename", from);
}

static char *grave_of(size_t i)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%zu", names.graveyard, i) < 0)
        crash_abort("out of memory", names.graveyard);
    return path;
}

static void undo(size_t i)
{
    const struct op *op = &names.v[i];
    _cleanup_free_ char *grave = grave_of(i);
    switch (op->kind) {
    case MADE:
        move(op->a, grave);
        break;
    case REMOVED:
        crash_data_copy(op->lost, op->a);
        break;
    case RENAMED:
        move(op->b, op->a);
        if (op->lost)
            crash_data_copy(op->lost, op->b);
        break;
    }
}

static void redo(size_t i)
{
    const struct op *op = &names.v[i];
    _cleanup_free_ char *grave = grave_of(i);
    switch (op->kind) {
    case MADE:
        move(grave, op->a);
        break;
    case REMOVED:
        if (unlink(op->a) < 0)
            crash_abort("unlink", op->a);
        break;
    case RENAMED:
        move(op->a, op->b);
        break;
    }
}

/* Marks what survives: the first so many, or any that do not build upon a lost one. */
static void choose(struct crash_rng *rng)
{
    bool in_order = rng->seed > CRASH_KEEP_ALL && crash_below(rng, 2) == 0;
    size_t first = (size_t)crash_below(rng, names.n + 1);
    for (size_t i = 0; i < names.n; i++) {
        names.v[i].mark = in_order ? i < first : crash_keeps(rng);
        for (size_t before = 0; before < i && names.v[i].mark; before++)
            names.v[i].mark = names.v[before].mark || !touches(&names.v[before], &names.v[i]);
    }
}

/* What never came to be; a directory may hold what went past the table. */
static void bury(size_t i)
{
    struct stat st;
    _cleanup_free_ char *grave = grave_of(i);
    if (names.v[i].kind == MADE && !names.v[i].mark && lstat(grave, &st) == 0)
        tmpdir_free(TAKE_PTR(grave));
}

void crash_name_crash(struct crash_rng *rng)
{
    choose(rng);
    for (size_t i = names.n; i-- > 0;)
        undo(i);
    for (size_t i = 0; i < names.n; i++)
        if (names.v[i].mark)
            redo(i);
    for (size_t i = 0; i < names.n; i++) {
        bury(i);
        free_op(&names.v[i]);
    }
    names.n = 0;
}
