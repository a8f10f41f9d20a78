/*
 * The documents of WebHDFS: statuses of files, listings, errors.
 *
 * Invariants:
 *  1. Numbers that are missing or negative make a document no answer; a missing fileId is 0 (HttpFS has
 * none).
 *  2. Texts for people have no control characters.
 *
 * Failure modes: ERR_ORIGIN_FAILED for documents that make no sense. Pure.
 */
#include "origin/hdfs_internal.h"

json_t *hdfs_json_parse(struct slice text, struct err *e)
{
    json_error_t x;
    json_t *j = web_json(text, JSON_REJECT_DUPLICATES, &x);
    if (!j)
        (void)err_set(e, ERR_ORIGIN_FAILED, "the answer is no JSON: line %d: %s", x.line, x.text);
    return j;
}

static struct slice member(const json_t *j, const char *name)
{
    const json_t *v = json_object_get(j, name);
    return json_is_string(v) ? slice_of(json_string_value(v), json_string_length(v)) : SLICE_NULL;
}

static bool number(const json_t *j, const char *name, uint64_t *ret)
{
    const json_t *v = json_object_get(j, name);
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *ret = (uint64_t)json_integer_value(v);
    return true;
}

static bool read_status(const json_t *j, struct hdfs_status *ret)
{
    struct hdfs_status x = {0};
    struct slice type = member(j, "type");
    x.is_file = slice_eq_str(type, "FILE");
    x.is_dir = slice_eq_str(type, "DIRECTORY");
    if (type.n == 0 || !number(j, "length", &x.size) || !number(j, "modificationTime", &x.mtime_ms) ||
        x.mtime_ms > UINT64_MAX / 1000000)
        return false;
    (void)number(j, "fileId", &x.id);
    if (!x.is_file)
        x.size = 0;
    *ret = x;
    return true;
}

int hdfs_json_status(struct slice text, struct hdfs_status *ret, struct err *e)
{
    json_t *_cleanup_(hdfs_json_unrefp) j = hdfs_json_parse(text, e);
    if (!j)
        return ERR_ORIGIN_FAILED;
    if (!read_status(json_object_get(j, "FileStatus"), ret))
        return err_set(e, ERR_ORIGIN_FAILED, "the answer has no FileStatus that makes sense");
    return 0;
}

int hdfs_json_boolean(struct slice text, bool *ret, struct err *e)
{
    if (slice_trim(text).n == 0)
        return err_set(e, ERR_ORIGIN_SHORT, "the answer was cut: it is empty");
    json_t *_cleanup_(hdfs_json_unrefp) j = hdfs_json_parse(text, e);
    const json_t *v = json_object_get(j, "boolean");
    if (!j)
        return ERR_ORIGIN_FAILED;
    if (!json_is_boolean(v))
        return err_set(e, ERR_ORIGIN_FAILED, "the answer has no boolean");
    *ret = json_is_true(v);
    return 0;
}

/* Whether a run of this node that was killed was writing the file. Nothing of the name is believed but that.
 */
static bool is_left(struct slice name, const struct hdfs_status *st)
{
    char text[sizeof(FILE_TMP_PREFIX) + ID_TEXT_SIZE];
    if (name.n != strlen(FILE_TMP_PREFIX) + ID_TEXT_SIZE - 1)
        return false;
    memcpy(text, name.p, name.n);
    text[name.n] = '\0';
    return file_tmp_is_of_killed(text, st->mtime_ms * 1000000);
}

static int add(struct tree_folder *f, const json_t *j, struct err *e)
{
    struct hdfs_status st;
    struct slice name = member(j, "pathSuffix");
    if (!read_status(j, &st))
        return err_set(e, ERR_ORIGIN_FAILED, "the listing has an entry that makes no sense");
    if (name.n == 0) /* the path is a file: the listing is of itself */
        return err_set(e, -ENOENT, "it is no directory");
    if (!st.is_file && !st.is_dir) { /* a link */
        f->hides = true;
        return 0;
    }
    if (st.is_file && is_left(name, &st)) {
        tree_folder_add_left(f, name);
        return 0;
    }
    struct tree_name x = {.id = st.id, .size = st.size, .mtime_ns = st.mtime_ms * 1000000};
    tree_etag(st.mtime_ms, st.size, st.id, x.etag);
    int r = tree_folder_add(f, name, st.is_dir, &x);
    return r < 0 ? err_set(e, ERR_ORIGIN_FAILED, "a directory of more than %d names", TREE_NAMES_MAX) : 0;
}

