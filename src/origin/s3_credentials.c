/*
 * What the AWS environment says: the variables and the two INI files that every AWS tool reads. Who gives the
 * credentials is decided from it elsewhere (s3_chain.c).
 *
 *     AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_DEFAULT_REGION,
 *     AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_PROFILE, AWS_DEFAULT_PROFILE,
 *     AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials: sections [NAME]),
 *     AWS_CONFIG_FILE (~/.aws/config: sections [default] and [profile NAME])
 *
 * Invariants:
 *  1. Keys are taken as a set from one place; a secret never joins an access key from elsewhere.
 *  2. Files are read once per open of an origin, keys that end again (s3_provider.c), and at most FILE_MAX
 * bytes of them.
 *
 * Failure modes: none; what cannot be read is absent, and the origin's 403 then says so.
 */
#include "origin/s3_internal.h"

#define FILE_MAX MIB

void s3_credentials_fini(struct s3_credentials *c)
{
    free(c->access_key);
    if (c->secret_key)
        explicit_bzero(c->secret_key, strlen(c->secret_key));
    free(c->secret_key);
    free(c->session_token);
    *c = (struct s3_credentials){0};
}

static struct slice trim_line(struct slice s)
{
    s = slice_trim(s);
    if (s.n > 0 && s.p[s.n - 1] == '\r')
        s.n--;
    return slice_trim(s);
}

static size_t indent_of(struct slice line)
{
    size_t n = 0;
    while (n < line.n && (line.p[n] == ' ' || line.p[n] == '\t'))
        n++;
    return n;
}

/* The lines of a section: those that are indented below a key belong to its value, and are no keys of the
 * section ("s3 =" with settings of its own below it). */
struct ini_reader {
    struct slice text;
    bool inside, has_key;
    size_t key_indent;
};

static bool next_key(struct ini_reader *x, const char *section, struct slice *ret_key,
                     struct slice *ret_value)
{
    while (x->text.n > 0) {
        struct slice whole = slice_split(&x->text, '\n'), line = trim_line(whole);
        if (line.n == 0 || line.p[0] == '#' || line.p[0] == ';' ||
            (x->has_key && indent_of(whole) > x->key_indent))
            continue;
        x->has_key = line.p[0] != '[';
        x->key_indent = indent_of(whole);
        if (line.p[0] == '[') {
            ssize_t end = slice_find(line, ']');
            struct slice name = end > 0 ? slice_trim(slice_sub(line, 1, (size_t)end - 1)) : SLICE_NULL;
            x->inside = slice_eq_str(name, section);
            continue;
        }
        ssize_t equals = slice_find(line, '=');
        if (!x->inside || equals < 0)
            continue;
        *ret_key = slice_trim(slice_sub(line, 0, (size_t)equals));
        *ret_value = slice_trim(slice_from(line, (size_t)equals + 1));
        return true;
    }
    return false;
}

char *s3_ini_get(struct slice text, const char *section, const char *key)
{
    assert(section && key);
    struct ini_reader x = {.text = text};
    struct slice k, v;
    while (next_key(&x, section, &k, &v))
        if (slice_eq_str(k, key))
            return slice_dup(v);
    return NULL;
}

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static const char *env2(const char *name, const char *other)
{
    const char *v = env(name);
    return v ? v : env(other);
}

static char *env_dup(const char *name)
{
    const char *v = env(name);
    return v ? slice_dup(slice_str(v)) : NULL;
}

/* A heap copy of the file that `variable` names, or ~/.aws/NAME; NULL when it cannot be read. */
static char *read_file(const char *variable, const char *name, size_t *ret_n)
{
    char _cleanup_free_ *own = NULL;
    const char *path = env(variable);
    if (!path) {
        const char *home = env("HOME");
        if (!home)
            return NULL;
        if (asprintf(&own, "%s/.aws/%s", home, name) < 0)
            abort();
        path = own;
    }
    char *text = NULL;
    return sys_read_file(path, FILE_MAX, &text, ret_n) < 0 ? NULL : text;
}

