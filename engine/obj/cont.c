/* SPDX-License-Identifier: Apache-2.0 */
/* Containers and their properties. */
#include "obj/obj_int.h"

#include <stdio.h>

#define PROP_NAME_BYTES 64u
#define PROP_VALUE_BYTES 4096u

static int refuse_changes(struct obj_pool *pool)
{
    return pool->read_only ? base_refuse(-EROFS, "pool %s is read-only%s%s", pool->record.label,
                                         pool->damage[0] ? ": " : "", pool->damage)
                           : 0;
}

static int check_label(const char *label)
{
    return label && label_ok(label)
               ? 0
               : base_refuse(-EINVAL,
                             "a label is 1 to %u of A-Z a-z 0-9 . _ - and begins "
                             "with a letter, a digit or _",
                             DFE_LABEL_BYTES);
}

/* A container's number is taken under the lock; one that is not used after all is skipped. */
int obj_cont_create(struct obj_pool *pool, const char *label)
{
    struct fmt_cont f = {0};
    uint8_t v[sizeof(f)];
    struct obj_tx *tx = NULL;
    struct key k;
    uint32_t number = 0;
    int rc = check_label(label);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&pool->tables_lock);
    pthread_mutex_lock(&pool->lock);
    rc = refuse_changes(pool);
    if (rc == 0 && tables_cont_label(pool, label))
        rc = base_refuse(-EEXIST, "container %s exists in pool %s", label, pool->record.label);
    if (rc == 0)
        number = pool->next_cont++;
    pthread_mutex_unlock(&pool->lock);
    if (rc == 0)
        rc = uuid_make(f.uuid);
    if (rc == 0)
        rc = tx_begin_pool(pool, 0, &tx);
    if (rc < 0)
        goto out;
    f.created_ns = (int64_t)htole64((uint64_t)base_real_ns());
    snprintf(f.label, sizeof(f.label), "%s", label);
    memcpy(v, &f, sizeof(f));
    key_u32(&k, KEY_CONT, number);
    rc = tx_raw(tx, TX_RAW_PUT, &k, v, sizeof(v));
    if (rc == 0)
        rc = tx_commit(tx, OBJ_SYNC, NULL);
    else
        obj_tx_abort(tx);
out:
    pthread_mutex_unlock(&pool->tables_lock);
    return rc;
}

