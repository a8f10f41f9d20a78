/*
 * libcurl's functions, out of the shared library.
 */
#include "net/libcurl.h"

#include "base/library.h"

struct libcurl curl;

static struct library library = LIBRARY(LIBCURL, "curl_", LIBCURL_FUNCTIONS, curl);

static CURLcode global_result;
static pthread_once_t global_once = PTHREAD_ONCE_INIT;

static void global_init(void)
{
    global_result = curl.global_init(CURL_GLOBAL_DEFAULT);
}

int libcurl_start(struct err *e)
{
    int r = library_load(&library, e);
    if (r < 0)
        return r;
    (void)pthread_once(&global_once, global_init);
    if (global_result != CURLE_OK)
        return err_set(e, -ENOMEM, "libcurl does not start: %s", curl.easy_strerror(global_result));
    return 0;
}
