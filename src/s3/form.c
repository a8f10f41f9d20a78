/*
 * The reader of multipart/form-data (contract in form.h).
 *
 * 1. A byte is given out only when it cannot be the beginning of a boundary: up to mark_n - 1 bytes are held
 * back until the next ones have come.
 * 2. Memory is one buffer, however large the parts are.
 *
 * Failure modes: whatever is not of the form gives MALFORMED_POST; after an error nothing more is read.
 */
#include "s3/form.h"

#define DISPOSITION "content-disposition"

static enum s3_error source_error(ssize_t n)
{
    return n == ERR_PROTOCOL ? S3_ERR_MALFORMED_POST : body_source_error(n);
}

/* The value of a parameter in "a; name=value; name="value"", unquoted into `ret`; -ENOENT: "" is. -E2BIG: a
 * value up to that of the parameter is too long, and `ret` is of no use. */
static int parameter(struct slice header, const char *name, char *ret, size_t max)
{
    size_t n = 0, i = 0;

    while (i < header.n && header.p[i] != ';')
        i++;
    while (i < header.n) {
        size_t from = ++i;
        bool quoted;
        struct slice key;

        while (i < header.n && header.p[i] != '=' && header.p[i] != ';')
            i++;
        key = slice_trim(slice_sub(header, from, i - from));
        if (i == header.n || header.p[i] == ';')
            continue;
        i++;
        quoted = i < header.n && header.p[i] == '"';
        i += quoted;
        for (n = 0; i < header.n && (quoted ? header.p[i] != '"' : header.p[i] != ';'); i++) {
            if (quoted && header.p[i] == '\\' && i + 1 < header.n && strchr("\"\\", header.p[i + 1]))
                i++;
            if (n == max)
                return -E2BIG;
            ret[n++] = header.p[i];
        }
        while (!quoted && n > 0 && (ret[n - 1] == ' ' || ret[n - 1] == '\t'))
            n--;
        ret[n] = '\0';
        if (slice_eq_case(key, slice_str(name)))
            return 0;
        while (i < header.n && header.p[i] != ';')
            i++;
    }
    ret[0] = '\0';
    return -ENOENT;
}

enum s3_error form_init(struct form *f, struct slice content_type, body_source_fn source, void *arg)
{
    struct slice type = content_type;

    *f = (struct form){.source = source, .arg = arg, .mark = "\r\n--"};
    type = slice_trim(slice_split(&type, ';'));
    if (!slice_eq_case(type, SLICE_LIT("multipart/form-data")) ||
        parameter(content_type, "boundary", f->mark + 4, FORM_BOUNDARY_MAX) || !f->mark[4])
        return S3_ERR_MALFORMED_POST;
    f->mark_n = strlen(f->mark);
    f->buffer = malloc(FORM_BUFFER_BYTES);
    if (!f->buffer)
        abort();
    /* The first boundary may stand at the very beginning, where no line ends before it. */
    memcpy(f->buffer, "\r\n", 2);
    f->n = 2;
    return S3_OK;
}

void form_fini(struct form *f)
{
    free(TAKE_PTR(f->buffer));
}

/* Reads on behind what is there. 0 also when the buffer is full. */
static enum s3_error fill(struct form *f)
{
    ssize_t n;

    if (f->at > 0) {
        memmove(f->buffer, f->buffer + f->at, f->n - f->at);
        f->n -= f->at;
        f->at = 0;
    }
    if (f->source_ended || f->n == FORM_BUFFER_BYTES)
        return S3_OK;
    n = f->source(f->arg, f->buffer + f->n, FORM_BUFFER_BYTES - f->n);
    if (n < 0)
        return source_error(n);
    f->source_ended = n == 0;
    f->n += (size_t)n;
    return S3_OK;
}

static struct slice there(const struct form *f)
{
    return slice_of(f->buffer + f->at, f->n - f->at);
}

/* How many bytes can be given out now; *ret_marked: the boundary comes behind them. */
static size_t clear_bytes(const struct form *f, bool *ret_marked)
{
    struct slice s = there(f);
    const char *found = s.n ? memmem(s.p, s.n, f->mark, f->mark_n) : NULL;

    *ret_marked = found != NULL;
    if (found)
        return (size_t)(found - s.p);
    return s.n < f->mark_n ? 0 : s.n - (f->mark_n - 1);
}

