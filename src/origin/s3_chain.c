/*
 * Whose credentials are used: decided when an origin is opened, in the order of other AWS tools.
 *
 *     1. of the bucket: origin.access_key and origin.secret_key; origin.profile, which is then looked at in
 *        place of the environment; origin.metadata_endpoint
 *     2. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
 *     3. the profile's role_arn with source_profile or credential_source (s3_sts.c)
 *     4. a web identity: AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN, else the profile's
 *     5. the profile's keys, first of the credentials file; credential_process; those of the config file
 *     6. a container's, an instance's
 *
 * Invariants:
 *  1. Nothing is sent, and no program run.
 *  2. A profile leads through at most HOPS_MAX others, so that no circle is followed for ever.
 *  3. What is half there is an error, not an occasion to look further: requests with another identity would
 *     be refused by a service that says nothing of the reason.
 *
 * Failure modes: ERR_BAD_OPTION of the bucket's own settings, ERR_ORIGIN_SETUP of everything else.
 */
#include "origin/s3_internal.h"

#include <stdarg.h>

#define HOPS_MAX 5

struct look {
    const struct origin_options *o;
    const struct s3_aws *aws;
    bool environment; /* its web identity counts, too */
    bool roles;
    unsigned hops;
};

void s3_chain_fini(struct s3_chain *c)
{
    s3_credentials_fini(&c->fixed);
    s3_provider_free(c->provider);
    free(c->told);
    *c = (struct s3_chain){0};
}

static bool is_found(const struct s3_chain *c)
{
    return c->fixed.access_key || c->provider;
}

static void PRINTF_LIKE(2, 3) tell(struct s3_chain *c, const char *fmt, ...)
{
    va_list v;
    va_start(v, fmt);
    free(c->told);
    if (vasprintf(&c->told, fmt, v) < 0)
        abort();
    va_end(v);
}

static void take_provider(struct s3_chain *c, struct s3_provider *p)
{
    if (!p)
        return;
    c->provider = p;
    tell(c, "%s", s3_provider_told(p));
}

/* ---- a profile ---- */

static int find_profile(const struct look *l, const char *profile, struct s3_chain *ret, struct err *e);

static int of_source(const struct look *l, const char *profile, const char *source, struct s3_chain *ret,
                     struct err *e)
{
    int r = 0;
    struct s3_provider *p = NULL;
    if (strcasecmp(source, "Environment") == 0) {
        if (s3_environment_keys(&ret->fixed))
            tell(ret, "AWS_ACCESS_KEY_ID of the environment");
    } else if (strcasecmp(source, "EcsContainer") == 0) {
        r = s3_provider_of_container(l->o, &p, e);
    } else if (strcasecmp(source, "Ec2InstanceMetadata") == 0) {
        r = s3_provider_of_instance(l->o, &p, e);
    } else {
        return err_set(e, ERR_ORIGIN_SETUP,
                       "AWS profile %s: credential_source %s: must be Environment, EcsContainer or "
                       "Ec2InstanceMetadata",
                       profile, source);
    }
    if (r < 0)
        return r;
    take_provider(ret, p);
    return is_found(ret)
               ? 0
               : err_set(e, ERR_ORIGIN_SETUP,
                         "AWS profile %s: credential_source %s: there are no credentials", profile, source);
}

static void find_keys(const struct look *l, const char *profile, struct s3_chain *ret)
{
    char _cleanup_free_ *process = s3_aws_get(l->aws, profile, "credential_process");
    for (int of_config = 0; of_config < 2 && !is_found(ret); of_config++) {
        if (s3_aws_keys(l->aws, profile, of_config, &ret->fixed)) {
            tell(ret, "keys of the AWS profile %s", profile);
            if (!ret->fixed.session_token)
                return;
            s3_credentials_fini(&ret->fixed);
            take_provider(ret, s3_provider_of_files(profile, of_config));
        } else if (process) {
            take_provider(ret, s3_provider_of_process(process, profile));
        }
    }
}

static int of_profile(const struct look *l, const char *profile, const char *source, struct s3_chain *ret,
                      struct err *e)
{
    struct look next = *l;
    next.environment = false;
    next.hops++;
    if (next.hops > HOPS_MAX)
        return err_set(e, ERR_ORIGIN_SETUP,
                       "AWS profile %s: source_profile leads in a circle, or through more than %d profiles",
                       profile, HOPS_MAX);
    if (!s3_aws_knows(l->aws, source))
        return err_set(e, ERR_ORIGIN_SETUP, "AWS profile %s: source_profile %s: there is no such profile",
                       profile, source);
    int r = 0;
    if (strcmp(profile, source) == 0)
        find_keys(l, source, ret);
    else
        r = find_profile(&next, source, ret, e);
    if (r < 0 || is_found(ret))
        return r;
    return err_set(e, ERR_ORIGIN_SETUP, "AWS profile %s: source_profile %s has no credentials", profile,
                   source);
}

