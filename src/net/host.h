/* Names of hosts. */
#pragma once

#include "base/err.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdint.h>

#define HOST_ADDRESS_MAX INET6_ADDRSTRLEN

/* The addresses that the name has, for connections to a port, in the order in which they are to be tried; an
 * address is its own, NULL those of the loopback. To be given to freeaddrinfo. The system's name servers are
 * not waited for beyond timeout_ms, nor when nobody wants that any more (`cancel`, which may be NULL, and
 * base/quit.h). -EADDRNOTAVAIL with the resolver's words, -ETIMEDOUT, -ECANCELED, -EAGAIN when there is no
 * thread for it. */
int host_addresses(const char *name, uint16_t port, uint64_t timeout_ms, const atomic_bool *cancel,
                   struct addrinfo **ret, struct err *e);
/* One of them as text. */
int host_text(const struct addrinfo *a, char ret[HOST_ADDRESS_MAX], struct err *e);
