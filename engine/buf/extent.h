/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping of one extent's memory into the arena's reserved addresses. */
#ifndef DFE_BUF_EXTENT_H
#define DFE_BUF_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buf/buf.h"

/* Address space of that length, aligned to extents, that nothing else will be mapped into; NULL. */
void *extent_reserve(uint64_t len_bytes);
void extent_unreserve(void *base, uint64_t len_bytes);

/* Maps memory at base, of kind `best` or the next that the host grants: 0 and *kind, or -ENOMEM.
 * window: a sealed memfd, whose descriptor is *fd; -1 where none is to be had, or wanted. */
int extent_map(void *base, enum buf_kind best, bool window, enum buf_kind *kind, int *fd);
/* Gives the memory back and keeps the addresses reserved. */
void extent_unmap(void *base);

#endif
