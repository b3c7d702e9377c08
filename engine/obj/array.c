/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading arrays.
 *
 * A run is mapped block by block from one consistent state, then read without locks. Meanwhile a
 * block may be freed, and after a checkpoint be written anew: its checksum then does not match, the
 * run is mapped again and, if the map has changed, read again. Only a block that is still mapped is
 * damaged.
 */
#include "obj/obj_int.h"

#include "base/crc32c.h"

#define REACH (DFE_EXTENT_BLOCKS - 1)
#define MAP_KEYS 600u /* all extents of 1 MiB in one page, one block each */

struct blk {
    uint64_t dev; /* 0: a hole (block 0 is a superblock) */
    uint32_t crc;
    struct jdata *jd;
};

struct map {
    uint64_t off;
    uint64_t n;
    struct blk *blk;
    uint8_t *inl; /* inline bytes of block 0, where the run has it */
    uint32_t inl_len;
    uint64_t turn;
};

/* -- walking extents ------------------------------------------------------------------------- */

/* fn gets each visible extent that overlaps [a, b); a value other than 0 stops. A snapshot's may
 * come twice where one moves to the side table meanwhile. */
typedef int (*ext_fn)(const struct ext *e, void *arg);

struct ext_walk {
    struct obj_cont *cont;
    struct reader *r;
    uint64_t a, b;
    ext_fn fn;
    void *arg;
};

/* Entries of a page that begin before block `end`. */
static int each_in_page(const struct ext_walk *w, const struct page *pg, bool side, uint64_t end)
{
    const struct smap *m = &pg->out;
    uint64_t death = 0, snap = w->cont->snap;
    struct ext e;
    struct key k;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < m->n; i++) {
        if (side) {
            rc = key_parse_side(smap_key(m, i), m->e[i].klen, &k, &death);
        } else {
            k.len = m->e[i].klen;
            memcpy(k.b, smap_key(m, i), k.len);
        }
        if (rc == 0)
            rc = ext_parse(k.b, k.len, smap_val(m, i), m->e[i].vlen, &e);
        if (rc == 0 && !ext_in_device(w->cont->pool, &e))
            rc = -EUCLEAN;
        if (rc < 0)
            return base_fail(rc, "index: a malformed extent in container %u", w->cont->number);
        if (e.off >= end)
            break;
        if (e.off + e.n <= w->a || e.off >= w->b)
            continue;
        if (side ? e.birth <= snap && snap < death
                 : reader_visible(w->r, k.b, k.len, e.birth, snap))
            rc = w->fn(&e, w->arg);
    }
    return rc;
}

/* The block at which a page was cut short. */
static int page_end(const struct page *pg, bool side, uint64_t *end)
{
    struct key k = pg->next;
    uint64_t death;
    int rc = side ? key_parse_side(pg->next.b, pg->next.len, &k, &death) : 0;

    return rc < 0 ? rc : key_parse_ext(k.b, k.len, end);
}

static void page_range(struct page *pg, enum key_table table, struct obj_cont *cont,
                       struct obj_id oid, uint64_t a, uint64_t b)
{
    key_ext(&pg->lo, cont->number, oid, a);
    key_ext(&pg->hi, cont->number, oid, b);
    if (b == UINT64_MAX) {
        key_obj(&pg->hi, table, cont->number, oid);
        key_after_prefix(&pg->hi);
    }
    pg->lo.b[0] = pg->hi.b[0] = (uint8_t)table;
    pg->after = false;
}

/* All extents over [a, b). Both tables are walked in step: an entry that moves from the live to the
 * side table between two pages keeps its place. *turn: of the last page. */
static int each_ext(struct obj_cont *cont, struct obj_id oid, uint64_t a, uint64_t b, ext_fn fn,
                    void *arg, uint64_t *turn)
{
    struct ext_walk w = {.cont = cont, .a = a, .b = b, .fn = fn, .arg = arg};
    bool old = cont->snap != OBJ_LIVE;
    uint64_t at = a > REACH ? a - REACH : 0, end, side_end;
    struct page *live, *side;
    int rc = 0;

    w.r = reader_get(cont->pool);
    if (!w.r)
        return -ENOMEM;
    live = &w.r->page[0];
    side = &w.r->page[1];
    live->limit = side->limit = MAP_KEYS;
    for (;;) {
        page_range(live, KEY_EXT, cont, oid, at, b);
        page_range(side, KEY_SEXT, cont, oid, at, b);
        rc = reader_fill(cont->pool, w.r, old ? 2 : 1);
        end = side_end = UINT64_MAX;
        if (rc == 0 && live->more)
            rc = page_end(live, false, &end);
        if (rc == 0 && old && side->more)
            rc = page_end(side, true, &side_end);
        if (side_end < end)
            end = side_end;
        if (rc == 0 && end == at) { /* one offset with more versions than a page */
            side->limit *= 2;
            live->limit *= 2;
            continue;
        }
        if (rc == 0)
            rc = each_in_page(&w, live, false, end);
        if (rc == 0 && old)
            rc = each_in_page(&w, side, true, end);
        if (rc != 0 || end == UINT64_MAX)
            break;
        at = end;
    }
    if (turn)
        *turn = w.r->turn;
    reader_put(cont->pool, w.r);
    return rc;
}

