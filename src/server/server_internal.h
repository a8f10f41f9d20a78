/* What server.c and admin.c share. */
#pragma once

#include "jobs/jobs.h"
#include "object/object.h"
#include "s3/s3.h"
#include "server/data_dir.h"
#include "server/front.h"
#include "server/memory.h"
#include "server/server.h"

#define SERVER_MAGIC 0x53525652u

struct server {
    uint32_t magic;
    uint64_t started_ns;  /* real time */
    uint64_t up_since_ns; /* monotonic */
    struct data_dir dir;
    struct seal *seal; /* of the secrets in the control store */
    struct kv *control;
    struct store *store;
    struct budget *budget;  /* the object service's share of --memory */
    struct budget *buffers; /* the wire protocol's */
    struct object_service *objects;
    struct object_session *session; /* for the status page */
    struct jobs *jobs;
    struct s3 *s3;
    struct tls_server *tls; /* NULL: plain HTTP */
    struct front *front;
    uint64_t memory_bytes, drain_timeout_ms;
    uint64_t files_max; /* descriptors that the process may have; 0: unknown */
    char http_address[128], wire_address[128];
    char *ready_line;
    atomic_bool stopping;
};

/* ---- admin.c: everything below "/-/" ---- */
/* Whether the request is one that never blocks and needs no credentials: health and metrics. */
bool admin_is_express(const struct http_request *r);
bool admin_is_ours(const struct http_request *r);
void admin_handle(struct server *s, struct http_conn *c);
