/* SPDX-License-Identifier: Apache-2.0 */
/* Random transactions and their shadow. */
#include "obj_shadow.h"

static const struct shadow empty;

void shadow_log_init(struct shadow_log *log)
{
    memset(log, 0, sizeof(*log));
}

static void log_add(struct shadow_log *log, uint64_t epoch, const struct shadow *s)
{
    log->v = realloc(log->v, (log->n + 1) * sizeof(*log->v));
    CHECK(log->v);
    log->v[log->n].epoch = epoch;
    log->v[log->n].state = malloc(sizeof(*s));
    CHECK(log->v[log->n].state);
    *log->v[log->n++].state = *s;
}

void shadow_log_cut(struct shadow_log *log, uint64_t epoch)
{
    while (log->n > 0 && log->v[log->n - 1].epoch > epoch)
        free(log->v[--log->n].state);
}

void shadow_log_free(struct shadow_log *log)
{
    while (log->n > 0)
        free(log->v[--log->n].state);
    free(log->v);
}

const struct shadow *shadow_at(const struct shadow_log *log, uint64_t epoch)
{
    size_t i = log->n;

    while (i > 0 && log->v[i - 1].epoch > epoch)
        i--;
    return i > 0 ? log->v[i - 1].state : &empty;
}

/* -- ops ------------------------------------------------------------------------------------- */

struct step {
    struct rig *r;
    struct obj_tx *tx;
    struct shadow s;
    uint64_t *seed;
    int rc;
};

static uint64_t rnd(struct step *st, uint64_t n)
{
    return test_rand(st->seed) % n;
}

/* Keys: dkey "d0".."d3" with akeys, so that a dkey can be punched. */
static struct obj_key key_of(unsigned i, char *buf)
{
    snprintf(buf, 16, "d%u", i / 6);
    snprintf(buf + 4, 12, "a%u", i % 6);
    return (struct obj_key){.dkey = buf, .dkey_len = 2, .akey = buf + 4,
                            .akey_len = (uint16_t)(i % 6 ? 2 : 0)};
}

static void op_keys(struct step *st, unsigned o)
{
    unsigned i = (unsigned)rnd(st, SHADOW_KEYS);
    struct shadow_obj *s = &st->s.obj[o];
    struct obj_id oid = rig_oid(o);
    uint32_t v = (uint32_t)rnd(st, 1u << 30) + 1;
    uint64_t old = s->key[i];
    uint8_t bytes[8];
    char buf[32];
    struct obj_key k = key_of(i, buf);

    put_le64(bytes, v);
    switch (rnd(st, 6)) {
    case 0:
    case 1:
        CHECK_EQ(obj_tx_put(st->tx, OBJ_HOME, oid, &k, bytes, 8), 0);
        s->key[i] = v;
        break;
    case 2:
        CHECK_EQ(obj_tx_del(st->tx, OBJ_HOME, oid, &k), 0);
        s->key[i] = 0;
        break;
    case 3:
        CHECK_EQ(obj_tx_add(st->tx, OBJ_AFTER, oid, &k, 1000 - (int64_t)(old % 7)), 0);
        s->key[i] = (uint32_t)(old + 1000 - old % 7);
        break;
    case 4:
        CHECK_EQ(obj_tx_max(st->tx, OBJ_AFTER, oid, &k, v), 0);
        s->key[i] = v > old ? v : (uint32_t)old;
        break;
    default:
        CHECK_EQ(obj_tx_punch_dkey(st->tx, OBJ_HOME, oid, k.dkey, k.dkey_len), 0);
        memset(&s->key[i / 6 * 6], 0, 6 * sizeof(s->key[0]));
    }
}

