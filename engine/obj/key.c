/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding and decoding of index keys. */
#include "obj/key.h"

#include <errno.h>
#include <string.h>

#include "base/words.h"

/* After a 00 byte of escaped bytes: FF, the byte was data; 01, the end. 02 sorts behind the end and
 * before every longer dkey: nothing is stored there, so it bounds what one dkey holds. */
#define ESC_DATA 0xff
#define ESC_END 0x01
#define ESC_AFTER 0x02
#define DEATH_BYTES 8

static void key_start(struct key *k, enum key_table table)
{
    k->b[0] = (uint8_t)table;
    k->len = 1;
}

static int key_add(struct key *k, const void *p, size_t n)
{
    if (n > sizeof(k->b) - k->len)
        return -ENAMETOOLONG;
    if (n)
        memcpy(k->b + k->len, p, n);
    k->len += (uint16_t)n;
    return 0;
}

static int key_add_escaped(struct key *k, const void *p, size_t n, uint8_t end)
{
    static const uint8_t zero[2] = {0, ESC_DATA};
    const uint8_t last[2] = {0, end}, *b = p;
    int err = 0;

    for (size_t i = 0; i < n && err == 0; i++)
        err = b[i] ? key_add(k, &b[i], 1) : key_add(k, zero, 2);
    return err ? err : key_add(k, last, 2);
}

/* Bytes of p once escaped and ended. */
static size_t escaped_len(const void *p, size_t n)
{
    const uint8_t *b = p;
    size_t len = n + 2;

    for (size_t i = 0; i < n; i++)
        len += b[i] == 0;
    return len;
}

void key_obj(struct key *k, enum key_table table, uint32_t cont, struct obj_id oid)
{
    key_start(k, table);
    put_be32(k->b + 1, cont);
    put_be64(k->b + 5, oid.hi);
    put_be64(k->b + 13, oid.lo);
    k->len = KEY_OBJ_BYTES;
}

int key_kv(struct key *k, uint32_t cont, struct obj_id oid, const struct obj_key *ok)
{
    size_t side = KEY_OBJ_BYTES + escaped_len(ok->dkey, ok->dkey_len) +
                  escaped_len(ok->akey, ok->akey_len) + DEATH_BYTES;
    int err;

    if (ok->dkey_len == 0)
        return -EINVAL;
    if (side > sizeof(k->b))
        return -ENAMETOOLONG;
    key_obj(k, KEY_KV, cont, oid);
    err = key_add_escaped(k, ok->dkey, ok->dkey_len, ESC_END);
    return err ? err : key_add(k, ok->akey, ok->akey_len);
}

int key_kv_dkey_end(struct key *k, uint32_t cont, struct obj_id oid, const void *dkey,
                    uint16_t dkey_len)
{
    if (dkey_len == 0)
        return -EINVAL;
    key_obj(k, KEY_KV, cont, oid);
    return key_add_escaped(k, dkey, dkey_len, ESC_AFTER);
}

void key_ext(struct key *k, uint32_t cont, struct obj_id oid, uint64_t off_blk)
{
    key_obj(k, KEY_EXT, cont, oid);
    put_be64(k->b + k->len, off_blk);
    k->len += 8;
}

/* Finds the end of escaped bytes at p: their encoded length with the end mark, or -EUCLEAN. */
static int escaped_end(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++) {
        if (p[i] != 0)
            continue;
        i++;
        if (p[i] == ESC_END)
            return (int)i + 1;
        if (p[i] != ESC_DATA)
            return -EUCLEAN;
    }
    return -EUCLEAN;
}

/* n encoded bytes, end mark included; returns the decoded length. */
static size_t unescape(uint8_t *to, const uint8_t *p, size_t n)
{
    size_t len = 0;

    for (size_t i = 0; i + 2 < n; i++) {
        to[len++] = p[i];
        if (p[i] == 0)
            i++;
    }
    return len;
}