/* ---- the files ---- */

static void files_read(struct s3_files *ret)
{
    *ret = (struct s3_files){0};
    ret->credentials = read_file("AWS_SHARED_CREDENTIALS_FILE", "credentials", &ret->credentials_n);
    ret->config = read_file("AWS_CONFIG_FILE", "config", &ret->config_n);
}

static void files_fini(struct s3_files *f)
{
    if (f->credentials)
        explicit_bzero(f->credentials, f->credentials_n);
    if (f->config)
        explicit_bzero(f->config, f->config_n);
    free(f->credentials);
    free(f->config);
}

/* Of the one file: [NAME], or [profile NAME]. */
static char *get_of(const struct s3_files *f, bool of_config, const char *profile, const char *key)
{
    char _cleanup_free_ *section = NULL;
    struct slice text =
        of_config ? slice_of(f->config, f->config_n) : slice_of(f->credentials, f->credentials_n);
    bool plain = !of_config || strcmp(profile, "default") == 0;
    if (asprintf(&section, "%s%s", plain ? "" : "profile ", profile) < 0)
        abort();
    char *v = s3_ini_get(text, section, key);
    if (v && !v[0]) {
        free(v);
        v = NULL;
    }
    return v;
}

char *s3_aws_get(const struct s3_aws *a, const char *profile, const char *key)
{
    char *v = get_of(&a->files, /* of_config= */ false, profile, key);
    return v ? v : get_of(&a->files, /* of_config= */ true, profile, key);
}

bool s3_aws_keys(const struct s3_aws *a, const char *profile, bool of_config, struct s3_credentials *ret)
{
    struct s3_credentials found = {
        get_of(&a->files, of_config, profile, "aws_access_key_id"),
        get_of(&a->files, of_config, profile, "aws_secret_access_key"),
        get_of(&a->files, of_config, profile, "aws_session_token"),
    };
    if (found.access_key && found.secret_key) {
        *ret = found;
        return true;
    }
    s3_credentials_fini(&found);
    return false;
}

bool s3_aws_knows(const struct s3_aws *a, const char *profile)
{
    struct slice k, v;
    char _cleanup_free_ *section = NULL;
    bool plain = strcmp(profile, "default") == 0;
    if (asprintf(&section, "%s%s", plain ? "" : "profile ", profile) < 0)
        abort();
    struct ini_reader credentials = {.text = slice_of(a->files.credentials, a->files.credentials_n)},
                      config = {.text = slice_of(a->files.config, a->files.config_n)};
    return next_key(&credentials, profile, &k, &v) || next_key(&config, section, &k, &v);
}

/* ---- all of it ---- */

bool s3_environment_keys(struct s3_credentials *ret)
{
    if (!env("AWS_ACCESS_KEY_ID") || !env("AWS_SECRET_ACCESS_KEY"))
        return false;
    *ret = (struct s3_credentials){env_dup("AWS_ACCESS_KEY_ID"), env_dup("AWS_SECRET_ACCESS_KEY"),
                                   env_dup("AWS_SESSION_TOKEN")};
    return true;
}

void s3_aws_load(const char *profile, struct s3_aws *ret)
{
    *ret = (struct s3_aws){0};
    const char *region = env2("AWS_REGION", "AWS_DEFAULT_REGION");
    const char *endpoint = env2("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    const char *named = profile ? profile : env2("AWS_PROFILE", "AWS_DEFAULT_PROFILE");
    files_read(&ret->files);
    ret->profile = slice_dup(slice_str(named ? named : "default"));
    ret->region = region ? slice_dup(slice_str(region)) : s3_aws_get(ret, ret->profile, "region");
    ret->endpoint = endpoint ? slice_dup(slice_str(endpoint)) : s3_aws_get(ret, ret->profile, "endpoint_url");
}

void s3_aws_fini(struct s3_aws *a)
{
    files_fini(&a->files);
    free(a->profile);
    free(a->region);
    free(a->endpoint);
}
