/* SPDX-License-Identifier: Apache-2.0 */
/* Loans: bytes of the cache that a client reads where they are, unchanged until it gives them back
 * or ends. A loan is a use of its file system, so that closing the handle leaves it alone. */
#ifndef DFE_SERVICE_LOANS_H
#define DFE_SERVICE_LOANS_H

#include <dfe.h>
#include <pthread.h>
#include <stdint.h>

#include "client/proto.h"

struct host;
struct host_cont;
struct loan;

/* Loans of one session: each holds a slot of up to 1 MiB, and is charged for what it shows. */
#define LOANS_BOUND 4096u

struct loans {
    pthread_mutex_t lock;
    struct loan *table; /* grows to LOANS_BOUND */
    uint32_t n, free;   /* places; first free one */
    uint64_t bytes, count;
};

void loans_open(struct loans *loans);
void loans_close(struct loans *loans, struct host *host); /* gives all back */

/* The caller uses the file system. 0 with *out and *number; len 0 at the end of the file, and then
 * there is no loan. -ENOBUFS: over the quota. */
int loans_take(struct loans *loans, struct host_cont *hc, uint64_t ino, uint64_t off, size_t len,
               unsigned flags, struct proto_lease *out, uint64_t *number);
/* -ESTALE: not lent, given back before, or lent by an earlier worker. */
int loans_drop(struct loans *loans, struct host *host, uint64_t number, unsigned flags);

#endif
