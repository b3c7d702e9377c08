/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Continuations: deletions that are logically done and go on physically, in bounded transactions,
 * also after a crash.
 *
 * One thread does them one after the other. Its place is not recorded: a step removes what it
 * found, so that a restart finds the rest. CONT and SNAP walk whole tables, which only the index
 * can do in order: a checkpoint first brings everything they are about into it.
 */
#include "obj/obj_int.h"

#include <time.h>

#define RETRY_NS 1000000000ull

static bool stopping(struct obj_pool *pool)
{
    bool stop;

    pthread_mutex_lock(&pool->lock);
    stop = pool->stop_work || pool->read_only;
    pthread_mutex_unlock(&pool->lock);
    return stop;
}

static int do_punch(struct obj_pool *pool, const struct work *w)
{
    struct work_step step = {.work = *w};
    int rc = 0;

    while (rc == 0 && !step.done) {
        struct obj_tx *tx;
        if (stopping(pool))
            return -EINTR;
        rc = tx_begin_pool(pool, w->cont, &tx);
        if (rc < 0)
            break;
        tx->deletes = tx->reads_own = true;
        rc = tx_add_op(tx, &(struct tx_op){.kind = TX_RESUME, .step = &step}, NULL, 0, NULL, 0, 0);
        if (rc == 0)
            rc = tx_commit(tx, 0, NULL);
        else
            obj_tx_abort(tx);
        step.work.lo = step.last;
    }
    return rc;
}

/* -- whole tables of a container ------------------------------------------------------------- */

struct sweep {
    struct obj_pool *pool;
    const struct work *work;
    uint64_t *snaps; /* SNAP: those that remain */
    unsigned n_snaps;
    struct obj_tx *tx;
    uint32_t seen;
    struct key at;
    bool after, more;
};

static bool still_seen(const struct sweep *s, uint64_t birth, uint64_t death)
{
    for (unsigned i = 0; i < s->n_snaps; i++)
        if (birth <= s->snaps[i] && s->snaps[i] < death)
            return true;
    return false;
}

static int sweep_entry(const void *key, size_t klen, const void *val, size_t vlen, void *arg)
{
    struct sweep *s = arg;
    uint8_t table = *(const uint8_t *)key;
    uint64_t death = 0;
    struct key k, live;
    struct ext e;
    int rc = 0;

    if (s->after && key_cmp(key, klen, s->at.b, s->at.len) == 0)
        return 0;
    if (s->seen++ == OBJ_PUNCH_MAX) {
        s->more = true;
        return 1;
    }
    if (vlen < FMT_BIRTH_BYTES)
        return -EUCLEAN;
    k.len = (uint16_t)klen;
    memcpy(k.b, key, klen);
    s->at = live = k;
    s->after = true;
    if (table == KEY_SKV || table == KEY_SEXT)
        rc = key_parse_side(key, klen, &live, &death);
    if (rc < 0 || (s->work->kind == FMT_WORK_SNAP &&
                   still_seen(s, value_birth(val, vlen), death)))
        return rc;
    rc = tx_raw(s->tx, TX_RAW_DEL, &k, NULL, 0);
    if (rc < 0 || (table != KEY_EXT && table != KEY_SEXT))
        return rc;
    rc = ext_parse(live.b, live.len, val, vlen, &e);
    if (rc == 0 && !ext_in_device(s->pool, &e))
        rc = -EUCLEAN;
    if (rc == 0 && e.type == FMT_EXTENT)
        rc = tx_add_op(s->tx, &(struct tx_op){.kind = TX_FREE, .run = {e.blk, e.n}}, NULL, 0, NULL,
                       0, 0);
    return rc;
}

static int sweep_table(struct sweep *s, enum key_table table)
{
    struct key end;
    int rc = 0;

    key_u32(&s->at, table, s->work->cont);
    end = s->at;
    key_after_prefix(&end);
    s->after = false;
    do {
        if (stopping(s->pool))
            return -EINTR;
        rc = tx_begin_pool(s->pool, 0, &s->tx);
        if (rc < 0)
            break;
        s->seen = 0;
        s->more = false;
        struct key from = s->at; /* sweep_entry moves s->at */
        rc = index_scan(s->pool->index, from.b, from.len, end.b, end.len, sweep_entry, s, NULL);
        if (rc >= 0 && s->tx->n_op > 0) {
            rc = tx_commit(s->tx, 0, NULL);
        } else {
            obj_tx_abort(s->tx);
        }
    } while (rc >= 0 && s->more);
    return rc < 0 ? rc : 0;
}