/* Up to n runs of `run` blocks, `gap` apart. */
static void op_write(struct step *st, unsigned o, uint64_t at, uint64_t run, uint64_t gap,
                     unsigned n, unsigned flags)
{
    uint32_t tag = (uint32_t)rnd(st, 1u << 30) + 1;
    struct obj_io *io = calloc(n, sizeof(*io));
    uint8_t *buf = aligned_alloc(RIG_BLK, n * run * RIG_BLK);
    struct obj_stage *stage;
    unsigned got = 0;

    CHECK(io && buf);
    for (; got < n && at + run <= SHADOW_BLKS; at += run + gap, got++) {
        io[got] = (struct obj_io){.off = at * RIG_BLK, .buf = buf + got * run * RIG_BLK,
                                  .len = run * RIG_BLK};
        for (uint64_t i = 0; i < run; i++)
            rig_fill((uint8_t *)io[got].buf + i * RIG_BLK, at + i, tag);
    }
    if (got > 0)
        st->rc = obj_array_stage(st->r->cont, rig_oid(o), io, got, flags, &stage);
    for (unsigned j = 0; st->rc == 0 && j < got; j++)
        for (uint64_t i = 0; i < run; i++)
            st->s.obj[o].blk[io[j].off / RIG_BLK + i] = tag;
    if (st->rc == 0 && got > 0) {
        if (io[0].off == 0)
            st->s.obj[o].inline_len = 0;
        CHECK_EQ(obj_tx_write(st->tx, OBJ_HOME, rig_oid(o), stage), 0);
    }
    free(buf);
    free(io);
}

static void op_inline(struct step *st, unsigned o)
{
    struct shadow_obj *s = &st->s.obj[o];
    uint32_t len = (uint32_t)rnd(st, 4000), tag = (uint32_t)rnd(st, 1u << 30) + 1;
    uint8_t buf[RIG_BLK];
    struct obj_stage *stage;

    rig_fill(buf, 0, tag);
    st->rc = obj_array_stage_inline(st->r->cont, rig_oid(o), buf, len, &stage);
    if (st->rc < 0)
        return;
    CHECK_EQ(obj_tx_write(st->tx, OBJ_HOME, rig_oid(o), stage), 0);
    memset(s->blk, 0, sizeof(s->blk));
    s->blk[0] = len ? tag : 0;
    s->inline_len = len;
}

static void op_cut(struct step *st, unsigned o)
{
    struct shadow_obj *s = &st->s.obj[o];
    uint64_t a = rnd(st, SHADOW_BLKS), b = a + 1 + rnd(st, 300);
    bool to_end = rnd(st, 4) == 0;

    if (to_end) {
        a = rnd(st, 2) ? 0 : a / 4;
        b = SHADOW_BLKS;
    }
    b = b > SHADOW_BLKS ? SHADOW_BLKS : b;
    CHECK_EQ(obj_tx_punch_array(st->tx, OBJ_HOME, rig_oid(o), a * RIG_BLK,
                                to_end ? UINT64_MAX : (b - a) * RIG_BLK), 0);
    for (uint64_t i = a; i < b; i++)
        s->blk[i] = 0;
    if (a == 0)
        s->inline_len = 0;
}

static void one_op(struct step *st)
{
    unsigned o = (unsigned)rnd(st, SHADOW_OBJS);

    switch (rnd(st, 12)) {
    case 0:
        CHECK_EQ(obj_tx_punch_object(st->tx, OBJ_HOME, rig_oid(o)), 0);
        memset(&st->s.obj[o], 0, sizeof(st->s.obj[o]));
        break;
    case 1:
        op_inline(st, o);
        break;
    case 2:
        op_cut(st, o);
        break;
    case 3: /* many extents */
        op_write(st, o, rnd(st, 40), 1, 1, 640, 0);
        break;
    case 4:
    case 5:
        op_write(st, o, rnd(st, SHADOW_BLKS), 1 + rnd(st, 400), rnd(st, 3), 1, 0);
        break;
    case 6:
        op_write(st, o, rnd(st, SHADOW_BLKS), 1 + rnd(st, 4), rnd(st, 9), 3, OBJ_STAGE_JOURNAL);
        break;
    default:
        op_keys(st, o);
    }
}

