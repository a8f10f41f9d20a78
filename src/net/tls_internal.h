/* What tls.c (connections) and tls_server.c (certificates) share. */
#pragma once

#include "net/tls.h"

#include <openssl/ssl.h>

/* A new session with the certificate that holds now; NULL without memory. Any thread. */
SSL *tls_server_session(struct tls_server *s);