static int copy_snaps(struct obj_pool *pool, uint32_t number, struct sweep *s)
{
    struct cont_rec *c;
    int rc = 0;

    pthread_mutex_lock(&pool->lock);
    c = tables_cont(pool, number);
    s->n_snaps = c ? c->n_snaps : 0;
    s->snaps = malloc((s->n_snaps + 1) * sizeof(*s->snaps));
    for (unsigned i = 0; s->snaps && i < s->n_snaps; i++)
        s->snaps[i] = c->snaps[i].epoch;
    if (!s->snaps)
        rc = -ENOMEM;
    pthread_mutex_unlock(&pool->lock);
    return rc;
}

static int finish(struct obj_pool *pool, const struct work *w)
{
    struct obj_tx *tx;
    struct key k;
    int rc = tx_begin_pool(pool, 0, &tx);

    if (rc < 0)
        return rc;
    key_u64(&k, KEY_WORK, w->id);
    rc = tx_raw(tx, TX_RAW_DEL, &k, NULL, 0);
    if (rc == 0)
        return tx_commit(tx, 0, NULL);
    obj_tx_abort(tx);
    return rc;
}

static int do_sweep(struct obj_pool *pool, const struct work *w)
{
    static const enum key_table all[] = {KEY_PROP, KEY_SNAP, KEY_KV, KEY_EXT, KEY_SKV, KEY_SEXT};
    static const enum key_table side[] = {KEY_SKV, KEY_SEXT};
    const enum key_table *t = w->kind == FMT_WORK_CONT ? all : side;
    size_t n = w->kind == FMT_WORK_CONT ? DFE_ARRAY_LEN(all) : DFE_ARRAY_LEN(side);
    struct sweep s = {.pool = pool, .work = w};
    int rc = checkpoint_wait(pool, true);

    if (rc == 0)
        rc = copy_snaps(pool, w->cont, &s);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = sweep_table(&s, t[i]);
    free(s.snaps);
    return rc == 0 ? finish(pool, w) : rc;
}

/* -- thread ---------------------------------------------------------------------------------- */

static void note_failure(struct obj_pool *pool, const struct work *w, int rc)
{
    struct timespec t;
    uint64_t until = base_mono_ns() + RETRY_NS;

    if (rc != -EINTR)
        base_log(BASE_LOG_WARN,
                 "pool %s: a deletion in container %u stopped: %s; it is tried again",
                 pool->record.label, w->cont, strerror(-rc));
    pool->work_failures++;
    pthread_cond_broadcast(&pool->changed);
    t = (struct timespec){.tv_sec = (time_t)(until / 1000000000u),
                          .tv_nsec = (long)(until % 1000000000u)};
    if (!pool->stop_work && !pool->read_only)
        pthread_cond_timedwait(&pool->wake_work, &pool->lock, &t);
}

void *work_thread(void *arg)
{
    struct obj_pool *pool = arg;
    struct work w;
    int rc;

    pthread_mutex_lock(&pool->lock);
    while (!pool->stop_work && !pool->read_only) {
        if (list_empty(&pool->works)) {
            pthread_cond_wait(&pool->wake_work, &pool->lock);
            continue;
        }
        w = *container_of(pool->works.next, struct work, link);
        pthread_mutex_unlock(&pool->lock);
        rc = w.kind == FMT_WORK_PUNCH ? do_punch(pool, &w) : do_sweep(pool, &w);
        pthread_mutex_lock(&pool->lock);
        if (rc < 0)
            note_failure(pool, &w, rc);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static bool pending(const struct obj_pool *pool, uint64_t id)
{
    list_for_each(l, &pool->works)
        if (id == 0 || container_of(l, struct work, link)->id == id)
            return true;
    return false;
}

/* id 0: all that are there. A failing one is not waited for: it goes on when it can. */
int work_wait(struct obj_pool *pool, uint64_t id)
{
    uint64_t failures;

    pthread_mutex_lock(&pool->lock);
    failures = pool->work_failures;
    while (pending(pool, id) && !pool->stop_work && !pool->read_only &&
           pool->work_failures == failures)
        pthread_cond_wait(&pool->changed, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    return 0;
}