int shadow_step(struct rig *r, struct shadow_log *log, uint64_t *seed)
{
    struct step st = {.r = r, .s = *shadow_at(log, UINT64_MAX), .seed = seed};
    unsigned n = 1 + (unsigned)rnd(&st, 4), flags = rnd(&st, 5) == 0 ? OBJ_SYNC : 0;
    uint64_t epoch = 0;
    int rc;

    rc = obj_tx_begin(r->cont, rig_oid(0), &st.tx);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < n && st.rc == 0; i++)
        one_op(&st);
    if (st.rc < 0) {
        obj_tx_abort(st.tx);
        return st.rc;
    }
    rc = obj_tx_commit(st.tx, flags, &epoch);
    if (epoch)
        log_add(log, epoch, &st.s);
    if (rc == 0 && flags)
        log->synced = epoch;
    return rc;
}

struct snaps {
    char name[8][64];
    uint64_t epoch[8];
    unsigned n;
};

static int snap_one(const struct obj_snap_info *s, void *arg)
{
    struct snaps *v = arg;

    CHECK(v->n < 8);
    snprintf(v->name[v->n], sizeof(v->name[0]), "%s", s->name);
    v->epoch[v->n++] = s->epoch;
    return 0;
}

int shadow_admin(struct rig *r, struct shadow_log *log, uint64_t *seed)
{
    struct snaps v = {.n = 0};
    uint64_t x = test_rand(seed), epoch = 0;
    char name[32];
    int rc = 0;

    CHECK_EQ(obj_snap_list(r->cont, snap_one, &v), 0);
    switch (x % 24) {
    case 0:
        if (v.n >= 4)
            break;
        snprintf(name, sizeof(name), "s%llu", (unsigned long long)(x >> 8));
        rc = obj_snap_create(r->cont, name, &epoch);
        if (rc == 0)
            log->synced = epoch;
        break;
    case 1:
        if (v.n > 0)
            rc = obj_snap_destroy(r->cont, v.name[(x >> 8) % v.n]);
        break;
    case 2:
        rc = obj_checkpoint(r->pool);
        if (rc == 0 && log->n > 0)
            log->synced = log->v[log->n - 1].epoch;
        break;
    case 3:
        rc = obj_sync(r->pool);
        if (rc == 0 && log->n > 0)
            log->synced = log->v[log->n - 1].epoch;
        break;
    default:
        break;
    }
    return rc;
}

/* -- verifying ------------------------------------------------------------------------------- */

struct seen {
    const struct shadow_obj *s;
    unsigned next, o;
};

static int scan_one(const struct obj_key *key, const void *value, size_t len, void *arg)
{
    struct seen *x = arg;
    char buf[32];
    struct obj_key k;

    while (x->next < SHADOW_KEYS && x->s->key[x->next] == 0)
        x->next++;
    CHECK(x->next < SHADOW_KEYS);
    k = key_of(x->next, buf);
    CHECK_EQ(k.dkey_len, key->dkey_len);
    CHECK_EQ(k.akey_len, key->akey_len);
    CHECK(memcmp(k.dkey, key->dkey, k.dkey_len) == 0 && memcmp(k.akey, key->akey, k.akey_len) == 0);
    CHECK_EQ(len, 8);
    CHECK_EQ(get_le64(value), x->s->key[x->next]);
    x->next++;
    return 0;
}

static void verify_keys(struct obj_cont *cont, unsigned o, const struct shadow_obj *s)
{
    struct seen x = {.s = s, .o = o};
    uint8_t v[8];
    char buf[32];
    size_t len;

    for (unsigned i = 0; i < SHADOW_KEYS; i++) {
        struct obj_key k = key_of(i, buf);
        int rc = obj_kv_get(cont, rig_oid(o), &k, v, sizeof(v), &len);
        CHECK_EQ(rc, s->key[i] ? 0 : -ENOENT);
        if (rc == 0)
            CHECK_EQ(get_le64(v), s->key[i]);
    }
    CHECK_EQ(obj_kv_scan(cont, rig_oid(o), NULL, 0, scan_one, &x), 0);
    while (x.next < SHADOW_KEYS && s->key[x.next] == 0)
        x.next++;
    CHECK_EQ(x.next, SHADOW_KEYS);
}

