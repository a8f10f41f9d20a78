/* safetensors files; contract in bench_model.h. Offsets out of a header are checked against the file's size
 * before use. */
#include "cli/bench_model.h"
#include "cli/bench_report.h"

#include "base/buf.h"
#include "base/le.h"
#include "base/sys.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>

#define HEADER_MAX_BYTES 100000000 /* safetensors' own limit */
#define PIECE_BYTES      (8 * MIB)
#define SEED_KEY         "forebay_bench_seed"

static struct pattern pattern_for(uint64_t seed)
{
    return pattern_of(seed, SLICE_LIT("model"));
}

static int bad(struct err *e, const char *path, const char *what)
{
    return err_set(e, -EBADMSG, "%s: not a safetensors file: %s", path, what);
}

static int compare_places(const void *a, const void *b)
{
    const struct model_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end; /* those without bytes before the one that begins there */
}

/* As the format has it: rates are of all bytes behind the header, and each of them is a tensor's, of one. */
static int expect_all(const struct model_file *f, uint64_t data_bytes, const char *path, struct err *e)
{
    uint64_t end = 0;
    for (size_t i = 0; i < f->n; i++) {
        if (f->tensors[i].begin != end)
            return bad(e, path, "its tensors leave a hole or overlap");
        end = f->tensors[i].end;
    }
    return end == data_bytes ? 0 : bad(e, path, "the last of its bytes are in no tensor");
}

static int read_tensors(json_t *header, const char *path, struct model_file *f, struct err *e)
{
    const char *name;
    json_t *value;
    uint64_t data_bytes = f->bytes - f->data_offset;
    f->tensors = calloc(MAX(json_object_size(header), (size_t)1), sizeof(f->tensors[0]));
    assert(f->tensors);
    json_object_foreach(header, name, value)
    {
        if (strcmp(name, "__metadata__") == 0) {
            const char *seed = json_string_value(json_object_get(value, SEED_KEY));
            uint64_t v;
            f->ours = seed && slice_u64(slice_str(seed), &v) == 0;
            if (f->ours)
                f->pattern = pattern_for(v);
            continue;
        }
        json_t *offsets = json_object_get(value, "data_offsets");
        json_int_t begin = json_integer_value(json_array_get(offsets, 0));
        json_int_t end = json_integer_value(json_array_get(offsets, 1));
        if (json_array_size(offsets) != 2 || begin < 0 || end < begin || (uint64_t)end > data_bytes)
            return bad(e, path, "a tensor's place is outside the file");
        f->tensors[f->n++] = (struct model_tensor){(uint64_t)begin, (uint64_t)end};
    }
    qsort(f->tensors, f->n, sizeof(f->tensors[0]), compare_places);
    return f->n ? expect_all(f, data_bytes, path, e) : bad(e, path, "no tensors");
}

static int read_header(int fd, const char *path, struct model_file *f, struct err *e)
{
    struct stat st;
    uint8_t head[8];
    int r = sys->fstat(fd, &st);
    r = r < 0 ? r : sys_pread_all(fd, head, sizeof(head), 0);
    if (r == -ENODATA)
        return bad(e, path, "too short");
    if (r < 0)
        return err_errno(e, r, "read %s", path);
    uint64_t n = le_get64(head);
    f->bytes = (uint64_t)st.st_size;
    if (n > HEADER_MAX_BYTES || n > f->bytes - sizeof(n))
        return bad(e, path, "its header has an impossible length");
    f->data_offset = n + sizeof(n);
    _cleanup_free_ char *text = malloc(n + 1);
    assert(text);
    r = sys_pread_all(fd, text, n, sizeof(n));
    if (r < 0)
        return err_errno(e, r, "read %s", path);
    json_t *header = json_loadb(text, n, 0, NULL);
    r = json_is_object(header) ? read_tensors(header, path, f, e) : bad(e, path, "its header is not JSON");
    json_decref(header);
    return r;
}

int model_file_open(const char *path, struct model_file *ret, struct err *e)
{
    _cleanup_close_ int fd = sys->open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return err_errno(e, fd, "%s", path);
    struct model_file f = {0};
    int r = read_header(fd, path, &f, e);
    if (r < 0)
        model_file_close(&f);
    else
        *ret = f;
    return r;
}

void model_file_close(struct model_file *f)
{
    free(f->tensors);
    *f = (struct model_file){0};
}

/* ---- making one ---- */

static int make_header(uint64_t bytes, uint64_t tensors, uint64_t seed, struct buf *b)
{
    int r = buf_append(b, "\0\0\0\0\0\0\0\0", 8);
    r = r < 0 ? r : buf_printf(b, "{\"__metadata__\":{\"" SEED_KEY "\":\"%" PRIu64 "\"}", seed);
    for (uint64_t i = 0; i < tensors && r == 0; i++) {
        uint64_t begin = (uint64_t)((__uint128_t)bytes * i / tensors);
        uint64_t end = (uint64_t)((__uint128_t)bytes * (i + 1) / tensors);
        r = buf_printf(b,
                       ",\"layers.%" PRIu64 ".weight\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64
                       "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                       i, end - begin, begin, end);
    }
    r = r < 0 ? r : buf_char(b, '}');
    while (r == 0 && b->n % 8) /* spaces align the data, as safetensors does */
        r = buf_char(b, ' ');
    if (r == 0)
        le_put64(b->p, b->n - 8);
    return r;
}

static int write_data(int fd, uint64_t at, uint64_t bytes, uint64_t seed)
{
    _cleanup_free_ char *piece = malloc(PIECE_BYTES);
    assert(piece);
    int r = 0;
    for (uint64_t done = 0; done < bytes && r == 0; done += PIECE_BYTES) {
        size_t n = (size_t)MIN(bytes - done, PIECE_BYTES);
        pattern_fill(pattern_for(seed), done, piece, n);
        r = bench_interrupted() ? -EINTR : sys_pwrite_all(fd, piece, n, at + done);
    }
    return r;
}

int model_file_make(const char *path, uint64_t bytes, uint64_t tensors, uint64_t seed, struct err *e)
{
    _cleanup_buf_ struct buf header = BUF_INIT(HEADER_MAX_BYTES), part = BUF_INIT(4 * KIB);
    int r = make_header(bytes, tensors, seed, &header);
    r = r < 0 ? r : buf_printf(&part, "%s.part", path);
    if (r < 0)
        return err_errno(e, r, "make %s", path);
    int fd = sys->open(part.p, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_errno(e, fd, "make %s", part.p);
    r = sys_pwrite_all(fd, header.p, header.n, 0);
    r = r < 0 ? r : write_data(fd, header.n, bytes, seed);
    int closed = sys->close(fd);
    r = r < 0 ? r : closed;
    r = r < 0 ? r : sys->rename(part.p, path);
    if (r < 0)
        (void)sys->unlink(part.p);
    if (r == -EINTR)
        return err_set(e, r, "interrupted");
    return r < 0 ? err_errno(e, r, "make %s", path) : 0;
}
