/* layer: namespace */
/* Which origins are one service, and how long one is known. */
#include "namespace/service.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define AT(...) ((struct origin_options){__VA_ARGS__})

struct place {
    const char *url;
    struct origin_options o;
};

static bool key_of(const struct place *p, struct buf *ret)
{
    struct origin_options o = p->o;
    return service_key(p->url, &o, ret);
}

static void assert_same(bool same, struct place x, struct place y)
{
    struct buf _cleanup_buf_ a = BUF_INIT(SERVICE_KEY_MAX), b = BUF_INIT(SERVICE_KEY_MAX);
    if (!key_of(&x, &a) || !key_of(&y, &b))
        fail_msg("%s or %s has no service", x.url, y.url);
    if (slice_eq(buf_view(&a), buf_view(&b)) != same)
        fail_msg("%s and %s: %s expected", x.url, y.url, same ? "one service" : "two services");
}

#define EP .endpoint = "http://10.0.0.1:9000"

/* One service are buckets of one endpoint and account; of a cloud that counts by bucket, prefixes of a
 * bucket; of Azure an account; of others a host. Neither limits nor secrets matter. */
static void test_what_is_one_service(void **state)
{
    (void)state;
    const struct {
        bool same;
        struct place x, y;
    } rows[] = {
        {true, {"s3://a", AT(EP, .access_key = "K")}, {"s3://b/p", AT(EP, .access_key = "K")}},
        {true,
         {"s3://a", AT(EP, .connections = 1)},
         {"s3://a", AT(EP, .connections = 2, .as_of = "2026-01-01")}},
        {true, {"s3://a", AT(EP, .secret_key = "S")}, {"s3://a", AT(EP, .secret_key = "T")}},
        {false, {"s3://a", AT(EP, .access_key = "K")}, {"s3://a", AT(EP, .access_key = "L")}},
        {false, {"s3://a", AT(EP)}, {"s3://a", AT(.endpoint = "http://10.0.0.2:9000")}},
        {false, {"s3://a", AT(EP)}, {"gs://a", AT(EP)}},
        {true, {"s3://a/p", AT(.profile = "x")}, {"s3://a/q", AT(.profile = "x")}},
        {false, {"s3://a", AT(.profile = "x")}, {"s3://a", AT(.profile = "y")}},
        {false, {"s3://a", AT(.region = "r")}, {"s3://b", AT(.region = "r")}},
        {false, {"gs://a", AT()}, {"gs://b", AT()}},
        {true, {"az://c", AT(.account = "x")}, {"az://d/p", AT(.account = "x")}},
        {false, {"az://c", AT(.account = "x")}, {"az://c", AT(.account = "y")}},
        {true, {"http://h:80/a", AT()}, {"http://h:80/b", AT()}},
        {false, {"http://h:80/a", AT()}, {"https://h:80/a", AT()}},
        {false, {"http://h:80/a", AT()}, {"http://h:81/a", AT()}},
        {true, {"hdfs://h:1/a", AT(.user = "u")}, {"hdfs://h:1/b", AT(.user = "u")}},
        {false, {"hdfs://h:1/a", AT(.user = "u")}, {"hdfs://h:1/a", AT(.user = "v")}},
        {true, {"forebay://h:1/a", AT()}, {"forebay://h:1/b", AT()}},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        assert_same(rows[i].same, rows[i].x, rows[i].y);
    struct buf _cleanup_buf_ b = BUF_INIT(SERVICE_KEY_MAX);
    assert_false(key_of(&(struct place){"file:///d", AT()}, &b));
    assert_false(key_of(&(struct place){"nfs://h/d", AT()}, &b));
    assert_true(key_of(&(struct place){"s3://a", AT(EP, .secret_key = "hidden")}, &b));
    assert_true(slice_find_slice(buf_view(&b), SLICE_LIT("hidden")) < 0);
}

/* A service is one as long as somebody has it; then nothing is known of it. */
static void test_a_service_lives_as_long_as_it_is_used(void **state)
{
    (void)state;
    struct service_table *t = service_table_new();
    struct service *a = service_find(t, SLICE_LIT("a")), *b = service_find(t, SLICE_LIT("b"));
    assert_ptr_not_equal(a, b);
    atomic_store(&a->busy_ms, 5000);
    assert_ptr_equal(service_find(t, SLICE_LIT("a")), a);
    assert_true(service_is_slow(a, 5001) && service_is_slow(a, 5000 + SERVICE_SLOW_MS - 1));
    assert_false(service_is_slow(a, 5000 + SERVICE_SLOW_MS) || service_is_slow(b, 5001));
    service_unref(a);
    service_unref(a);
    a = service_find(t, SLICE_LIT("a"));
    assert_int_equal(atomic_load(&a->busy_ms), 0);
    service_unref(b);
    service_unref(a);
    service_unref(NULL);
    service_table_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_one_service),
        cmocka_unit_test(test_a_service_lives_as_long_as_it_is_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
