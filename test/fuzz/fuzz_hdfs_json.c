/*
 * Fuzz target: what a WebHDFS service answers. The first byte chooses the reader: a status, a listing, a
 * boolean, an error. What is accepted must be what the rest of the program may rely on.
 */
#include "origin/hdfs_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void listing(struct slice text)
{
    struct tree_folder *f = tree_folder_new();
    char *last = NULL;
    uint64_t left = 0;
    if (hdfs_json_listing(text, f, &last, &left, NULL) == 0)
        assert(left == 0 || last);
    free(last);
    for (size_t i = 0; i < f->n; i++) {
        size_t length = strlen(f->v[i].name);
        assert(length > 0 && length <= 256 && memchr(f->v[i].name, '/', length - 1) == NULL);
        assert(strlen(f->v[i].etag) < TREE_ETAG_SIZE);
    }
    tree_folder_unref(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct slice text = n ? slice_of(data + 1, n - 1) : SLICE_NULL;
    struct hdfs_status st;
    struct web_response r = {.status = 403};
    struct err e = {0};
    bool yes;
    switch (n ? data[0] : 0) {
    case 's':
        if (hdfs_json_status(text, &st, NULL) == 0)
            assert(st.is_file || st.size == 0);
        break;
    case 'l':
        listing(text);
        break;
    case 'b':
        (void)hdfs_json_boolean(text, &yes, NULL);
        break;
    default:
        assert(hdfs_json_refused(&r, text, &e) < 0);
        for (const char *p = e.text; *p; p++)
            assert((unsigned char)*p >= ' ');
    }
    return 0;
}
