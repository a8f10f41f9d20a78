/* Shared by the parts of the public API: forebay.c, forebay_put.c, forebay_names.c. */
#pragma once

#include "client/client_kept.h"
#include "client/client_lister.h"
#include "client/client_writer.h"
#include "forebay/forebay.h"

struct forebay {
    struct client *client;
    struct client_kept *kept;
};

/* This thread's error, cleared: every public call begins with it. */
struct err *forebay_err_begin(void);
/* Gives r, and makes sure that a failure has a text. */
int forebay_err_end(int r);
/* Copies into the fixed places of the public struct. */
void forebay_stat_fill(struct forebay_stat *ret, const struct client_attr *a);