/* With what every question to STS has. `source` is taken over when it succeeds. */
static int make_role(const struct look *l, const char *profile, struct s3_role_ask *q,
                     struct s3_chain *source, struct s3_chain *ret, struct err *e)
{
    const char *endpoint = web_env("AWS_ENDPOINT_URL_STS"), *regional = web_env("AWS_STS_REGIONAL_ENDPOINTS");
    char _cleanup_free_ *own = s3_aws_get(l->aws, profile, "sts_regional_endpoints");
    char _cleanup_free_ *own_endpoint = s3_aws_get(l->aws, profile, "endpoint_url");
    if (!endpoint)
        endpoint = web_env("AWS_ENDPOINT_URL");
    q->endpoint = endpoint ? endpoint : own_endpoint;
    q->regional = regional ? regional : own;
    q->region = l->aws->region ? l->aws->region : l->o->region ? l->o->region : "us-east-1";
    struct s3_role *role = NULL;
    int r = s3_role_new(q, l->o, source, &role, e);
    if (r < 0)
        return r;
    take_provider(ret, s3_provider_of_role(role));
    return 0;
}

/* The profile's role_arn, with whoever signs for it. */
static int find_role(const struct look *l, const char *profile, struct s3_chain *ret, struct err *e)
{
    char _cleanup_free_ *arn = s3_aws_get(l->aws, profile, "role_arn");
    char _cleanup_free_ *token_file = s3_aws_get(l->aws, profile, "web_identity_token_file");
    if (!arn || token_file)
        return 0;
    char _cleanup_free_ *source_profile = s3_aws_get(l->aws, profile, "source_profile");
    char _cleanup_free_ *source = s3_aws_get(l->aws, profile, "credential_source");
    char _cleanup_free_ *device = s3_aws_get(l->aws, profile, "mfa_serial");
    if (!source == !source_profile)
        return err_set(e, ERR_ORIGIN_SETUP,
                       "AWS profile %s: role_arn needs one of source_profile and credential_source", profile);
    if (device)
        return err_set(
            e, ERR_ORIGIN_SETUP,
            "AWS profile %s: mfa_serial: a node has nobody to ask for the code of a device; name a "
            "profile without, or one with a credential_process",
            profile);
    struct s3_chain _cleanup_(s3_chain_fini) signs = {0};
    int r =
        source ? of_source(l, profile, source, &signs, e) : of_profile(l, profile, source_profile, &signs, e);
    if (r < 0)
        return r;
    char _cleanup_free_ *session = s3_aws_get(l->aws, profile, "role_session_name");
    char _cleanup_free_ *external_id = s3_aws_get(l->aws, profile, "external_id");
    char _cleanup_free_ *duration = s3_aws_get(l->aws, profile, "duration_seconds");
    struct s3_role_ask q = {.arn = arn, .session = session, .external_id = external_id, .duration = duration};
    return make_role(l, profile, &q, &signs, ret, e);
}

/* Of the environment, where it counts and says it, else of the profile: each value by itself. */
static char *identity_value(const struct look *l, const char *variable, const char *profile, const char *key)
{
    const char *v = l->environment ? web_env(variable) : NULL;
    return v ? web_dup(v) : s3_aws_get(l->aws, profile, key);
}

static int find_web_identity(const struct look *l, const char *profile, struct s3_chain *ret, struct err *e)
{
    char _cleanup_free_ *file =
        identity_value(l, "AWS_WEB_IDENTITY_TOKEN_FILE", profile, "web_identity_token_file");
    char _cleanup_free_ *arn = identity_value(l, "AWS_ROLE_ARN", profile, "role_arn");
    char _cleanup_free_ *session = identity_value(l, "AWS_ROLE_SESSION_NAME", profile, "role_session_name");
    if (!file)
        return 0;
    if (!arn)
        return err_set(e, ERR_ORIGIN_SETUP,
                       "AWS_WEB_IDENTITY_TOKEN_FILE (or web_identity_token_file of the AWS profile %s) is "
                       "set without AWS_ROLE_ARN (or role_arn)",
                       profile);
    struct s3_role_ask q = {.arn = arn, .session = session, .token_file = file};
    struct s3_chain none = {0};
    return make_role(l, profile, &q, &none, ret, e);
}