ssize_t form_read(struct form *f, void *p, size_t n, enum s3_error *ret_error)
{
    bool marked;
    size_t clear;

    assert(f->in_part && n > 0);
    while ((clear = clear_bytes(f, &marked)) == 0 && !marked) {
        enum s3_error error = f->source_ended ? S3_ERR_INCOMPLETE_BODY : fill(f);

        if (error) {
            *ret_error = error;
            return -1;
        }
    }
    n = MIN(n, clear);
    memcpy(p, f->buffer + f->at, n);
    f->at += n;
    return (ssize_t)n;
}

/* Drops what comes before the boundary, and the boundary. */
static enum s3_error skip_to_mark(struct form *f, size_t most)
{
    char scrap[1024];
    enum s3_error error = S3_OK;
    size_t dropped = 0;
    ssize_t n;

    f->in_part = true;
    while ((n = form_read(f, scrap, sizeof scrap, &error)) > 0)
        if ((dropped += (size_t)n) > most)
            return S3_ERR_MALFORMED_POST;
    if (n < 0)
        return error == S3_ERR_INCOMPLETE_BODY && most < SIZE_MAX ? S3_ERR_MALFORMED_POST : error;
    f->at += f->mark_n;
    f->in_part = false;
    return S3_OK;
}

/* One line, with its CRLF taken off; it stays valid until the next fill. */
static enum s3_error read_line(struct form *f, struct slice *ret)
{
    for (;;) {
        struct slice s = there(f);
        const char *end = s.n ? memmem(s.p, s.n, "\r\n", 2) : NULL;
        enum s3_error error;

        if (end) {
            *ret = slice_sub(s, 0, (size_t)(end - s.p));
            f->at += ret->n + 2;
            return S3_OK;
        }
        if (s.n > FORM_PART_HEAD_MAX || f->source_ended)
            return S3_ERR_MALFORMED_POST;
        error = fill(f);
        if (error)
            return error;
    }
}

static enum s3_error read_header(struct slice line, struct form_part *ret)
{
    struct slice value = line, name = slice_split(&value, ':');

    value = slice_trim(value);
    if (slice_eq_case(slice_trim(name), SLICE_LIT(DISPOSITION))) {
        /* The name of a file is not cut: it may become a key. */
        if (parameter(value, "name", ret->name, FORM_NAME_MAX) ||
            parameter(value, "filename", ret->filename, FORM_NAME_MAX) == -E2BIG)
            return S3_ERR_MALFORMED_POST;
    } else if (slice_eq_case(slice_trim(name), SLICE_LIT("content-type"))) {
        if (value.n > FORM_NAME_MAX)
            return S3_ERR_MALFORMED_POST;
        if (value.n > 0)
            memcpy(ret->type, value.p, value.n);
        ret->type[value.n] = '\0';
    }
    return S3_OK;
}

enum s3_error form_next(struct form *f, struct form_part *ret, bool *ret_more)
{
    bool first = !f->in_part && f->at == 0;
    struct slice line;
    size_t total = 0;
    enum s3_error error;

    assert(!f->ended);
    error = skip_to_mark(f, first ? FORM_PREAMBLE_BYTES : SIZE_MAX);
    if (!error)
        error = read_line(f, &line);
    if (error)
        return error;
    *ret_more = !slice_starts(line, SLICE_LIT("--"));
    f->ended = !*ret_more;
    if (f->ended)
        return S3_OK;
    if (slice_trim(line).n > 0)
        return S3_ERR_MALFORMED_POST;
    ret->name[0] = ret->filename[0] = ret->type[0] = '\0';
    while ((error = read_line(f, &line)) == S3_OK && line.n > 0) {
        total += line.n;
        error = total > FORM_PART_HEAD_MAX ? S3_ERR_MALFORMED_POST : read_header(line, ret);
        if (error)
            return error;
    }
    if (error)
        return error;
    f->in_part = true;
    return ret->name[0] ? S3_OK : S3_ERR_MALFORMED_POST;
}
