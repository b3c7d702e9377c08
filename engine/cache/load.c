/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the store into slots.
 *
 * A load always fills a fresh slot, which others see as `loading` until it is done; so nobody
 * writes where the device does. It counts only if the file's version is still the one it began with
 * (invariant 2); otherwise it is thrown away and whoever waited looks again.
 */
#include <errno.h>
#include <string.h>

#include "cache/cache_int.h"

#define LOAD_RUNS 64u /* runs of one load; what is beyond waits for the next */

struct load {
    struct cache_file *file;
    uint64_t version;
    struct slot *slot[LOAD_SLOTS];
    unsigned n_slots, n_runs;
    struct obj_io io[LOAD_RUNS];
    struct slot *of[LOAD_RUNS]; /* which slot a run fills */
};

static void load_add(struct load *l, struct slot *s, unsigned i, unsigned n)
{
    l->io[l->n_runs] = (struct obj_io){.off = (s->first + i) * BLOCK,
                                       .buf = s->data + (size_t)i * BLOCK,
                                       .len = (size_t)n * BLOCK};
    l->of[l->n_runs++] = s;
    bits_set(&s->loading, i, n);
}

/* The runs of the slot that neither memory nor another load has. Known zeros are made here. */
static void load_gather(struct load *l, struct slot *s)
{
    const struct cache_file *file = l->file;
    uint64_t size = blocks_up(file->cut.size);
    unsigned n = (unsigned)slot_blocks(s), from = 0, i;

    for (i = 0; i < n; i++) {
        uint64_t block = s->first + i;
        bool want = block < size && !slot_find(file, block, SLOT_VALID) &&
                    !slot_find(file, block, SLOT_LOADING);
        if (want && file_known_zero(file, block)) {
            memset(s->data + (size_t)i * BLOCK, 0, BLOCK);
            bits_set(&s->valid, i, 1);
            want = false;
        }
        if (!want) {
            if (from < i && l->n_runs < LOAD_RUNS)
                load_add(l, s, from, i - from);
            from = i + 1;
        }
    }
    if (from < n && l->n_runs < LOAD_RUNS)
        load_add(l, s, from, n - from);
}

/* Runs that came whole become valid, if nobody changed the file meanwhile. */
static void load_finish(struct load *l)
{
    bool stale = l->file->cut.version != l->version;

    for (unsigned k = 0; k < l->n_runs; k++) {
        struct slot *s = l->of[k];
        unsigned i = (unsigned)(l->io[k].off / BLOCK - s->first);
        unsigned n = (unsigned)(l->io[k].len / BLOCK);
        bits_clear(&s->loading, i, n);
        if (l->io[k].res == 0 && !stale)
            bits_set(&s->valid, i, n);
    }
    file_wake(l->file);
}

/* Memory for [from, to), as far as it goes. Drops the lock. */
static void load_alloc(struct load *l, uint64_t from, uint64_t to, unsigned order)
{
    struct cache *cache = l->file->cache;

    pthread_mutex_unlock(&cache->lock);
    while (from < to && l->n_slots < LOAD_SLOTS) {
        struct slot *s = slot_alloc(l->file, order, 0);
        if (!s)
            break;
        s->first = from >> s->order << s->order;
        from = s->first + slot_blocks(s);
        l->slot[l->n_slots++] = s;
    }
    pthread_mutex_lock(&cache->lock);
}

int load_run(struct cache_file *file, uint64_t from, uint64_t to, unsigned order,
             struct slot **held, unsigned *n_held)
{
    struct cache *cache = file->cache;
    struct load l = {.file = file};
    int rc = 0;

    *n_held = 0;
    load_alloc(&l, from, to, order);
    if (l.n_slots == 0)
        return -ENOBUFS;
    l.version = file->cut.version;
    for (unsigned i = 0; i < l.n_slots; i++) {
        slot_attach(l.slot[i], file, l.slot[i]->first);
        load_gather(&l, l.slot[i]);
    }
    if (l.n_runs > 0) {
        pthread_mutex_unlock(&cache->lock);
        rc = obj_array_read(file->cont, file->oid, l.io, l.n_runs);
        pthread_mutex_lock(&cache->lock);
        load_finish(&l);
    }
    *n_held = l.n_slots;
    memcpy(held, l.slot, l.n_slots * sizeof(l.slot[0]));
    return rc;
}

int load_block(struct cache_file *file, uint64_t block, bool nowait, struct slot **held)
{
    for (;;) {
        struct slot *s = slot_find(file, block, SLOT_VALID), *got[LOAD_SLOTS];
        unsigned n;
        int rc;
        *held = NULL;
        if (s) {
            slot_pin(s);
            *held = s;
            return 0;
        }
        if (file_known_zero(file, block))
            return 0;
        if (nowait)
            return -EINPROGRESS;
        if (slot_find(file, block, SLOT_LOADING)) {
            pthread_cond_wait(file_cv(file), &file->cache->lock);
            continue;
        }
        rc = load_run(file, block, block + 1, 0, got, &n);
        if (rc == 0 && bits_test(&got[0]->valid, (unsigned)(block - got[0]->first))) {
            *held = got[0];
            return 0;
        }
        if (n > 0)
            slot_unpin(got[0]);
        if (rc < 0)
            return rc; /* else read-ahead was faster: look again */
    }
}