/* -- mapping a run --------------------------------------------------------------------------- */

static int map_ext(const struct ext *e, void *arg)
{
    struct map *m = arg;
    uint64_t from = e->off > m->off ? e->off : m->off;
    uint64_t to = e->off + e->n < m->off + m->n ? e->off + e->n : m->off + m->n;

    if (e->type == FMT_INLINE) {
        if (m->inl)
            return 0;
        m->inl = malloc(e->bytes);
        if (!m->inl)
            return -ENOMEM;
        memcpy(m->inl, e->body, e->bytes);
        m->inl_len = e->bytes;
        return 0;
    }
    for (uint64_t i = from; i < to; i++) {
        m->blk[i - m->off].dev = e->blk + (i - e->off);
        m->blk[i - m->off].crc = get_le32(e->body + 4 * (i - e->off));
    }
    return 0;
}

static void map_release(struct obj_pool *pool, struct map *m)
{
    pthread_mutex_lock(&pool->lock);
    for (uint64_t i = 0; m->blk && i < m->n; i++)
        if (m->blk[i].jd)
            jdata_put(pool, m->blk[i].jd);
    pthread_mutex_unlock(&pool->lock);
    free(m->blk);
    free(m->inl);
    m->blk = NULL;
    m->inl = NULL;
}

/* Takes references to the blocks that are in memory. false: what was mapped may have gone home. */
static bool map_jdata(struct obj_pool *pool, struct map *m)
{
    bool same;

    pthread_mutex_lock(&pool->lock);
    same = pool->turn == m->turn;
    for (uint64_t i = 0; same && pool->n_jdata > 0 && i < m->n; i++)
        if (m->blk[i].dev)
            m->blk[i].jd = jdata_get(pool, m->blk[i].dev);
    pthread_mutex_unlock(&pool->lock);
    return same;
}

static int map_run(struct obj_cont *cont, struct obj_id oid, uint64_t off, uint64_t n,
                   struct map *m)
{
    bool same = false;
    int rc = 0;

    while (rc == 0 && !same) {
        *m = (struct map){.off = off, .n = n};
        m->blk = calloc(n, sizeof(*m->blk));
        rc = m->blk ? each_ext(cont, oid, off, off + n, map_ext, m, &m->turn) : -ENOMEM;
        same = rc == 0 && map_jdata(cont->pool, m);
        if (!same)
            map_release(cont->pool, m);
    }
    return rc;
}

/* -- reading --------------------------------------------------------------------------------- */

/* Requests for the blocks that are on the device; what is in memory is copied. */
static unsigned run_requests(const struct map *m, uint8_t *buf, struct queue_req *req)
{
    unsigned n = 0;

    for (uint64_t i = 0; i < m->n; i++) {
        uint8_t *to = buf + (i << DFE_BLOCK_SHIFT);
        const struct blk *b = &m->blk[i];
        struct queue_req *last = n ? &req[n - 1] : NULL;
        if (b->dev == 0 || b->jd) {
            if (b->jd)
                memcpy(to, b->jd->data, DFE_BLOCK_BYTES);
            else
                memset(to, 0, DFE_BLOCK_BYTES);
        } else if (last && last->off + last->len == b->dev << DFE_BLOCK_SHIFT &&
                   (uint8_t *)last->buf + last->len == to) {
            last->len += DFE_BLOCK_BYTES;
        } else {
            req[n++] = (struct queue_req){.op = QUEUE_READ, .off = b->dev << DFE_BLOCK_SHIFT,
                                          .buf = to, .len = DFE_BLOCK_BYTES};
        }
    }
    if (m->inl)
        memcpy(buf, m->inl, m->inl_len); /* the run begins with block 0 */
    return n;
}

/* First block whose bytes are not what was written; m->n: none. */
static uint64_t bad_block(const struct map *m, const uint8_t *buf)
{
    uint64_t i = 0;

    while (i < m->n && (m->blk[i].dev == 0 ||
                        base_crc32c(0, buf + (i << DFE_BLOCK_SHIFT), DFE_BLOCK_BYTES) ==
                            m->blk[i].crc))
        i++;
    return i;
}

