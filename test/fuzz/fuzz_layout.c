/*
 * Fuzz target: layouts of files, and plans of reads made with them. The first byte chooses the name ('s',
 * 'z', 'p', else one that says nothing; a capital one begins with the file's end), the second byte how the
 * file is read; the rest is the file. Looks must end, layouts must be sound, and plans stay inside the file.
 */
#include "object/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define LOOKS_MAX 4
#define READS     10
#define WINDOW    (32 * MIB)

static const char *name_of(uint8_t c)
{
    switch (c | 0x20) {
    case 's':
        return "m.safetensors";
    case 'z':
        return "dir/a.npz";
    case 'p':
        return "t.parquet";
    default:
        return "file";
    }
}

static struct layout *look_at(const char *name, struct slice file, bool at_end)
{
    struct layout *l = NULL;
    struct layout_look look = layout_guess(slice_str(name), file.n, at_end);
    for (unsigned i = 0; look.n > 0; i++) {
        if (i == LOOKS_MAX || look.offset > file.n || look.n > file.n - look.offset)
            abort();
        char *bytes = malloc(look.n); /* of its own, so that reading beyond it is seen */
        if (!bytes)
            abort();
        memcpy(bytes, file.p + look.offset, look.n);
        layout_see(&look, slice_of(bytes, look.n), file.n, &l);
        free(bytes);
        if (l && look.n > 0)
            abort();
    }
    if (l)
        layout_check(l, file.n);
    return l;
}

/* Reads with the layout as if the file were `factor` times as large. */
static void plan(const char *name, struct layout *l, uint64_t size, uint8_t how)
{
    uint64_t factor = PLAN_SMALL_BYTES / MAX(size, (uint64_t)1) + 2, seed = how;
    for (uint32_t i = 0; l && i < l->n; i++)
        l->starts[i] *= factor;
    if (l)
        l->end *= factor;
    size *= factor;
    struct plan *p = plan_new(slice_str(name), size, 0);
    struct layout_look seen = plan_look(p), next = {0};
    if (!plan_learn(p, &seen, &next, &l))
        abort();
    for (unsigned i = 0; i < READS; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        struct plan_ask q = {(seed >> 20) % size, 1 + (seed >> 40) % MIB, WINDOW, size / (1 + i % 4),
                             seed % size};
        struct plan_wants w;
        plan_read(p, &q, &w);
        for (unsigned k = 0; k < w.n; k++)
            if (w.range[k].offset > w.range[k].end || w.range[k].end > size)
                abort();
    }
    plan_free(p);
    layout_free(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 3)
        return 0;
    struct slice file = slice_of(data + 2, n - 2);
    const char *name = name_of(data[0]);
    plan(name, look_at(name, file, !(data[0] & 0x20)), file.n, data[1]);
    return 0;
}
