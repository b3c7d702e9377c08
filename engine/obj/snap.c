/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots: a name for an epoch.
 *
 * The commit that makes one has an epoch of its own, the snapshot's: it sees whatever was born
 * until then. From then on, what dies goes to the side tables (O5).
 */
#include "obj/obj_int.h"

#include <stdio.h>

static int writable(struct obj_cont *cont)
{
    return obj_cont_read_only(cont) ? base_refuse(-EROFS, "the container is open read-only") : 0;
}

static struct obj_snap_info *snap_find(struct obj_cont *cont, const char *name)
{
    for (unsigned i = 0; i < cont->rec->n_snaps; i++)
        if (strcmp(cont->rec->snaps[i].name, name) == 0)
            return &cont->rec->snaps[i];
    return NULL;
}

int obj_snap_create(struct obj_cont *cont, const char *name, uint64_t *epoch)
{
    struct obj_pool *pool = cont->pool;
    struct fmt_snap f = {0};
    struct obj_tx *tx = NULL;
    uint8_t v[sizeof(f)];
    uint64_t at = 0;
    struct key k;
    int rc = writable(cont);

    if (rc == 0 && (!name || !label_ok(name)))
        rc = base_refuse(-EINVAL, "a snapshot's name is 1 to %u of A-Z a-z 0-9 . _ -",
                         DFE_LABEL_BYTES);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&pool->tables_lock);
    pthread_mutex_lock(&pool->lock);
    if (snap_find(cont, name))
        rc = base_refuse(-EEXIST, "container %s has a snapshot %s", cont->rec->label, name);
    pthread_mutex_unlock(&pool->lock);
    if (rc == 0)
        rc = tx_begin_pool(pool, 0, &tx);
    if (rc < 0)
        goto out;
    f.created_ns = (int64_t)htole64((uint64_t)base_real_ns());
    snprintf(f.name, sizeof(f.name), "%s", name);
    memcpy(v, &f, sizeof(f));
    key_u32_u64(&k, KEY_SNAP, cont->number, 0);
    rc = tx_raw(tx, TX_EPOCH_PUT, &k, v, sizeof(v));
    if (rc == 0)
        rc = tx_commit(tx, OBJ_SYNC, &at);
    else
        obj_tx_abort(tx);
    if (rc == 0 && epoch)
        *epoch = at;
out:
    pthread_mutex_unlock(&pool->tables_lock);
    return rc;
}

static bool is_open(const struct obj_pool *pool, uint32_t number, uint64_t epoch)
{
    list_for_each(l, &pool->handles)
    {
        const struct obj_cont *c = container_of(l, struct obj_cont, link);
        if (c->number == number && c->snap == epoch)
            return true;
    }
    return false;
}

int obj_snap_destroy(struct obj_cont *cont, const char *name)
{
    struct obj_pool *pool = cont->pool;
    struct fmt_work f = {.kind = FMT_WORK_SNAP, .cont = htole32(cont->number)};
    struct obj_snap_info *s;
    struct obj_tx *tx = NULL;
    uint8_t v[sizeof(f)];
    uint64_t epoch = 0;
    struct key k;
    int rc = writable(cont);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&pool->tables_lock);
    pthread_mutex_lock(&pool->lock);
    s = snap_find(cont, name);
    if (!s)
        rc = base_refuse(-ENOENT, "container %s has no snapshot %s", cont->rec->label, name);
    else if (is_open(pool, cont->number, s->epoch))
        rc = base_refuse(-EBUSY, "snapshot %s of container %s is open", name, cont->rec->label);
    else
        key_u32_u64(&k, KEY_SNAP, cont->number, s->epoch);
    pthread_mutex_unlock(&pool->lock);
    if (rc == 0)
        rc = tx_begin_pool(pool, 0, &tx);
    if (rc < 0)
        goto out;
    rc = tx_raw(tx, TX_RAW_DEL, &k, NULL, 0);
    memcpy(v, &f, sizeof(f));
    key_u64(&k, KEY_WORK, 0);
    if (rc == 0)
        rc = tx_raw(tx, TX_EPOCH_PUT, &k, v, sizeof(v));
    if (rc == 0)
        rc = tx_commit(tx, OBJ_SYNC, &epoch);
    else
        obj_tx_abort(tx);
out:
    pthread_mutex_unlock(&pool->tables_lock);
    return rc < 0 ? rc : work_wait(pool, epoch << OBJ_WORK_SHIFT);
}

int obj_snap_list(struct obj_cont *cont, int (*fn)(const struct obj_snap_info *, void *), void *arg)
{
    struct obj_pool *pool = cont->pool;
    struct obj_snap_info *v;
    unsigned n;
    int rc = 0;

    pthread_mutex_lock(&pool->lock);
    n = cont->rec->n_snaps;
    v = malloc((n + 1) * sizeof(*v));
    if (v && n > 0)
        memcpy(v, cont->rec->snaps, n * sizeof(*v));
    pthread_mutex_unlock(&pool->lock);
    if (!v)
        return -ENOMEM;
    for (unsigned i = 0; rc == 0 && i < n; i++)
        rc = fn(&v[i], arg);
    free(v);
    return rc;
}
