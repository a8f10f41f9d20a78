/*
 * What the AWS environment says: the variables and the two INI files that every AWS tool reads.
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

void s3_aws_fini(struct s3_aws *a)
{
    s3_credentials_fini(&a->credentials);
    free(a->process);
    free(a->region);
    free(a->endpoint);
}

static struct slice trim_line(struct slice s)
{
    s = slice_trim(s);
    if (s.n > 0 && s.p[s.n - 1] == '\r')
        s.n--;
    return slice_trim(s);
}

char *s3_ini_get(struct slice text, const char *section, const char *key)
{
    assert(section && key);
    bool inside = false;
    while (text.n > 0) {
        struct slice line = trim_line(slice_split(&text, '\n'));
        if (line.n == 0 || line.p[0] == '#' || line.p[0] == ';')
            continue;
        if (line.p[0] == '[') {
            ssize_t end = slice_find(line, ']');
            struct slice name = end > 0 ? slice_trim(slice_sub(line, 1, (size_t)end - 1)) : SLICE_NULL;
            inside = slice_eq_str(name, section);
            continue;
        }
        ssize_t equals = slice_find(line, '=');
        if (!inside || equals < 0)
            continue;
        if (slice_eq_str(slice_trim(slice_sub(line, 0, (size_t)equals)), key))
            return slice_dup(slice_trim(slice_from(line, (size_t)equals + 1)));
    }
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

/* What the section adds to what is known. */
static void from_section(struct slice text, const char *section, struct s3_aws *a)
{
    if (!a->credentials.access_key) {
        struct s3_credentials _cleanup_(s3_credentials_fini) found = {
            s3_ini_get(text, section, "aws_access_key_id"),
            s3_ini_get(text, section, "aws_secret_access_key"),
            s3_ini_get(text, section, "aws_session_token"),
        };
        if (found.access_key && found.secret_key) {
            a->credentials = found;
            a->is_lent = found.session_token != NULL;
            found = (struct s3_credentials){0};
        }
    }
    if (!a->credentials.access_key && !a->process)
        a->process = s3_ini_get(text, section, "credential_process");
    if (!a->region)
        a->region = s3_ini_get(text, section, "region");
    if (!a->endpoint)
        a->endpoint = s3_ini_get(text, section, "endpoint_url");
}

static void from_files(struct s3_aws *a)
{
    const char *profile = env2("AWS_PROFILE", "AWS_DEFAULT_PROFILE");
    if (!profile)
        profile = "default";
    size_t n = 0;
    char _cleanup_free_ *credentials = read_file("AWS_SHARED_CREDENTIALS_FILE", "credentials", &n);
    if (credentials) {
        from_section(slice_of(credentials, n), profile, a);
        explicit_bzero(credentials, n);
    }
    char _cleanup_free_ *config = read_file("AWS_CONFIG_FILE", "config", &n);
    if (!config)
        return;
    char _cleanup_free_ *section = NULL;
    bool plain = strcmp(profile, "default") == 0;
    if (asprintf(&section, "%s%s", plain ? "" : "profile ", profile) < 0)
        abort();
    from_section(slice_of(config, n), section, a);
    explicit_bzero(config, n);
}

void s3_aws_load(struct s3_aws *ret)
{
    *ret = (struct s3_aws){0};
    if (env("AWS_ACCESS_KEY_ID") && env("AWS_SECRET_ACCESS_KEY"))
        ret->credentials = (struct s3_credentials){
            env_dup("AWS_ACCESS_KEY_ID"), env_dup("AWS_SECRET_ACCESS_KEY"), env_dup("AWS_SESSION_TOKEN")};
    const char *region = env2("AWS_REGION", "AWS_DEFAULT_REGION");
    if (region)
        ret->region = slice_dup(slice_str(region));
    const char *endpoint = env2("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    if (endpoint)
        ret->endpoint = slice_dup(slice_str(endpoint));
    from_files(ret);
}
