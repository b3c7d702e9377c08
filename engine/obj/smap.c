/* SPDX-License-Identifier: Apache-2.0 */
/* Small sorted map. */
#include "obj/smap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "obj/key.h"

#define BYTES_MAX (1u << 30) /* offsets are 32 bits; nothing here comes near it */
#define KEEP_BYTES (1u << 20) /* a recycled map gives back what is more */

int bytes_room(struct bytes *b, size_t more)
{
    size_t cap = b->cap ? b->cap : 512;
    uint8_t *p;

    if (b->cap - b->len >= more)
        return 0;
    if (more > BYTES_MAX || b->len + more > BYTES_MAX)
        return -E2BIG;
    while (cap < b->len + more)
        cap *= 2;
    p = realloc(b->p, cap);
    if (!p)
        return -ENOMEM;
    b->p = p;
    b->cap = cap;
    return 0;
}

int bytes_add(struct bytes *b, const void *data, size_t len)
{
    int rc = bytes_room(b, len);

    if (rc < 0)
        return rc;
    if (len > 0)
        memcpy(b->p + b->len, data, len);
    b->len += len;
    return 0;
}

void bytes_free(struct bytes *b)
{
    free(b->p);
    *b = (struct bytes){0};
}

uint32_t smap_seek(const struct smap *m, const void *key, size_t klen)
{
    uint32_t lo = 0, hi = m->n;

    /* ascending puts, the usual case, end here */
    if (hi > 0 && key_cmp(smap_key(m, hi - 1), m->e[hi - 1].klen, key, klen) < 0)
        return hi;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (key_cmp(smap_key(m, mid), m->e[mid].klen, key, klen) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int smap_put(struct smap *m, const void *key, size_t klen, const void *val, size_t vlen,
             enum overlay_state state)
{
    uint32_t i = smap_seek(m, key, klen);
    bool replace = i < m->n && m->e[i].klen == klen && memcmp(smap_key(m, i), key, klen) == 0;
    int rc = bytes_room(&m->data, klen + vlen);

    if (rc < 0)
        return rc;
    if (!replace && m->n == m->cap) {
        uint32_t cap = m->cap ? m->cap * 2 : 16;
        struct smap_ent *e = realloc(m->e, cap * sizeof(*e));
        if (!e)
            return -ENOMEM;
        m->e = e;
        m->cap = cap;
    }
    if (!replace) {
        memmove(m->e + i + 1, m->e + i, (m->n - i) * sizeof(*m->e));
        m->n++;
        m->e[i].koff = (uint32_t)m->data.len;
        m->e[i].klen = (uint16_t)klen;
        bytes_add(&m->data, key, klen);
    }
    m->e[i].voff = (uint32_t)m->data.len;
    m->e[i].vlen = (uint32_t)vlen;
    m->e[i].state = (uint8_t)state;
    bytes_add(&m->data, val, vlen);
    return 0;
}

enum overlay_state smap_get(const struct smap *m, const void *key, size_t klen, const void **val,
                            size_t *vlen)
{
    uint32_t i = smap_seek(m, key, klen);

    if (i >= m->n || m->e[i].klen != klen || memcmp(smap_key(m, i), key, klen) != 0)
        return OVERLAY_NONE;
    *val = smap_val(m, i);
    *vlen = m->e[i].vlen;
    return (enum overlay_state)m->e[i].state;
}

void smap_clear(struct smap *m)
{
    m->n = 0;
    m->data.len = 0;
    if (m->data.cap > KEEP_BYTES)
        bytes_free(&m->data);
}

void smap_free(struct smap *m)
{
    free(m->e);
    bytes_free(&m->data);
    *m = (struct smap){0};
}