static int report_bad(struct obj_cont *cont, struct obj_id oid, const struct map *m, uint64_t i)
{
    pthread_mutex_lock(&cont->pool->lock);
    cont->pool->checksum_errors++;
    pthread_mutex_unlock(&cont->pool->lock);
    return base_fail(-EUCLEAN, "checksum error: container %u, object %016llx%016llx, offset %llu, "
                     "device block %llu", cont->number, (unsigned long long)oid.hi,
                     (unsigned long long)oid.lo,
                     (unsigned long long)(m->off + i) << DFE_BLOCK_SHIFT,
                     (unsigned long long)m->blk[i].dev);
}

/* Looks at a run that has been read. *again: it was mapped anew and must be read again. */
static int finish_run(struct obj_cont *cont, struct obj_id oid, struct map *m, const uint8_t *buf,
                      bool *again)
{
    uint64_t i = bad_block(m, buf);
    struct map now;
    int rc;

    if (i == m->n)
        return 0;
    rc = map_run(cont, oid, m->off, m->n, &now);
    if (rc < 0)
        return rc;
    *again = now.blk[i].dev != m->blk[i].dev || now.blk[i].crc != m->blk[i].crc ||
             now.blk[i].jd != m->blk[i].jd;
    if (!*again) {
        rc = report_bad(cont, oid, m, i);
        map_release(cont->pool, &now);
        return rc;
    }
    map_release(cont->pool, m);
    *m = now;
    return 0;
}

/* Submits the requests of all runs marked todo and gives each run its first error. */
static int read_todo(struct obj_pool *pool, struct obj_io *io, struct map *map, const bool *todo,
                     unsigned n)
{
    struct queue_req *req;
    struct queue *q;
    unsigned n_req = 0, *end;
    uint64_t blocks = 0;
    int rc;

    for (unsigned i = 0; i < n; i++)
        blocks += todo[i] ? map[i].n : 0;
    req = malloc((blocks + 1) * sizeof(*req));
    end = malloc((n + 1) * sizeof(*end));
    rc = req && end ? 0 : -ENOMEM;
    for (unsigned i = 0; rc == 0 && i < n; i++) {
        if (todo[i])
            n_req += run_requests(&map[i], io[i].buf, req + n_req);
        end[i] = n_req;
    }
    if (rc == 0 && n_req > 0)
        rc = queue_borrow(pool->dev, &q);
    if (rc == 0 && n_req > 0) {
        queue_run(q, req, n_req); /* each request tells its own */
        queue_return(pool->dev, q);
    }
    for (unsigned i = 0, at = 0; rc == 0 && i < n; i++)
        for (; at < end[i]; at++)
            if (req[at].res < 0 && io[i].res == 0)
                io[i].res = req[at].res;
    free(end);
    free(req);
    return rc;
}

static int read_runs(struct obj_cont *cont, struct obj_id oid, struct obj_io *io, struct map *map,
                     bool *todo, unsigned n)
{
    bool any = true;
    int rc = 0;

    while (rc == 0 && any) {
        any = false;
        rc = read_todo(cont->pool, io, map, todo, n);
        for (unsigned i = 0; rc == 0 && i < n; i++) {
            bool again = false;
            if (todo[i] && io[i].res == 0)
                io[i].res = finish_run(cont, oid, &map[i], io[i].buf, &again);
            todo[i] = again;
            any = any || again;
        }
    }
    return rc;
}

int obj_array_read(struct obj_cont *cont, struct obj_id oid, struct obj_io *io, unsigned n)
{
    struct map *map = calloc(n ? n : 1, sizeof(*map));
    bool *todo = calloc(n ? n : 1, sizeof(*todo));
    uint64_t io_errors = 0;
    int rc = map && todo ? 0 : -ENOMEM;

    for (unsigned i = 0; rc == 0 && i < n; i++)
        if (io[i].off % DFE_BLOCK_BYTES || io[i].len % DFE_BLOCK_BYTES ||
            io[i].off > DFE_FILE_BYTES || io[i].len > DFE_FILE_BYTES + 1 - io[i].off)
            rc = base_refuse(-EINVAL, "runs are in units of %u bytes", DFE_BLOCK_BYTES);
    for (unsigned i = 0; i < n; i++)
        io[i].res = rc;
    for (unsigned i = 0; rc == 0 && i < n; i++) {
        if (io[i].len > 0)
            io[i].res = map_run(cont, oid, io[i].off >> DFE_BLOCK_SHIFT,
                                io[i].len >> DFE_BLOCK_SHIFT, &map[i]);
        todo[i] = io[i].len > 0 && io[i].res == 0;
    }
    if (rc == 0)
        rc = read_runs(cont, oid, io, map, todo, n);
    for (unsigned i = 0; map && i < n; i++) {
        if (map[i].blk)
            map_release(cont->pool, &map[i]);
        if (rc == 0 && io[i].res < 0)
            rc = io[i].res;
        io_errors += io[i].res == -EIO;
    }
    if (io_errors > 0) {
        pthread_mutex_lock(&cont->pool->lock);
        cont->pool->io_errors += io_errors;
        pthread_mutex_unlock(&cont->pool->lock);
    }
    free(todo);
    free(map);
    return rc;
}

