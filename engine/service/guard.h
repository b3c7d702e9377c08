/* SPDX-License-Identifier: Apache-2.0 */
/* A page of a client's memory that cannot be had must not kill the engine. */
#ifndef DFE_SERVICE_GUARD_H
#define DFE_SERVICE_GUARD_H

#include <stdatomic.h>
#include <stddef.h>

/* Puts the handler of SIGBUS in front of whatever is there; again after libraries that install
 * their own. */
int guard_install(void);
/* A fault in base..base+len sets *hit and is answered with zeros. -ENOSPC: too many ranges. */
int guard_add(const void *base, size_t len, atomic_int *hit);
void guard_remove(const void *base);

#endif