static int refuse_sso(const struct look *l, const char *profile, struct err *e)
{
    char _cleanup_free_ *account = s3_aws_get(l->aws, profile, "sso_account_id");
    char _cleanup_free_ *role = s3_aws_get(l->aws, profile, "sso_role_name");
    if (!account && !role)
        return 0;
    return err_set(
        e, ERR_ORIGIN_SETUP,
        "AWS profile %s: a sign-in by a browser (sso_account_id) is not spoken; name a profile with "
        "\"credential_process = aws configure export-credentials --profile %s\"",
        profile, profile);
}

static int find_profile(const struct look *l, const char *profile, struct s3_chain *ret, struct err *e)
{
    char _cleanup_free_ *key = s3_aws_get(l->aws, profile, "aws_access_key_id");
    int r = 0;
    if (l->roles && !(l->hops > 0 && key)) /* of a source_profile keys go first */
        r = find_role(l, profile, ret, e);
    if (r == 0 && l->roles && !is_found(ret))
        r = find_web_identity(l, profile, ret, e);
    if (r == 0 && !is_found(ret))
        find_keys(l, profile, ret);
    if (r == 0 && l->roles && !is_found(ret))
        r = refuse_sso(l, profile, e);
    return r;
}

/* ---- all of it ---- */

static int of_bucket(const struct look *l, struct s3_chain *ret, struct err *e)
{
    const struct origin_options *o = l->o;
    if (!o->access_key != !o->secret_key)
        return err_set(e, ERR_BAD_OPTION, "%s is set without %s",
                       o->access_key ? "origin.access_key" : "origin.secret_key",
                       o->access_key ? "origin.secret_key" : "origin.access_key");
    if (o->access_key) {
        ret->fixed = (struct s3_credentials){web_dup(o->access_key), web_dup(o->secret_key),
                                             web_dup(o->session_token)};
        tell(ret, "origin.access_key of the bucket");
        return 0;
    }
    if (o->profile && !s3_aws_knows(l->aws, o->profile))
        return err_set(
            e, ERR_BAD_OPTION,
            "origin.profile %s: no such profile in the node's ~/.aws/config and ~/.aws/credentials",
            o->profile);
    struct s3_provider *p = NULL;
    int r = o->metadata_endpoint && !o->profile ? s3_provider_of_instance(o, &p, e) : 0;
    take_provider(ret, p);
    return r;
}

static int of_machine(const struct look *l, struct s3_chain *ret, struct err *e)
{
    struct s3_provider *p = NULL;
    int r = s3_provider_of_container(l->o, &p, e);
    if (r == 0 && !p)
        r = s3_provider_of_instance(l->o, &p, e);
    take_provider(ret, p);
    return r;
}

/* A profile that is named and not there: another identity in its place would be a surprise. */
static int check_profile(const struct look *l, struct err *e)
{
    const char *named = web_env("AWS_PROFILE") ? web_env("AWS_PROFILE") : web_env("AWS_DEFAULT_PROFILE");
    if (!l->environment || !named || s3_aws_knows(l->aws, named))
        return 0;
    return err_set(e, ERR_ORIGIN_SETUP,
                   "AWS_PROFILE %s: no such profile in the node's ~/.aws/config and ~/.aws/credentials",
                   named);
}

int s3_chain_find(const struct origin_options *o, const struct s3_aws *aws, bool roles, struct s3_chain *ret,
                  struct err *e)
{
    struct look l = {.o = o, .aws = aws, .environment = !o->profile, .roles = roles};
    struct s3_chain _cleanup_(s3_chain_fini) found = {0};
    if (o->anonymous) {
        tell(ret, "none, by origin.anonymous: requests are not signed");
        return 0;
    }
    int r = of_bucket(&l, &found, e);
    if (r == 0 && !is_found(&found) && l.environment && s3_environment_keys(&found.fixed))
        tell(&found, "AWS_ACCESS_KEY_ID of the environment");
    if (r == 0 && !is_found(&found))
        r = check_profile(&l, e);
    if (r == 0 && !is_found(&found))
        r = find_profile(&l, aws->profile, &found, e);
    if (r == 0 && !is_found(&found))
        r = of_machine(&l, &found, e);
    if (r < 0)
        return r;
    if (!is_found(&found))
        tell(&found, "none: requests are not signed");
    *ret = found;
    found = (struct s3_chain){0};
    return 0;
}