int key_side(struct key *k, const struct key *live, uint64_t death)
{
    uint8_t be[DEATH_BYTES];
    int n, err;

    put_be64(be, death);
    if (live->len < KEY_OBJ_BYTES)
        return -EUCLEAN;
    *k = *live;
    if (live->b[0] == KEY_EXT && live->len == KEY_OBJ_BYTES + 8) {
        k->b[0] = KEY_SEXT;
        return key_add(k, be, sizeof(be));
    }
    if (live->b[0] != KEY_KV)
        return -EUCLEAN;
    n = escaped_end(live->b + KEY_OBJ_BYTES, live->len - KEY_OBJ_BYTES);
    if (n < 0)
        return n;
    k->b[0] = KEY_SKV;
    k->len = (uint16_t)(KEY_OBJ_BYTES + n);
    err = key_add_escaped(k, live->b + k->len, live->len - k->len, ESC_END);
    return err ? err : key_add(k, be, sizeof(be));
}

int key_pool(struct key *k, enum key_table table, const void *name, size_t len)
{
    key_start(k, table);
    return key_add(k, name, name ? len : 0);
}

void key_u32(struct key *k, enum key_table table, uint32_t v)
{
    key_start(k, table);
    put_be32(k->b + 1, v);
    k->len = 5;
}

void key_u32_u64(struct key *k, enum key_table table, uint32_t a, uint64_t b)
{
    key_u32(k, table, a);
    put_be64(k->b + 5, b);
    k->len = 13;
}

void key_u64(struct key *k, enum key_table table, uint64_t v)
{
    key_start(k, table);
    put_be64(k->b + 1, v);
    k->len = 9;
}

int key_parse_obj(const void *k, size_t len, enum key_table *table, uint32_t *cont,
                  struct obj_id *oid)
{
    const uint8_t *b = k;

    if (len < KEY_OBJ_BYTES || len > DFE_KEY_BYTES || b[0] < KEY_KV || b[0] > KEY_SEXT)
        return -EUCLEAN;
    *table = b[0];
    *cont = get_be32(b + 1);
    oid->hi = get_be64(b + 5);
    oid->lo = get_be64(b + 13);
    return 0;
}

int key_parse_kv(const void *k, size_t len, struct obj_key *out, uint8_t *scratch)
{
    const uint8_t *p = (const uint8_t *)k + KEY_OBJ_BYTES;
    int n;

    if (len <= KEY_OBJ_BYTES || len > DFE_KEY_BYTES || *(const uint8_t *)k != KEY_KV)
        return -EUCLEAN;
    len -= KEY_OBJ_BYTES;
    n = escaped_end(p, len);
    if (n <= 2)
        return -EUCLEAN;
    out->dkey = scratch;
    out->dkey_len = (uint16_t)unescape(scratch, p, (size_t)n);
    out->akey = scratch + out->dkey_len;
    out->akey_len = (uint16_t)(len - (size_t)n);
    memcpy(scratch + out->dkey_len, p + n, out->akey_len);
    return 0;
}

int key_parse_ext(const void *k, size_t len, uint64_t *off_blk)
{
    const uint8_t *b = k;

    if (len != KEY_OBJ_BYTES + 8 || b[0] != KEY_EXT)
        return -EUCLEAN;
    *off_blk = get_be64(b + KEY_OBJ_BYTES);
    return 0;
}

int key_parse_side(const void *k, size_t len, struct key *live, uint64_t *death)
{
    const uint8_t *b = k;
    int n, m;

    if (len < KEY_OBJ_BYTES + DEATH_BYTES || len > DFE_KEY_BYTES)
        return -EUCLEAN;
    len -= DEATH_BYTES;
    *death = get_be64(b + len);
    memcpy(live->b, b, len);
    if (b[0] == KEY_SEXT && len == KEY_OBJ_BYTES + 8) {
        live->b[0] = KEY_EXT;
        live->len = (uint16_t)len;
        return 0;
    }
    if (b[0] != KEY_SKV)
        return -EUCLEAN;
    n = escaped_end(b + KEY_OBJ_BYTES, len - KEY_OBJ_BYTES);
    if (n <= 2)
        return -EUCLEAN;
    n += KEY_OBJ_BYTES;
    m = escaped_end(b + n, len - (size_t)n);
    if (m < 0 || (size_t)(n + m) != len)
        return -EUCLEAN;
    live->b[0] = KEY_KV;
    live->len = (uint16_t)((size_t)n + unescape(live->b + n, b + n, (size_t)m));
    return 0;
}

int key_cmp(const void *a, size_t alen, const void *b, size_t blen)
{
    size_t n = alen < blen ? alen : blen;
    int c = n ? memcmp(a, b, n) : 0;

    if (c)
        return c;
    return alen < blen ? -1 : alen > blen;
}