/* -- holes and sizes ------------------------------------------------------------------------- */

struct extent_at { /* the visible extents met, each once */
    uint64_t *v;   /* pairs: first block, block after the last */
    size_t n, cap;
    uint64_t inline_bytes;
};

static int collect_ext(const struct ext *e, void *arg)
{
    struct extent_at *x = arg;

    if (x->n + 2 > x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 64;
        uint64_t *v = realloc(x->v, cap * sizeof(*v));
        if (!v)
            return -ENOMEM;
        x->v = v;
        x->cap = cap;
    }
    x->v[x->n++] = e->off;
    x->v[x->n++] = e->off + e->n;
    if (e->type == FMT_INLINE)
        x->inline_bytes = e->bytes;
    return 0;
}

static int by_start(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return x[0] < y[0] ? -1 : x[0] > y[0];
}

/* The visible extents over [a, b), sorted, those of one state joined where they touch. */
static int extents(struct obj_cont *cont, struct obj_id oid, uint64_t a, uint64_t b,
                   struct extent_at *x)
{
    size_t out = 0;
    int rc;

    x->n = 0;
    rc = each_ext(cont, oid, a, b, collect_ext, x, NULL);
    if (rc < 0 || x->n == 0)
        return rc;
    qsort(x->v, x->n / 2, 2 * sizeof(*x->v), by_start);
    for (size_t i = 2; i < x->n; i += 2) {
        if (x->v[i] <= x->v[out + 1]) {
            if (x->v[i + 1] > x->v[out + 1])
                x->v[out + 1] = x->v[i + 1];
        } else {
            out += 2;
            x->v[out] = x->v[i];
            x->v[out + 1] = x->v[i + 1];
        }
    }
    x->n = out + 2;
    return 0;
}

#define WINDOW_FIRST 4096u /* blocks looked at at once, more and more */

/* First data or hole at or after block `at`, or -ENXIO (data only). */
static int next_block(struct obj_cont *cont, struct obj_id oid, uint64_t at, enum obj_next what,
                      struct extent_at *x, uint64_t *out)
{
    uint64_t window = WINDOW_FIRST, end;
    int rc;

    for (;;) {
        end = at + window < at || window > UINT64_MAX / 4 ? UINT64_MAX : at + window;
        rc = extents(cont, oid, at, end, x);
        if (rc < 0)
            return rc;
        if (what == OBJ_DATA && x->n > 0) {
            *out = x->v[0] > at ? x->v[0] : at;
            return 0;
        }
        if (what == OBJ_HOLE && (x->n == 0 || x->v[0] > at || x->v[1] < end)) {
            *out = x->n == 0 || x->v[0] > at ? at : x->v[1];
            return 0;
        }
        if (end == UINT64_MAX)
            return -ENXIO;
        if (what == OBJ_HOLE)
            at = x->v[1] > end ? x->v[1] : end;
        else
            at = end;
        window *= 4;
    }
}

int obj_array_next(struct obj_cont *cont, struct obj_id oid, uint64_t off, enum obj_next what,
                   uint64_t *out)
{
    struct extent_at x = {0};
    uint64_t blk = 0, at = off >> DFE_BLOCK_SHIFT;
    int rc = next_block(cont, oid, at, what, &x, &blk);

    if (rc == 0)
        *out = blk == at ? off : blk << DFE_BLOCK_SHIFT;
    free(x.v);
    return rc;
}

int obj_array_stat(struct obj_cont *cont, struct obj_id oid, uint64_t *used_bytes, uint64_t *end)
{
    struct extent_at x = {0};
    uint64_t blocks = 0;
    int rc = extents(cont, oid, 0, UINT64_MAX, &x);

    for (size_t i = 0; rc == 0 && i < x.n; i += 2)
        blocks += x.v[i + 1] - x.v[i];
    if (rc == 0) {
        bool only_inline = x.inline_bytes > 0 && blocks == 1;
        *used_bytes = only_inline ? x.inline_bytes : blocks << DFE_BLOCK_SHIFT;
        *end = only_inline ? x.inline_bytes : x.n ? x.v[x.n - 1] << DFE_BLOCK_SHIFT : 0;
    }
    free(x.v);
    return rc;
}
