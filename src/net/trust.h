/*
 * The authorities by which the certificates of origins are verified, read once for all connections.
 *
 * By itself libcurl reads them for each multi handle anew, so for each connection: the 144 of a Debian 12
 * take OpenSSL 3.0 some 70 ms of processor time and 0.8 MB, a hundred connections at a time several seconds
 * (bench/NOTES.md, `prefetch`).
 *
 * A file that changed is read again. Where libcurl's TLS is not the OpenSSL of this process, it reads them
 * itself.
 */
#pragma once

#include "base/err.h"

#include "net/libcurl.h"

/* What one transfer needs; lives until it has ended. */
struct trust {
    const char *ca_file; /* PEM; NULL: libcurl's own */
    int result;          /* why the authorities could not be had, if they could not; with `e` filled */
    struct err *e;
};

/* Before the transfer, behind curl_easy_reset. libcurl_start has been called. ERR_ORIGIN_SETUP may come as
 * the result then. Any thread. */
void trust_set(CURL *easy, struct trust *t);
