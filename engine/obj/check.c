/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checking a pool's index against itself, and a container's data against its checksums.
 *
 * The first pass is one walk over one state of the index, made complete by a checkpoint: every
 * entry well-formed, every block referred to once and committed, every committed block referred to.
 * The second reads the container's extents page by page; an extent that does not match is looked up
 * again, since a running pool may have freed and reused its blocks meanwhile.
 */
#include "obj/obj_int.h"

#include "base/crc32c.h"

#include <stdarg.h>
#include <stdio.h>

struct check {
    struct obj_pool *pool;
    obj_fault_fn fn;
    void *arg;
    uint64_t faults;
    uint8_t *committed, *used; /* a bit a block of the data area */
    uint64_t youngest; /* birth of an extent */
    uint8_t obj[KEY_OBJ_BYTES]; /* of the last live extent, and where that ended */
    uint64_t end;
};

static void fault(struct check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void fault(struct check *c, const char *fmt, ...)
{
    char text[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    c->faults++;
    if (c->fn)
        c->fn(text, c->arg);
}

static bool bit(const uint8_t *map, uint64_t i)
{
    return map[i / 8] >> (i % 8) & 1;
}

/* -- structure ------------------------------------------------------------------------------- */

static void check_segment(struct check *c, const uint8_t *k, size_t klen, const uint8_t *val,
                          size_t vlen)
{
    uint64_t bytes = (c->pool->super.data_len_blk + 7) / 8, at, n;

    if (klen != 5 || vlen != ALLOC_SEG_VALUE_BYTES + FMT_BIRTH_BYTES) {
        fault(c, "a segment of the allocator is malformed");
        return;
    }
    at = (uint64_t)get_be32(k + 1) * ALLOC_SEG_VALUE_BYTES;
    if (at >= bytes) {
        fault(c, "segment %u of the allocator is behind the device", get_be32(k + 1));
        return;
    }
    n = bytes - at < ALLOC_SEG_VALUE_BYTES ? bytes - at : ALLOC_SEG_VALUE_BYTES;
    memcpy(c->committed + at, val, n);
}

static void use_blocks(struct check *c, const struct ext *e, uint32_t number)
{
    uint64_t first = e->blk - c->pool->super.data_blk;

    for (uint64_t i = first; i < first + e->n; i++) {
        if (bit(c->used, i))
            fault(c, "device block %llu belongs to two extents (the second in container %u, block "
                  "%llu)", (unsigned long long)(i + c->pool->super.data_blk), number,
                  (unsigned long long)e->off);
        c->used[i / 8] |= (uint8_t)(1u << (i % 8));
    }
}

static void check_ext(struct check *c, const struct key *live, bool side, const void *val,
                      size_t vlen)
{
    uint32_t number = live->len >= KEY_OBJ_BYTES ? get_be32(live->b + 1) : 0;
    struct ext e;

    if (ext_parse(live->b, live->len, val, vlen, &e) < 0 || !ext_in_device(c->pool, &e)) {
        fault(c, "an extent of container %u is malformed", number);
        return;
    }
    if (e.birth > c->youngest)
        c->youngest = e.birth;
    if (!side) {
        if (memcmp(c->obj, live->b, KEY_OBJ_BYTES) == 0 && e.off < c->end)
            fault(c, "extents of container %u overlap at block %llu", number,
                  (unsigned long long)e.off);
        memcpy(c->obj, live->b, KEY_OBJ_BYTES);
        c->end = e.off + e.n;
    }
    if (e.type == FMT_EXTENT)
        use_blocks(c, &e, number);
}

static int check_entry(const void *key, size_t klen, const void *val, size_t vlen, void *arg)
{
    struct check *c = arg;
    uint8_t table = *(const uint8_t *)key, scratch[DFE_KEY_BYTES];
    struct obj_key ok;
    struct key live;
    uint64_t death = UINT64_MAX;

    if (klen > DFE_KEY_BYTES || vlen < FMT_BIRTH_BYTES) {
        fault(c, "an entry of table %u is malformed", table);
        return 0;
    }
    live.len = (uint16_t)klen;
    memcpy(live.b, key, klen);
    if ((table == KEY_SKV || table == KEY_SEXT) &&
        (key_parse_side(key, klen, &live, &death) < 0 || value_birth(val, vlen) >= death)) {
        fault(c, "an entry of table %u is malformed", table);
        return 0;
    }
    if (table == KEY_SEG)
        check_segment(c, key, klen, val, vlen);
    else if (table == KEY_EXT || table == KEY_SEXT)
        check_ext(c, &live, table == KEY_SEXT, val, vlen);
    else if ((table == KEY_KV || table == KEY_SKV) &&
             key_parse_kv(live.b, live.len, &ok, scratch) < 0)
        fault(c, "a key of table %u is malformed", table);
    return 0;
}

/* Blocks where the two maps differ, run by run. */
static void compare_maps(struct check *c)
{
    uint64_t n = c->pool->super.data_len_blk, first = c->pool->super.data_blk;

    for (uint64_t i = 0; i < n;) {
        uint64_t from = i;
        bool com = bit(c->committed, i), used = bit(c->used, i);
        while (i < n && bit(c->committed, i) == com && bit(c->used, i) == used)
            i++;
        if (com == used)
            continue;
        fault(c, com ? "%llu blocks from device block %llu on are allocated to nothing"
                     : "%llu blocks from device block %llu on are in use and not allocated",
              (unsigned long long)(i - from), (unsigned long long)(first + from));
    }
}

static int check_structure(struct check *c)
{
    const uint8_t lo = 0, hi = 0xff;
    uint64_t bytes = (c->pool->super.data_len_blk + 7) / 8, bad = 0;
    int rc = 0;

    c->committed = calloc(1, bytes);
    c->used = calloc(1, bytes);
    if (!c->committed || !c->used)
        rc = -ENOMEM;
    if (rc == 0)
        rc = index_scan(c->pool->index, &lo, 1, &hi, 1, check_entry, c, &bad);
    if (rc == -EUCLEAN) {
        fault(c, "the index is damaged: its pages cannot be walked");
        rc = 0;
    } else if (rc == 0) {
        if (bad > 0)
            fault(c, "%llu entries of the index do not match their checksums",
                  (unsigned long long)bad);
        compare_maps(c);
    }
    free(c->committed);
    free(c->used);
    return rc;
}

/* -- data ------------------------------------------------------------------------------------ */

struct pass {
    struct check *c;
    struct key at;
    bool after, more;
    struct smap page;
    uint8_t *buf;
    uint64_t done, total;
    void (*progress)(uint64_t done, uint64_t total, void *arg);
};

static int pass_entry(const void *key, size_t klen, const void *val, size_t vlen, void *arg)
{
    struct pass *p = arg;

    if (p->after && key_cmp(key, klen, p->at.b, p->at.len) == 0)
        return 0;
    if (p->page.n == OBJ_PAGE_KEYS) {
        p->more = true;
        return 1;
    }
    return smap_put(&p->page, key, klen, val, vlen, OVERLAY_VALUE);
}

/* Is the entry still what it was when its data did not match? */
static bool unchanged(struct obj_pool *pool, const struct key *k, const void *val, size_t vlen)
{
    uint8_t now[FMT_EXT_MAX];
    size_t len = 0;

    return kv_get_key(pool, k, now, sizeof(now), &len) == 0 && len + FMT_BIRTH_BYTES == vlen &&
           memcmp(now, val, len) == 0;
}

static int verify_entry(struct pass *p, uint32_t i)
{
    struct obj_pool *pool = p->c->pool;
    const struct smap_ent *se = &p->page.e[i];
    const uint8_t *val = smap_val(&p->page, i);
    struct key k = {.len = se->klen}, live;
    uint64_t death;
    struct ext e;
    int rc;

    memcpy(k.b, smap_key(&p->page, i), k.len);
    live = k;
    if (k.b[0] == KEY_SEXT && key_parse_side(k.b, k.len, &live, &death) < 0)
        return 0; /* told by the first pass */
    if (ext_parse(live.b, live.len, val, se->vlen, &e) < 0 || e.type != FMT_EXTENT ||
        !ext_in_device(pool, &e))
        return 0;
    rc = queue_read(pool->dev, e.blk << DFE_BLOCK_SHIFT, p->buf, (size_t)e.n << DFE_BLOCK_SHIFT);
    for (uint32_t b = 0; b < e.n; b++) {
        if (rc == 0 && base_crc32c(0, p->buf + ((size_t)b << DFE_BLOCK_SHIFT), DFE_BLOCK_BYTES) ==
                           get_le32(e.body + 4 * b))
            continue;
        if (!unchanged(pool, &k, val, se->vlen))
            break;
        fault(p->c, "object %016llx%016llx: block %llu (device block %llu) %s",
              (unsigned long long)get_be64(live.b + 5), (unsigned long long)get_be64(live.b + 13),
              (unsigned long long)(e.off + b), (unsigned long long)(e.blk + b),
              rc < 0 ? "cannot be read" : "does not match its checksum");
    }
    p->done += e.n;
    if (p->progress)
        p->progress(p->done < p->total ? p->done : p->total, p->total, p->c->arg);
    return 0;
}

static int check_data(struct check *c, uint32_t number, enum key_table table, struct pass *p)
{
    struct key end;
    int rc = 0;

    key_u32(&p->at, table, number);
    end = p->at;
    key_after_prefix(&end);
    p->after = false;
    do {
        uint64_t bad = 0;
        smap_clear(&p->page);
        p->more = false;
        rc = index_scan(c->pool->index, p->at.b, p->at.len, end.b, end.len, pass_entry, p, &bad);
        if (rc < 0)
            break;
        for (uint32_t i = 0; i < p->page.n; i++)
            verify_entry(p, i);
        if (p->page.n > 0) {
            p->at.len = p->page.e[p->page.n - 1].klen;
            memcpy(p->at.b, smap_key(&p->page, p->page.n - 1), p->at.len);
            p->after = true;
        }
    } while (p->more);
    return rc < 0 ? rc : 0;
}

int obj_check(struct obj_cont *cont, bool data, obj_fault_fn fn,
              void (*progress)(uint64_t done, uint64_t total, void *arg), void *arg)
{
    struct obj_pool *pool = cont->pool;
    struct check c = {.pool = pool, .fn = fn, .arg = arg};
    struct pass p = {.c = &c, .progress = progress};
    int rc = pool->threads ? checkpoint_wait(pool, true) : 0;

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&pool->lock);
    p.total = pool->super.data_len_blk - alloc_free_blocks(pool->alloc);
    if (pool->damage[0])
        fault(&c, "the pool is damaged: %s", pool->damage);
    pthread_mutex_unlock(&pool->lock);
    rc = check_structure(&c);
    pthread_mutex_lock(&pool->lock);
    if (c.youngest > pool->epoch)
        fault(&c, "an extent is from the future: epoch %llu of %llu",
              (unsigned long long)c.youngest, (unsigned long long)pool->epoch);
    pthread_mutex_unlock(&pool->lock);
    if (rc == 0 && data) {
        p.buf = aligned_alloc(DFE_BLOCK_BYTES, DFE_EXTENT_BLOCKS * DFE_BLOCK_BYTES);
        rc = p.buf ? check_data(&c, cont->number, KEY_EXT, &p) : -ENOMEM;
        if (rc == 0)
            rc = check_data(&c, cont->number, KEY_SEXT, &p);
    }
    if (rc == 0 && progress)
        progress(p.total, p.total, arg);
    smap_free(&p.page);
    free(p.buf);
    return rc < 0 ? rc : c.faults > INT32_MAX ? INT32_MAX : (int)c.faults;
}
