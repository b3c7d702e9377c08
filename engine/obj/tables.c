/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's own tables in memory: containers, snapshots, continuations. */
#include "obj/obj_int.h"

struct cont_rec *tables_cont(struct obj_pool *pool, uint32_t number)
{
    list_for_each(l, &pool->conts)
    {
        struct cont_rec *c = container_of(l, struct cont_rec, link);
        if (c->number == number)
            return c;
    }
    return NULL;
}

struct cont_rec *tables_cont_label(struct obj_pool *pool, const char *label)
{
    list_for_each(l, &pool->conts)
    {
        struct cont_rec *c = container_of(l, struct cont_rec, link);
        if (strcmp(c->label, label) == 0)
            return c;
    }
    return NULL;
}

static int cont_put(struct obj_pool *pool, uint32_t number, const uint8_t *v, size_t len)
{
    struct cont_rec *c = tables_cont(pool, number);
    const char *label = (const char *)v + offsetof(struct fmt_cont, label);

    if (len != sizeof(struct fmt_cont) || memchr(label, 0, sizeof(c->label)) == NULL ||
        !label_ok(label))
        return -EUCLEAN;
    if (!c) {
        c = calloc(1, sizeof(*c));
        if (!c)
            return -ENOMEM;
        c->number = number;
        list_add_tail(&pool->conts, &c->link);
    }
    memcpy(c->uuid, v, sizeof(c->uuid));
    c->created_ns = (int64_t)get_le64(v + offsetof(struct fmt_cont, created_ns));
    memcpy(c->label, label, sizeof(c->label));
    if (number >= pool->next_cont)
        pool->next_cont = number + 1;
    return 0;
}

static void cont_free(struct cont_rec *c)
{
    list_del(&c->link);
    free(c->snaps);
    free(c);
}

static unsigned snap_index(const struct cont_rec *c, uint64_t epoch)
{
    unsigned i = 0;

    while (i < c->n_snaps && c->snaps[i].epoch < epoch)
        i++;
    return i;
}

static int snap_put(struct obj_pool *pool, uint32_t number, uint64_t epoch, const uint8_t *v,
                    size_t len)
{
    struct cont_rec *c = tables_cont(pool, number);
    const char *name = (const char *)v + offsetof(struct fmt_snap, name);
    struct obj_snap_info *s;
    unsigned i;

    if (len != sizeof(struct fmt_snap) || !memchr(name, 0, sizeof(s->name)) || !label_ok(name))
        return -EUCLEAN;
    if (!c)
        return 0; /* of a container that is being destroyed */
    i = snap_index(c, epoch);
    if (i == c->n_snaps || c->snaps[i].epoch != epoch) {
        s = realloc(c->snaps, (c->n_snaps + 1) * sizeof(*s));
        if (!s)
            return -ENOMEM;
        c->snaps = s;
        memmove(s + i + 1, s + i, (c->n_snaps - i) * sizeof(*s));
        c->n_snaps++;
    }
    s = &c->snaps[i];
    s->epoch = epoch;
    s->created_ns = (int64_t)get_le64(v);
    memcpy(s->name, name, sizeof(s->name));
    return 0;
}

static void snap_del(struct obj_pool *pool, uint32_t number, uint64_t epoch)
{
    struct cont_rec *c = tables_cont(pool, number);
    unsigned i = c ? snap_index(c, epoch) : 0;

    if (!c || i >= c->n_snaps || c->snaps[i].epoch != epoch)
        return;
    c->n_snaps--;
    memmove(c->snaps + i, c->snaps + i + 1, (c->n_snaps - i) * sizeof(*c->snaps));
}

static struct work *work_find(struct obj_pool *pool, uint64_t id)
{
    list_for_each(l, &pool->works)
    {
        struct work *w = container_of(l, struct work, link);
        if (w->id == id)
            return w;
    }
    return NULL;
}