int hdfs_json_listing(struct slice text, struct tree_folder *f, char **ret_last, uint64_t *ret_left,
                      struct err *e)
{
    json_t *_cleanup_(hdfs_json_unrefp) j = hdfs_json_parse(text, e);
    if (!j)
        return ERR_ORIGIN_FAILED;
    const json_t *batch = json_object_get(j, "DirectoryListing");
    const json_t *holder = batch ? json_object_get(batch, "partialListing") : j;
    const json_t *list = json_object_get(json_object_get(holder, "FileStatuses"), "FileStatus");
    uint64_t left = 0;
    if (!json_is_array(list) || (batch && !number(batch, "remainingEntries", &left)))
        return err_set(e, ERR_ORIGIN_FAILED, "the answer is no listing");
    size_t n = json_array_size(list);
    if (left > 0 && n == 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the listing says that more follows, but has no entry");
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++)
        r = add(f, json_array_get(list, i), e);
    if (r < 0)
        return r;
    *ret_last = n ? slice_dup(member(json_array_get(list, n - 1), "pathSuffix")) : NULL;
    *ret_left = left;
    return 0;
}

/* ---- errors ---- */

static const struct web_error_row classes[] = {
    {"FileNotFoundException", -ENOENT},
    {"AccessControlException", ERR_ORIGIN_DENIED},
    {"AuthorizationException", ERR_ORIGIN_DENIED},
    {"AuthenticationException", ERR_ORIGIN_DENIED},
    {"SecurityException", ERR_ORIGIN_DENIED},
    {"InvalidToken", ERR_ORIGIN_DENIED},
    {"StandbyException", ERR_ORIGIN_DOWN},
    {"SafeModeException", ERR_ORIGIN_BUSY},
    {"RetriableException", ERR_ORIGIN_BUSY},
    {"ServerTooBusyException", ERR_ORIGIN_BUSY},
    {"FileAlreadyExistsException", ERR_PRECONDITION},
    {"DSQuotaExceededException", -ENOSPC},
    {"NSQuotaExceededException", -ENOSPC},
    {"QuotaExceededException", -ENOSPC},
    {"UnsupportedOperationException", ERR_NOT_IMPLEMENTED},
    {"PathIsNotEmptyDirectoryException", -ENOTEMPTY},
    {"ParentNotDirectoryException", -EINVAL},
    {"InvalidPathException", -EINVAL},
    {"IllegalArgumentException", ERR_ORIGIN_REFUSED},
};

/* Only the first line: what follows is the server's stack. */
int hdfs_json_refused(const struct web_response *r, struct slice body, struct err *e)
{
    char code[64] = "", message[256] = "";
    json_t *_cleanup_(hdfs_json_unrefp) j = web_json(body, 0, NULL);
    const json_t *x = json_object_get(j, "RemoteException");
    struct slice words = member(x, "message"), line = slice_split(&words, '\n');
    if (json_is_object(x)) {
        web_error_text(code, sizeof(code), member(x, "exception"));
        web_error_text(message, sizeof(message), line);
    } else {
        web_error_line(body, message, sizeof(message));
    }
    /* A 403 of this protocol is any kind of IOException; only those of the table are refusals of access. */
    int status = r->status == 403 && json_is_object(x) ? 500 : r->status;
    int class = web_error_lookup(classes, ARRAY_SIZE(classes), status, slice_str(code));
    /* A name on the way is a file; what creates hears of it as a ParentNotDirectoryException. */
    if (class == ERR_ORIGIN_DENIED && slice_ends(line, SLICE_LIT(" (is not a directory)")))
        class = -ENOENT;
    else if (class == -ENOENT && strcmp(code, "FileNotFoundException") != 0)
        class = ERR_ORIGIN_FAILED; /* of a proxy, say: it does not know whether there is such a file */
    (void)web_error_set(e, class, r, code, message);
    if (r->status == 401 && strcmp(code, "InvalidToken") != 0)
        web_error_add(e, "; Kerberos is not spoken: set origin.delegation_token, or name a gateway");
    else if (strcmp(code, "StandbyException") == 0)
        web_error_add(e, "; name the namenode that is active, or a gateway");
    return class;
}
