/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Consistent pages of the three layers, for readers.
 *
 * A page is a bounded piece of one object's key range. Overlay entries are copied under the lock,
 * then the index is asked, then the two are merged. Overlays come first: a key that moves from the
 * frozen overlay to the index meanwhile is found twice rather than never. If the active overlay was
 * frozen, or the frozen one dropped, before the index had answered, the page is read again (O2).
 */
#include "obj/obj_int.h"

#define OVER_BYTES (64u << 10)  /* copied under the lock for one page */
#define INDEX_BYTES (1u << 20)

uint64_t value_birth(const void *val, size_t vlen)
{
    return get_le64((const uint8_t *)val + vlen - FMT_BIRTH_BYTES);
}

void key_after_prefix(struct key *k)
{
    while (k->len > 0 && k->b[k->len - 1] == 0xff)
        k->len--;
    DFE_ASSERT(k->len > 0); /* tables are far below 0xff */
    k->b[k->len - 1]++;
}

struct reader *reader_get(struct obj_pool *pool)
{
    struct reader *r = NULL;

    pthread_mutex_lock(&pool->lock);
    if (!list_empty(&pool->readers)) {
        r = container_of(pool->readers.next, struct reader, link);
        list_del(&r->link);
    }
    pthread_mutex_unlock(&pool->lock);
    return r ? r : calloc(1, sizeof(*r));
}

void reader_put(struct obj_pool *pool, struct reader *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&pool->lock);
    list_add(&pool->readers, &r->link);
    pthread_mutex_unlock(&pool->lock);
}

static int page_add(struct smap *m, const void *key, size_t klen, const void *val, size_t vlen,
                    enum overlay_state state)
{
    return smap_put(m, key, klen, val, state == OVERLAY_VALUE ? vlen : 0, state);
}

/* First entry of the page's range in one overlay. */
static bool over_seek(const struct overlay *o, const struct page *pg, struct overlay_cur *cur)
{
    bool any = o && overlay_seek(o, pg->lo.b, pg->lo.len, cur) == 1;

    if (any && pg->after && key_cmp(cur->key, cur->klen, pg->lo.b, pg->lo.len) == 0)
        any = overlay_next(o, cur) == 1;
    return any;
}

static bool in_range(const struct page *pg, const void *key, size_t klen)
{
    return key_cmp(key, klen, pg->hi.b, pg->hi.len) < 0;
}

/* Copies what the overlays have, the active one's word first. Under the lock. */
static int fill_overlays(struct obj_pool *pool, struct page *pg)
{
    struct overlay_cur a, f;
    bool has_a, has_f;
    int rc = 0, c;

    smap_clear(&pg->over);
    pg->over_more = false;
    has_a = over_seek(pool->active, pg, &a) && in_range(pg, a.key, a.klen);
    has_f = over_seek(pool->frozen, pg, &f) && in_range(pg, f.key, f.klen);
    while (rc == 0 && (has_a || has_f)) {
        if (pg->over.n >= pg->limit || pg->over.data.len >= OVER_BYTES) {
            pg->over_more = true;
            break;
        }
        c = !has_a ? 1 : !has_f ? -1 : key_cmp(a.key, a.klen, f.key, f.klen);
        if (c <= 0)
            rc = page_add(&pg->over, a.key, a.klen, a.val, a.vlen, a.state);
        else
            rc = page_add(&pg->over, f.key, f.klen, f.val, f.vlen, f.state);
        if (c <= 0)
            has_a = overlay_next(pool->active, &a) == 1 && in_range(pg, a.key, a.klen);
        if (c >= 0)
            has_f = overlay_next(pool->frozen, &f) == 1 && in_range(pg, f.key, f.klen);
    }
    return rc;
}

/* Pending punches of the container that may concern the page. Under the lock. */
static int fill_gone(struct obj_pool *pool, struct reader *r)
{
    const struct page *pg = &r->page[0];

    r->n_gone = 0;
    list_for_each(l, &pool->works)
    {
        const struct work *w = container_of(l, struct work, link);
        if (w->kind != FMT_WORK_PUNCH || !in_range(pg, w->lo.b, w->lo.len) ||
            key_cmp(w->hi.b, w->hi.len, pg->lo.b, pg->lo.len) <= 0)
            continue;
        if (r->n_gone == r->cap_gone) {
            unsigned cap = r->cap_gone ? r->cap_gone * 2 : 4;
            struct gone *g = realloc(r->gone, cap * sizeof(*g));
            if (!g)
                return -ENOMEM;
            r->gone = g;
            r->cap_gone = cap;
        }
        r->gone[r->n_gone++] = (struct gone){.lo = w->lo, .hi = w->hi, .epoch = w->epoch};
    }
    return 0;
}

