/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small sorted map of keys to values or tombstones, and the growing buffer under it.
 *
 * For what a transaction or one page of a scan holds: a sorted array over one buffer, no memory
 * traffic once it has grown. Ascending puts cost an append. One thread at a time.
 */
#ifndef DFE_OBJ_SMAP_H
#define DFE_OBJ_SMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "obj/overlay.h"

struct bytes {
    uint8_t *p;
    size_t len, cap;
};

/* Room for `more` bytes after len; -ENOMEM, -E2BIG beyond 1 GiB. */
int bytes_room(struct bytes *b, size_t more);
int bytes_add(struct bytes *b, const void *data, size_t len);
void bytes_free(struct bytes *b);

struct smap_ent {
    uint32_t koff, voff, vlen; /* in data */
    uint16_t klen;
    uint8_t state; /* enum overlay_state */
};

struct smap {
    struct smap_ent *e;
    uint32_t n, cap;
    struct bytes data;
};

/* Inserts or replaces. -ENOMEM changes nothing. */
int smap_put(struct smap *m, const void *key, size_t klen, const void *val, size_t vlen,
             enum overlay_state state);
/* OVERLAY_NONE: not there. *val is valid until the next put. */
enum overlay_state smap_get(const struct smap *m, const void *key, size_t klen, const void **val,
                            size_t *vlen);
/* Index of the first entry >= key. */
uint32_t smap_seek(const struct smap *m, const void *key, size_t klen);
static inline const uint8_t *smap_key(const struct smap *m, uint32_t i)
{
    return m->data.p + m->e[i].koff;
}
static inline const uint8_t *smap_val(const struct smap *m, uint32_t i)
{
    return m->data.p + m->e[i].voff;
}
void smap_clear(struct smap *m);
void smap_free(struct smap *m);

#endif
