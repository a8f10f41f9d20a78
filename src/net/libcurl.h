/*
 * libcurl's functions that are called: curl.easy_init is curl_easy_init. The library is loaded by the first
 * who calls libcurl_start, and not with the program, most of whose commands do without it (base/library.h).
 */
#pragma once

#include "base/err.h"

#include <curl/curl.h>

#define LIBCURL_FUNCTIONS(X)                                                                                 \
    X(easy_cleanup)                                                                                          \
    X(easy_getinfo)                                                                                          \
    X(easy_init)                                                                                             \
    X(easy_perform)                                                                                          \
    X(easy_reset)                                                                                            \
    X(easy_setopt)                                                                                           \
    X(easy_strerror)                                                                                         \
    X(free)                                                                                                  \
    X(global_init)                                                                                           \
    X(multi_add_handle)                                                                                      \
    X(multi_cleanup)                                                                                         \
    X(multi_info_read)                                                                                       \
    X(multi_init)                                                                                            \
    X(multi_perform)                                                                                         \
    X(multi_poll)                                                                                            \
    X(multi_remove_handle)                                                                                   \
    X(multi_setopt)                                                                                          \
    X(slist_append)                                                                                          \
    X(slist_free_all)                                                                                        \
    X(url)                                                                                                   \
    X(url_cleanup)                                                                                           \
    X(url_get)                                                                                               \
    X(url_set)                                                                                               \
    X(version_info)

struct libcurl {
#define X(name) __typeof__(curl_##name) *name;
    LIBCURL_FUNCTIONS(X)
#undef X
};

/* Filled by libcurl_start; constant afterwards. */
extern struct libcurl curl;

/* Loads and starts curl in this process when it is the first; before any other of its functions is called.
 * -ELIBACC when the library is not installed. Any thread. */
int libcurl_start(struct err *e);

/* curl_easy_setopt with the check of curl's own macro that matters, since any value can be passed: what takes
 * a number is given a long or a curl_off_t, and nothing else is. */
#define curl_set(easy, option, value)                                                                        \
    do {                                                                                                     \
        static_assert(_Generic((value), int : 0, long : 1, default : 2) ==                                   \
                          (LIBCURL_TAKES_NUMBER(option) ? 1 : 2),                                            \
                      #option " takes a value of another type");                                             \
        (void)curl.easy_setopt(easy, option, value);                                                         \
    } while (0)
#define LIBCURL_TAKES_NUMBER(option)                                                                         \
    ((option) / CURLOPTTYPE_OBJECTPOINT == 0 || (option) / CURLOPTTYPE_OBJECTPOINT == 3)