static void verify_array(struct obj_cont *cont, unsigned o, const struct shadow_obj *s)
{
    uint8_t *buf = aligned_alloc(RIG_BLK, SHADOW_BLKS * RIG_BLK), want[RIG_BLK];
    struct obj_io io[2] = {{.off = 0, .buf = buf, .len = 700 * RIG_BLK},
                           {.off = 700 * RIG_BLK, .buf = buf + 700 * RIG_BLK,
                            .len = (SHADOW_BLKS - 700) * RIG_BLK}};
    uint64_t used = 0, end = 0, got_used, got_end, at = 0, next;

    CHECK(buf);
    CHECK_EQ(obj_array_read(cont, rig_oid(o), io, 2), 0);
    for (unsigned i = 0; i < SHADOW_BLKS; i++) {
        memset(want, 0, sizeof(want));
        if (s->blk[i])
            rig_fill(want, i, s->blk[i]);
        if (i == 0 && s->inline_len)
            memset(want + s->inline_len, 0, RIG_BLK - s->inline_len);
        if (memcmp(buf + i * RIG_BLK, want, RIG_BLK) != 0) {
            fprintf(stderr, "object %u block %u is not what was written (tag %u, inline %u): it "
                    "begins with %llx, not %llx\n", o, i, s->blk[i], s->inline_len,
                    (unsigned long long)get_le64(buf + i * RIG_BLK),
                    (unsigned long long)get_le64(want));
            abort();
        }
        used += s->blk[i] ? RIG_BLK : 0;
        end = s->blk[i] ? (i + 1) * (uint64_t)RIG_BLK : end;
    }
    free(buf);
    if (s->inline_len && used == RIG_BLK)
        used = end = s->inline_len;
    CHECK_EQ(obj_array_stat(cont, rig_oid(o), &got_used, &got_end), 0);
    CHECK_EQ(got_used, used);
    CHECK_EQ(got_end, end);
    for (unsigned turns = 0; turns < 20 && at < SHADOW_BLKS; turns++) {
        uint64_t d = at;
        while (d < SHADOW_BLKS && !s->blk[d])
            d++;
        CHECK_EQ(obj_array_next(cont, rig_oid(o), at * RIG_BLK, OBJ_DATA, &next),
                 d == SHADOW_BLKS ? -ENXIO : 0);
        if (d == SHADOW_BLKS)
            break;
        CHECK_EQ(next, d * RIG_BLK);
        while (d < SHADOW_BLKS && s->blk[d])
            d++;
        CHECK_EQ(obj_array_next(cont, rig_oid(o), next, OBJ_HOLE, &next), 0);
        CHECK_EQ(next, d * RIG_BLK);
        at = d;
    }
}

void shadow_verify(struct obj_cont *cont, const struct shadow *s)
{
    for (unsigned o = 0; o < SHADOW_OBJS; o++) {
        verify_keys(cont, o, &s->obj[o]);
        verify_array(cont, o, &s->obj[o]);
    }
}

void shadow_verify_snapshots(struct rig *r, const struct shadow_log *log)
{
    struct snaps v = {.n = 0};
    struct obj_cont *c;

    CHECK_EQ(obj_snap_list(r->cont, snap_one, &v), 0);
    for (unsigned i = 0; i < v.n; i++) {
        CHECK_EQ(obj_cont_open(r->pool, "c", v.name[i], &c), 0);
        shadow_verify(c, shadow_at(log, v.epoch[i]));
        obj_cont_close(c);
    }
}