static int work_put(struct obj_pool *pool, uint64_t id, const uint8_t *v, size_t len)
{
    struct fmt_work f;
    struct work *w;

    if (len < sizeof(f))
        return -EUCLEAN;
    memcpy(&f, v, sizeof(f));
    f.lo_len = le16toh(f.lo_len);
    f.hi_len = le16toh(f.hi_len);
    if (f.kind < FMT_WORK_PUNCH || f.kind > FMT_WORK_SNAP || f.lo_len > DFE_KEY_BYTES ||
        f.hi_len > DFE_KEY_BYTES || len != sizeof(f) + f.lo_len + f.hi_len ||
        (f.kind == FMT_WORK_PUNCH && (f.lo_len < KEY_OBJ_BYTES || f.hi_len == 0)))
        return -EUCLEAN;
    if (work_find(pool, id))
        return 0;
    w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->id = id;
    w->kind = f.kind;
    w->cont = le32toh(f.cont);
    w->epoch = le64toh(f.epoch);
    w->lo.len = f.lo_len;
    memcpy(w->lo.b, v + sizeof(f), f.lo_len);
    w->hi.len = f.hi_len;
    memcpy(w->hi.b, v + sizeof(f) + f.lo_len, f.hi_len);
    list_add_tail(&pool->works, &w->link);
    pool->n_works++;
    pthread_cond_signal(&pool->wake_work);
    return 0;
}

static void work_free(struct obj_pool *pool, struct work *w)
{
    list_del(&w->link);
    pool->n_works--;
    free(w);
}

int tables_put(struct obj_pool *pool, const void *key, size_t klen, const void *val, size_t vlen)
{
    const uint8_t *k = key, *v = val;

    if (vlen < FMT_BIRTH_BYTES)
        return -EUCLEAN;
    vlen -= FMT_BIRTH_BYTES;
    if (k[0] == KEY_CONT && klen == 5)
        return cont_put(pool, get_be32(k + 1), v, vlen);
    if (k[0] == KEY_SNAP && klen == 13)
        return snap_put(pool, get_be32(k + 1), get_be64(k + 5), v, vlen);
    if (k[0] == KEY_WORK && klen == 9)
        return work_put(pool, get_be64(k + 1), v, vlen);
    return k[0] == KEY_PROP || k[0] == KEY_META || k[0] == KEY_SEG ? 0 : -EUCLEAN;
}

void tables_del(struct obj_pool *pool, const void *key, size_t klen)
{
    const uint8_t *k = key;
    struct cont_rec *c;
    struct work *w;

    if (k[0] == KEY_CONT && klen == 5) {
        c = tables_cont(pool, get_be32(k + 1));
        if (c)
            cont_free(c);
    } else if (k[0] == KEY_SNAP && klen == 13) {
        snap_del(pool, get_be32(k + 1), get_be64(k + 5));
    } else if (k[0] == KEY_WORK && klen == 9) {
        w = work_find(pool, get_be64(k + 1));
        if (w)
            work_free(pool, w);
        pthread_cond_broadcast(&pool->changed);
    }
}

void tables_free(struct obj_pool *pool)
{
    list_for_each_safe(l, t, &pool->conts)
        cont_free(container_of(l, struct cont_rec, link));
    list_for_each_safe(l, t, &pool->works)
        work_free(pool, container_of(l, struct work, link));
}

static bool work_hides(const struct work *w, const void *key, size_t klen)
{
    return w->kind == FMT_WORK_PUNCH && key_cmp(w->lo.b, w->lo.len, key, klen) <= 0 &&
           key_cmp(key, klen, w->hi.b, w->hi.len) < 0;
}

uint64_t works_gone(const struct obj_pool *pool, const void *key, size_t klen, uint64_t at)
{
    uint64_t gone = 0;

    list_for_each(l, &pool->works)
    {
        const struct work *w = container_of(l, struct work, link);
        if (w->epoch > gone && w->epoch <= at && work_hides(w, key, klen))
            gone = w->epoch;
    }
    return gone;
}

uint64_t works_death(const struct obj_pool *pool, const void *key, size_t klen, uint64_t birth)
{
    uint64_t death = 0;

    list_for_each(l, &pool->works)
    {
        const struct work *w = container_of(l, struct work, link);
        if (w->epoch > birth && (death == 0 || w->epoch < death) && work_hides(w, key, klen))
            death = w->epoch;
    }
    return death;
}