static int index_entry(const void *key, size_t klen, const void *val, size_t vlen, void *arg)
{
    struct page *pg = arg;
    int rc;

    if (pg->after && key_cmp(key, klen, pg->lo.b, pg->lo.len) == 0)
        return 0;
    if (pg->idx.n >= pg->limit || pg->idx.data.len >= INDEX_BYTES) {
        pg->idx_more = true;
        return 1;
    }
    if (vlen < FMT_BIRTH_BYTES)
        return -EUCLEAN;
    rc = page_add(&pg->idx, key, klen, val, vlen, OVERLAY_VALUE);
    return rc;
}

static int fill_index(struct obj_pool *pool, struct page *pg)
{
    const struct key *hi = &pg->hi;
    uint64_t bad = 0;
    int rc;

    smap_clear(&pg->idx);
    pg->idx_more = false;
    rc = index_scan(pool->index, pg->lo.b, pg->lo.len, hi->b, hi->len, index_entry, pg,
                    pool->salvage ? &bad : NULL);
    return rc < 0 ? rc : 0;
}

/* Merges up to the point that both sources reach. */
static int merge(struct page *pg)
{
    const struct smap *o = &pg->over, *x = &pg->idx;
    uint32_t i = 0, j = 0;
    int rc = 0;

    smap_clear(&pg->out);
    pg->more = pg->over_more || pg->idx_more;
    if (pg->more) {
        const struct smap *m = !pg->idx_more ? o : !pg->over_more ? x : NULL;
        if (!m)
            m = key_cmp(smap_key(o, o->n - 1), o->e[o->n - 1].klen, smap_key(x, x->n - 1),
                        x->e[x->n - 1].klen) < 0 ? o : x;
        pg->next.len = m->e[m->n - 1].klen;
        memcpy(pg->next.b, smap_key(m, m->n - 1), pg->next.len);
    }
    while (rc == 0 && (i < o->n || j < x->n)) {
        int c = i == o->n ? 1 : j == x->n ? -1
              : key_cmp(smap_key(o, i), o->e[i].klen, smap_key(x, j), x->e[j].klen);
        const struct smap *m = c <= 0 ? o : x;
        uint32_t at = c <= 0 ? i : j;
        const struct smap_ent *e = &m->e[at];
        if (pg->more && key_cmp(smap_key(m, at), e->klen, pg->next.b, pg->next.len) > 0)
            break;
        if (e->state == OVERLAY_VALUE)
            rc = page_add(&pg->out, smap_key(m, at), e->klen, smap_val(m, at), e->vlen,
                          OVERLAY_VALUE);
        i += c <= 0;
        j += c >= 0;
    }
    return rc;
}

int reader_fill(struct obj_pool *pool, struct reader *r, unsigned n)
{
    bool same = false;
    int rc = 0;

    while (!same) {
        pthread_mutex_lock(&pool->lock);
        r->turn = pool->turn;
        rc = fill_gone(pool, r);
        for (unsigned i = 0; rc == 0 && i < n; i++)
            rc = fill_overlays(pool, &r->page[i]);
        pthread_mutex_unlock(&pool->lock);
        for (unsigned i = 0; rc == 0 && i < n; i++)
            rc = fill_index(pool, &r->page[i]);
        if (rc < 0)
            return rc;
        pthread_mutex_lock(&pool->lock);
        same = r->turn == pool->turn;
        pthread_mutex_unlock(&pool->lock);
    }
    for (unsigned i = 0; rc == 0 && i < n; i++)
        rc = merge(&r->page[i]);
    return rc;
}

bool reader_visible(const struct reader *r, const void *key, size_t klen, uint64_t birth,
                    uint64_t snap)
{
    if (birth > snap)
        return false;
    for (unsigned i = 0; i < r->n_gone; i++) {
        const struct gone *g = &r->gone[i];
        if (birth < g->epoch && g->epoch <= snap && key_cmp(g->lo.b, g->lo.len, key, klen) <= 0 &&
            key_cmp(key, klen, g->hi.b, g->hi.len) < 0)
            return false;
    }
    return true;
}

int read_any(struct obj_pool *pool, const struct key *lo, const struct key *hi, bool *any)
{
    struct reader *r = reader_get(pool);
    struct page *pg;
    int rc = 0;

    if (!r)
        return -ENOMEM;
    pg = &r->page[0];
    pg->lo = *lo;
    pg->hi = *hi;
    pg->after = false;
    pg->limit = 8;
    *any = false;
    do {
        rc = reader_fill(pool, r, 1);
        for (uint32_t i = 0; rc == 0 && !*any && i < pg->out.n; i++)
            *any = reader_visible(r, smap_key(&pg->out, i), pg->out.e[i].klen,
                                  value_birth(smap_val(&pg->out, i), pg->out.e[i].vlen), OBJ_LIVE);
        pg->lo = pg->next;
        pg->after = true;
        pg->limit = OBJ_PAGE_KEYS;
    } while (rc == 0 && !*any && pg->more);
    reader_put(pool, r);
    return rc;
}