int obj_cont_destroy(struct obj_pool *pool, const char *label)
{
    struct fmt_work f = {.kind = FMT_WORK_CONT};
    struct cont_rec *c;
    struct obj_tx *tx = NULL;
    uint8_t v[sizeof(f)];
    uint64_t epoch = 0;
    struct key k;
    int rc;

    pthread_mutex_lock(&pool->tables_lock);
    pthread_mutex_lock(&pool->lock);
    rc = refuse_changes(pool);
    c = tables_cont_label(pool, label);
    if (rc == 0 && !c)
        rc = base_refuse(-ENOENT, "no container %s in pool %s", label, pool->record.label);
    if (rc == 0 && c->opens > 0)
        rc = base_refuse(-EBUSY, "container %s is open", label);
    if (rc == 0) {
        key_u32(&k, KEY_CONT, c->number);
        f.cont = htole32(c->number);
    }
    pthread_mutex_unlock(&pool->lock);
    if (rc == 0)
        rc = tx_begin_pool(pool, 0, &tx);
    if (rc < 0)
        goto out;
    rc = tx_raw(tx, TX_RAW_DEL, &k, NULL, 0);
    memcpy(v, &f, sizeof(f));
    key_u64(&k, KEY_WORK, 0); /* the epoch, filled in at commit */
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

static void describe(const struct cont_rec *c, struct obj_cont_info *out)
{
    memset(out, 0, sizeof(*out));
    memcpy(out->label, c->label, sizeof(out->label));
    out->number = c->number;
    memcpy(out->uuid, c->uuid, sizeof(out->uuid));
    out->created_ns = c->created_ns;
    out->snapshots = c->n_snaps;
}

int obj_cont_list(struct obj_pool *pool, int (*fn)(const struct obj_cont_info *, void *), void *arg)
{
    struct obj_cont_info *v = NULL;
    size_t n = 0, i = 0;
    int rc = 0;

    pthread_mutex_lock(&pool->lock);
    list_for_each(l, &pool->conts)
        n++;
    v = malloc((n + 1) * sizeof(*v));
    if (v)
        list_for_each(l, &pool->conts)
            describe(container_of(l, struct cont_rec, link), &v[i++]);
    pthread_mutex_unlock(&pool->lock);
    if (!v)
        return -ENOMEM;
    for (i = 0; rc == 0 && i < n; i++)
        rc = fn(&v[i], arg);
    free(v);
    return rc;
}

static int find_snap(const struct cont_rec *c, const char *name, uint64_t *epoch)
{
    for (unsigned i = 0; i < c->n_snaps; i++)
        if (strcmp(c->snaps[i].name, name) == 0) {
            *epoch = c->snaps[i].epoch;
            return 0;
        }
    return base_refuse(-ENOENT, "no snapshot %s of container %s", name, c->label);
}

int obj_cont_open(struct obj_pool *pool, const char *label, const char *snapshot,
                  struct obj_cont **out)
{
    struct obj_cont *cont = calloc(1, sizeof(*cont));
    int rc = 0;

    if (!cont)
        return -ENOMEM;
    cont->pool = pool;
    cont->snap = OBJ_LIVE;
    pthread_mutex_lock(&pool->tables_lock); /* not between a destroy's check and its commit */
    pthread_mutex_lock(&pool->lock);
    cont->rec = tables_cont_label(pool, label);
    if (!cont->rec)
        rc = base_refuse(-ENOENT, "no container %s in pool %s", label, pool->record.label);
    else if (snapshot)
        rc = find_snap(cont->rec, snapshot, &cont->snap);
    if (rc == 0) {
        cont->number = cont->rec->number;
        cont->rec->opens++;
        list_add_tail(&pool->handles, &cont->link);
    }
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_unlock(&pool->tables_lock);
    if (rc < 0) {
        free(cont);
        return rc;
    }
    *out = cont;
    return 0;
}

void obj_cont_close(struct obj_cont *cont)
{
    if (!cont)
        return;
    pthread_mutex_lock(&cont->pool->lock);
    cont->rec->opens--;
    list_del(&cont->link);
    pthread_mutex_unlock(&cont->pool->lock);
    free(cont);
}

void obj_cont_query(struct obj_cont *cont, struct obj_cont_info *out)
{
    pthread_mutex_lock(&cont->pool->lock);
    describe(cont->rec, out);
    pthread_mutex_unlock(&cont->pool->lock);
}

struct obj_pool *obj_cont_pool(struct obj_cont *cont)
{
    return cont->pool;
}

bool obj_cont_read_only(const struct obj_cont *cont)
{
    bool ro = cont->snap != OBJ_LIVE;

    if (ro)
        return true;
    pthread_mutex_lock(&cont->pool->lock);
    ro = cont->pool->read_only;
    pthread_mutex_unlock(&cont->pool->lock);
    return ro;
}

/* -- properties ------------------------------------------------------------------------------ */

static int prop_key(struct key *k, struct obj_cont *cont, const char *name)
{
    uint8_t b[4 + PROP_NAME_BYTES];
    size_t n = strlen(name);

    if (n == 0 || n > PROP_NAME_BYTES)
        return base_refuse(-EINVAL, "a property's name has 1 to %u bytes", PROP_NAME_BYTES);
    put_be32(b, cont->number);
    memcpy(b + 4, name, n);
    return key_pool(k, KEY_PROP, b, 4 + n);
}

int obj_cont_prop_get(struct obj_cont *cont, const char *name, char *value, size_t cap)
{
    char v[PROP_VALUE_BYTES + 1];
    struct key k;
    size_t len = 0;
    int rc = prop_key(&k, cont, name);

    if (rc == 0)
        rc = kv_get_key(cont->pool, &k, v, sizeof(v) - 1, &len);
    if (rc < 0)
        return rc;
    if (len > PROP_VALUE_BYTES || len >= cap)
        return base_refuse(-ERANGE, "property %s has %zu bytes", name, len);
    memcpy(value, v, len);
    value[len] = '\0';
    return 0;
}

int obj_cont_prop_set(struct obj_cont *cont, const char *name, const char *value)
{
    struct obj_tx *tx = NULL;
    struct key k;
    int rc = prop_key(&k, cont, name);

    if (rc == 0 && strlen(value) > PROP_VALUE_BYTES)
        rc = base_refuse(-EINVAL, "a property's value has at most %u bytes", PROP_VALUE_BYTES);
    if (rc == 0 && obj_cont_read_only(cont))
        rc = base_refuse(-EROFS, "the container is open read-only");
    if (rc == 0)
        rc = tx_begin_pool(cont->pool, 0, &tx);
    if (rc < 0)
        return rc;
    rc = tx_raw(tx, TX_RAW_PUT, &k, value, strlen(value));
    if (rc == 0)
        return tx_commit(tx, OBJ_SYNC, NULL);
    obj_tx_abort(tx);
    return rc;
}
