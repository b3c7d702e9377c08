/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data that travelled inside journal records: kept in memory, block by block, until a checkpoint
 * has written it to its place (O7).
 *
 * A block freed before that is dropped: nothing refers to it, and it is handed out again only after
 * the checkpoint that holds the freeing. A frozen one stays until its checkpoint is done, since the
 * checkpoint thread reads the frozen list without the lock.
 */
#include "obj/obj_int.h"

#define RUN_BLOCKS 64u /* written home in one request */

static struct jdata **bucket(struct obj_pool *pool, uint64_t blk)
{
    return &pool->jdata[(blk * 0x9E3779B97F4A7C15ull) >> 52 & (OBJ_JDATA_BUCKETS - 1)];
}

int jdata_add(struct obj_pool *pool, uint64_t blk, const void *data)
{
    struct jdata *jd = malloc(sizeof(*jd));

    if (!jd)
        return -ENOMEM;
    jd->blk = blk;
    jd->refs = 1;
    jd->freeze = pool->ckpt_begun;
    memcpy(jd->data, data, sizeof(jd->data));
    jd->hnext = *bucket(pool, blk);
    *bucket(pool, blk) = jd;
    list_add_tail(&pool->jdata_active, &jd->link);
    pool->n_jdata++;
    return 0;
}

struct jdata *jdata_get(struct obj_pool *pool, uint64_t blk)
{
    struct jdata *jd = pool->n_jdata ? *bucket(pool, blk) : NULL;

    while (jd && jd->blk != blk)
        jd = jd->hnext;
    if (jd)
        jd->refs++;
    return jd;
}

void jdata_put(struct obj_pool *pool, struct jdata *jd)
{
    if (--jd->refs == 0)
        free(jd);
}

static void drop(struct obj_pool *pool, struct jdata *jd)
{
    struct jdata **at = bucket(pool, jd->blk);

    while (*at && *at != jd)
        at = &(*at)->hnext;
    if (*at) {
        *at = jd->hnext;
        pool->n_jdata--;
    }
    list_del(&jd->link);
    jdata_put(pool, jd);
}

void jdata_freed(struct obj_pool *pool, uint64_t blk, uint32_t n)
{
    for (uint32_t i = 0; i < n && pool->n_jdata > 0; i++) {
        struct jdata *jd = *bucket(pool, blk + i);
        while (jd && jd->blk != blk + i)
            jd = jd->hnext;
        if (jd && jd->freeze == pool->ckpt_begun)
            drop(pool, jd);
    }
}

void jdata_drop_frozen(struct obj_pool *pool)
{
    list_for_each_safe(l, t, &pool->jdata_frozen)
        drop(pool, container_of(l, struct jdata, link));
}

void jdata_free_all(struct obj_pool *pool)
{
    list_splice_tail(&pool->jdata_frozen, &pool->jdata_active);
    jdata_drop_frozen(pool);
}

static int by_block(const void *a, const void *b)
{
    const struct jdata *x = *(struct jdata *const *)a, *y = *(struct jdata *const *)b;

    return x->blk < y->blk ? -1 : x->blk > y->blk;
}

/* Writes v[0..n), sorted, run by run through one bounce buffer. */
static int write_runs(struct obj_pool *pool, struct jdata **v, size_t n, uint8_t *bounce)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < n;) {
        size_t run = 0;
        do {
            memcpy(bounce + run * DFE_BLOCK_BYTES, v[i + run]->data, DFE_BLOCK_BYTES);
            run++;
        } while (run < RUN_BLOCKS && i + run < n && v[i + run]->blk == v[i]->blk + run);
        rc = queue_write(pool->dev, v[i]->blk << DFE_BLOCK_SHIFT, bounce, run * DFE_BLOCK_BYTES);
        i += run;
    }
    return rc;
}

int jdata_write_home(struct obj_pool *pool)
{
    struct jdata **v = NULL;
    uint8_t *bounce = NULL;
    size_t n = 0, i = 0;
    int rc = 0;

    /* only this thread changes the frozen list */
    list_for_each(l, &pool->jdata_frozen)
        n++;
    if (n == 0)
        return 0;
    v = malloc(n * sizeof(*v));
    bounce = aligned_alloc(DFE_BLOCK_BYTES, RUN_BLOCKS * DFE_BLOCK_BYTES);
    if (!v || !bounce) {
        rc = -ENOMEM;
        goto out;
    }
    list_for_each(l, &pool->jdata_frozen)
        v[i++] = container_of(l, struct jdata, link);
    qsort(v, n, sizeof(*v), by_block);
    rc = write_runs(pool, v, n, bounce);
out:
    free(bounce);
    free(v);
    return rc;
}
