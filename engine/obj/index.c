/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index over LMDB.
 *
 * Invariants:
 *   I1 every value ends in CRC32C(key, value): what does not match is damage, never an answer
 *   I2 a read transaction lives for one call; idle ones are reset, so that they pin no pages
 *   I3 an assertion inside LMDB ends the call with -EUCLEAN: it jumps out to the caller's frame,
 * after which the transaction is only aborted
 *
 * LMDB believes its pages. What open can check is checked: meta pages, and that the file holds
 * every page they speak of (a shorter file would be SIGBUS).
 */
#include "obj/index.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/crc32c.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/words.h"

#define CRC_BYTES 4u
#define MAP_MOST_BYTES (1ull << 40)
#define MAP_LEAST_BYTES (1ull << 30)
#define READERS 510u /* LMDB's lock table; more concurrent readers get -EAGAIN from it */
#define IDLE_READERS 64u

struct index {
    MDB_env *env;
    MDB_dbi dbi;
    int fd; /* data.mdb, for fallocate */
    uint64_t page_bytes;
    uint64_t allocated;   /* bytes of data.mdb that fallocate has promised */
    atomic_bool broken;   /* an assertion hit a writer: LMDB's state is not to be trusted */
    pthread_mutex_t lock; /* guards idle */
    MDB_txn *idle[IDLE_READERS];
    unsigned n_idle;
};

struct index_tx {
    struct index *ix;
    MDB_txn *txn;
    uint8_t *buf; /* value with its CRC */
    size_t buf_bytes;
    int err; /* sticky: commit must not follow a failed change */
};

/* -- LMDB's errors and asserts ----------------------------------------------------------------- */

#define RC_ASSERTED (MDB_LAST_ERRCODE + 1)

static _Thread_local jmp_buf *assert_exit;

static void on_assert(MDB_env *env, const char *text)
{
    base_fail(-EUCLEAN, "index: damaged: %s", text);
    if (assert_exit)
        longjmp(*assert_exit, 1);
}

/* One frame that LMDB's asserts jump to: fn runs with arg, its LMDB code is returned. */
static int guarded(int (*fn)(void *), void *arg)
{
    jmp_buf here, *outer = assert_exit;
    int rc;

    if (setjmp(here) == 0) {
        assert_exit = &here;
        rc = fn(arg);
    } else {
        rc = RC_ASSERTED;
    }
    assert_exit = outer;
    return rc;
}

/* LMDB's codes to ours. Positive ones are errno values of system calls. */
static int index_err(int rc, const char *what)
{
    switch (rc) {
    case MDB_SUCCESS:
        return 0;
    case MDB_NOTFOUND:
        return -ENOENT;
    case MDB_MAP_FULL:
    case MDB_TXN_FULL:
    case ENOSPC:
    case EDQUOT:
        return base_fail(-ENOSPC, "index: %s: %s", what, mdb_strerror(rc));
    case ENOMEM:
        return base_fail(-ENOMEM, "index: %s: out of memory", what);
    case MDB_READERS_FULL:
    case EAGAIN:
        return base_fail(-EAGAIN, "index: %s: too many readers at once", what);
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOENT:
    case EBUSY:
    case EINVAL:
        return base_fail(-rc, "index: %s: %s", what, strerror(rc));
    case RC_ASSERTED:
        return -EUCLEAN; /* told by on_assert */
    case MDB_PANIC:
        return base_fail(-EIO, "index: %s: an earlier write of a meta page failed; close and open",
                         what);
    case MDB_VERSION_MISMATCH:
        return base_fail(-EPROTONOSUPPORT, "index: %s: written by another version of LMDB", what);
    case MDB_BAD_VALSIZE:
        return base_fail(-ENAMETOOLONG, "index: %s: key of a wrong length", what);
    default:
        if (rc > 0)
            return base_fail(-EIO, "index: %s: %s", what, strerror(rc));
        return base_fail(-EUCLEAN, "index: %s: %s", what, mdb_strerror(rc));
    }
}

/* -- values with their checksums --------------------------------------------------------------- */

static uint32_t value_crc(const void *key, size_t klen, const void *val, size_t vlen)
{
    return base_crc32c(base_crc32c(0, key, klen), val, vlen);
}

static void bad_value(const MDB_val *k, const char *why)
{
    const uint8_t *b = k->mv_data;
    char hex[2 * 24 + 1] = "";

    for (size_t i = 0; i < 24 && i < k->mv_size; i++)
        snprintf(hex + 2 * i, 3, "%02x", b[i]);
    base_fail(-EUCLEAN, "index: damaged entry: %s (table %u, key of %zu bytes %s...)", why,
              k->mv_size ? b[0] : 0, k->mv_size, hex);
}

/* *len: the value without its CRC. The key may come from a damaged page. */
static int value_check(const MDB_val *k, const MDB_val *v, size_t *len)
{
    if (k->mv_size == 0 || k->mv_size > DFE_KEY_BYTES || v->mv_size < CRC_BYTES)
        return -EUCLEAN;
    *len = v->mv_size - CRC_BYTES;
    if (value_crc(k->mv_data, k->mv_size, v->mv_data, *len) !=
        get_le32((const uint8_t *)v->mv_data + *len))
        return -EUCLEAN;
    return 0;
}

/* -- open -------------------------------------------------------------------------------------- */

/* The parts of LMDB's meta page (0.9, 64 bits) that say how long the file must be. */
#define META_PAGES 2
#define META_MAGIC 0xBEEFC0DEu
struct meta {
    uint64_t pgno;
    uint16_t pad, flags;
    uint32_t lower_upper;
    uint32_t magic, version;
    uint64_t address, mapsize;
    uint32_t page_bytes; /* free list's md_pad */
    uint16_t free_flags, free_depth;
    uint64_t free_counts[4], free_root;
    uint32_t main_pad;
    uint16_t main_flags, main_depth;
    uint64_t main_counts[4], main_root;
    uint64_t last_pgno, txnid;
};
_Static_assert(sizeof(struct meta) == 152, "LMDB's meta page");
_Static_assert(offsetof(struct meta, page_bytes) == 40, "LMDB's meta page");
_Static_assert(offsetof(struct meta, last_pgno) == 136, "LMDB's meta page");

#define P_META 8u
#define NO_PAGE UINT64_MAX
#define DEPTH_MOST 32 /* of LMDB's cursors */

static bool root_ok(uint64_t root, uint64_t last)
{
    return root == NO_PAGE || (root >= META_PAGES && root <= last);
}

static int meta_check(const struct meta *m, uint64_t file_bytes)
{
    if (m->magic != META_MAGIC || !(m->flags & P_META))
        return base_fail(-EUCLEAN, "index: data.mdb: damaged meta page");
    if (m->version != 1)
        return base_fail(-EPROTONOSUPPORT, "index: data.mdb: unknown version %u", m->version);
    if (m->page_bytes < 512 || m->page_bytes > 65536 || (m->page_bytes & (m->page_bytes - 1)))
        return base_fail(-EUCLEAN, "index: data.mdb: impossible page size %u", m->page_bytes);
    if (m->last_pgno >= file_bytes / m->page_bytes)
        return base_fail(-EUCLEAN, "index: data.mdb: too short, %llu bytes hold no page %llu",
                         (unsigned long long)file_bytes, (unsigned long long)m->last_pgno);
    if (m->main_flags || m->main_depth > DEPTH_MOST || m->free_depth > DEPTH_MOST)
        return base_fail(-EUCLEAN, "index: data.mdb: impossible flags or depth");
    if (!root_ok(m->main_root, m->last_pgno) || !root_ok(m->free_root, m->last_pgno))
        return base_fail(-EUCLEAN, "index: data.mdb: root beyond the end");
    return 0;
}

/* Both meta pages, before LMDB maps anything. */
static int file_check(int fd, uint64_t *page_bytes)
{
    struct meta m;
    struct stat st;
    uint32_t page;
    int err;

    if (fstat(fd, &st) < 0)
        return base_fail(-errno, "index: data.mdb: %s", strerror(errno));
    if (pread(fd, &m, sizeof(m), 0) != (ssize_t)sizeof(m))
        return base_fail(-EUCLEAN, "index: data.mdb: no meta page");
    err = meta_check(&m, (uint64_t)st.st_size);
    if (err)
        return err;
    page = m.page_bytes;
    if (pread(fd, &m, sizeof(m), page) != (ssize_t)sizeof(m))
        return base_fail(-EUCLEAN, "index: data.mdb: no second meta page");
    if (m.page_bytes != page)
        return base_fail(-EUCLEAN, "index: data.mdb: meta pages disagree");
    *page_bytes = page;
    return meta_check(&m, (uint64_t)st.st_size);
}

static int env_open(const char *dir, unsigned flags, uint64_t map_bytes, MDB_env **out)
{
    MDB_env *env;
    int rc = mdb_env_create(&env);

    if (rc)
        return rc;
    rc = mdb_env_set_mapsize(env, map_bytes);
    if (rc == 0)
        rc = mdb_env_set_maxreaders(env, READERS);
    if (rc == 0)
        rc = mdb_env_set_assert(env, on_assert);
    if (rc == 0)
        rc = mdb_env_open(env, dir, flags | MDB_NOTLS | MDB_NOMEMINIT, 0600);
    if (rc)
        mdb_env_close(env);
    else
        *out = env;
    return rc;
}

/* As much address space as the host gives. */
static int env_open_largest(const char *dir, unsigned flags, MDB_env **out)
{
    uint64_t map = MAP_MOST_BYTES;
    int rc = env_open(dir, flags, map, out);

    while (rc == ENOMEM && map > MAP_LEAST_BYTES) {
        map /= 2;
        rc = env_open(dir, flags, map, out);
    }
    return rc;
}

struct open_dbi {
    MDB_env *env;
    MDB_dbi dbi;
    MDB_txn *txn;
};

static int do_open_dbi(void *arg)
{
    struct open_dbi *o = arg;
    int rc = mdb_txn_begin(o->env, NULL, MDB_RDONLY, &o->txn);

    return rc ? rc : mdb_dbi_open(o->txn, NULL, 0, &o->dbi);
}

int index_create(const char *dir)
{
    MDB_env *env;
    int rc, fd;

    if (mkdir(dir, 0700) < 0)
        return base_fail(-errno, "index: cannot create %s: %s", dir, strerror(errno));
    rc = env_open_largest(dir, 0, &env);
    if (rc)
        return index_err(rc, "create");
    rc = mdb_env_sync(env, 1);
    mdb_env_close(env);
    if (rc)
        return index_err(rc, "create");
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        rc = errno;
    if (fd >= 0)
        close(fd);
    return index_err(rc, "create");
}

int index_open(const char *dir, bool read_only, struct index **out)
{
    struct index *ix = calloc(1, sizeof(*ix));
    struct open_dbi o = {0};
    char path[4096];
    int err;

    if (!ix)
        return -ENOMEM;
    ix->fd = -1;
    pthread_mutex_init(&ix->lock, NULL);
    err = -ENAMETOOLONG;
    if (snprintf(path, sizeof(path), "%s/data.mdb", dir) >= (int)sizeof(path))
        goto fail;
    ix->fd = open(path, (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    if (ix->fd < 0) {
        err = base_fail(-errno, "index: cannot open %s: %s", path, strerror(errno));
        goto fail;
    }
    err = file_check(ix->fd, &ix->page_bytes);
    if (err)
        goto fail;
    err = index_err(env_open_largest(dir, read_only ? MDB_RDONLY : 0, &ix->env), "open");
    if (err)
        goto fail;
    o.env = ix->env;
    err = index_err(guarded(do_open_dbi, &o), "open");
    if (o.txn)
        mdb_txn_abort(o.txn);
    if (err)
        goto fail;
    ix->dbi = o.dbi;
    *out = ix;
    return 0;
fail:
    index_close(ix);
    return err;
}

void index_close(struct index *ix)
{
    if (!ix)
        return;
    while (ix->n_idle)
        mdb_txn_abort(ix->idle[--ix->n_idle]);
    if (ix->env)
        mdb_env_close(ix->env);
    if (ix->fd >= 0)
        close(ix->fd);
    pthread_mutex_destroy(&ix->lock);
    free(ix);
}

/* -- reading ----------------------------------------------------------------------------------- */

static int reader_get(struct index *ix, MDB_txn **out)
{
    MDB_txn *txn = NULL;
    int rc;

    pthread_mutex_lock(&ix->lock);
    if (ix->n_idle)
        txn = ix->idle[--ix->n_idle];
    pthread_mutex_unlock(&ix->lock);
    if (txn) {
        rc = mdb_txn_renew(txn);
        if (rc)
            mdb_txn_abort(txn);
    } else {
        rc = mdb_txn_begin(ix->env, NULL, MDB_RDONLY, &txn);
    }
    *out = txn;
    return rc;
}

static void reader_put(struct index *ix, MDB_txn *txn)
{
    mdb_txn_reset(txn);
    pthread_mutex_lock(&ix->lock);
    if (ix->n_idle < IDLE_READERS) {
        ix->idle[ix->n_idle++] = txn;
        txn = NULL;
    }
    pthread_mutex_unlock(&ix->lock);
    if (txn)
        mdb_txn_abort(txn);
}

struct get {
    MDB_txn *txn;
    MDB_dbi dbi;
    MDB_val k, v;
};

static int do_get(void *arg)
{
    struct get *g = arg;

    return mdb_get(g->txn, g->dbi, &g->k, &g->v);
}

int index_get(struct index *ix, const void *key, size_t klen, void *val, size_t cap, size_t *len)
{
    struct get g = {.dbi = ix->dbi, .k = {klen, (void *)(uintptr_t)key}};
    int err;

    if (klen == 0 || klen > DFE_KEY_BYTES)
        return -ENAMETOOLONG;
    err = index_err(reader_get(ix, &g.txn), "read");
    if (err)
        return err;
    err = index_err(guarded(do_get, &g), "read");
    if (err == 0) {
        err = value_check(&g.k, &g.v, len);
        if (err)
            bad_value(&g.k, "checksum");
    }
    if (err == 0 && cap)
        memcpy(val, g.v.mv_data, *len < cap ? *len : cap);
    reader_put(ix, g.txn);
    return err;
}

struct scan {
    MDB_txn *txn;
    MDB_dbi dbi;
    MDB_cursor *cur;
    MDB_cursor_op op;
    MDB_val k, v;
};

static int do_scan_open(void *arg)
{
    struct scan *s = arg;

    return mdb_cursor_open(s->txn, s->dbi, &s->cur);
}

static int do_scan_step(void *arg)
{
    struct scan *s = arg;

    return mdb_cursor_get(s->cur, &s->k, &s->v, s->op);
}

static int bytes_cmp(const void *a, size_t alen, const void *b, size_t blen)
{
    size_t n = alen < blen ? alen : blen;
    int c = n ? memcmp(a, b, n) : 0;

    if (c)
        return c;
    return alen < blen ? -1 : alen > blen;
}

/* One entry of a walk: 0 it is good, -EUCLEAN. last is the key before it, in order to notice pages
 * that lead the walk back or astray. */
static int scan_entry(struct scan *s, uint8_t *last, size_t *last_len, size_t *vlen)
{
    const char *why = "key out of order";

    if (s->k.mv_size == 0 || s->k.mv_size > DFE_KEY_BYTES ||
        bytes_cmp(s->k.mv_data, s->k.mv_size, last, *last_len) <= (*last_len ? 0 : -1))
        goto bad;
    memcpy(last, s->k.mv_data, s->k.mv_size);
    *last_len = s->k.mv_size;
    why = "checksum";
    if (value_check(&s->k, &s->v, vlen) == 0)
        return 0;
bad:
    bad_value(&s->k, why);
    return -EUCLEAN;
}

int index_scan(struct index *ix, const void *from, size_t from_len, const void *to, size_t to_len,
               index_fn fn, void *arg, uint64_t *bad)
{
    struct scan s = {.dbi = ix->dbi, .op = from_len ? MDB_SET_RANGE : MDB_FIRST};
    uint8_t last[DFE_KEY_BYTES];
    size_t last_len = 0, vlen;
    int err;

    if (from_len > DFE_KEY_BYTES)
        return -ENAMETOOLONG;
    err = index_err(reader_get(ix, &s.txn), "read");
    if (err)
        return err;
    s.k = (MDB_val){from_len, (void *)(uintptr_t)from};
    err = index_err(guarded(do_scan_open, &s), "scan");
    while (err == 0) {
        err = guarded(do_scan_step, &s);
        s.op = MDB_NEXT;
        if (err) {
            err = err == MDB_NOTFOUND ? 0 : index_err(err, "scan");
            break;
        }
        if (to && bytes_cmp(s.k.mv_data, s.k.mv_size, to, to_len) >= 0)
            break;
        err = scan_entry(&s, last, &last_len, &vlen);
        if (err == 0)
            err = fn(s.k.mv_data, s.k.mv_size, s.v.mv_data, vlen, arg);
        else if (bad) {
            ++*bad;
            err = 0;
        }
    }
    if (s.cur)
        mdb_cursor_close(s.cur);
    reader_put(ix, s.txn);
    return err;
}

/* -- writing ----------------------------------------------------------------------------------- */

struct begin {
    MDB_env *env;
    MDB_txn *txn;
};

static int do_begin(void *arg)
{
    struct begin *b = arg;

    return mdb_txn_begin(b->env, NULL, 0, &b->txn);
}

int index_begin(struct index *ix, struct index_tx **out)
{
    struct index_tx *tx = calloc(1, sizeof(*tx));
    struct begin b = {.env = ix->env};
    int err;

    if (!tx)
        return -ENOMEM;
    if (atomic_load(&ix->broken)) {
        free(tx);
        return base_fail(-EUCLEAN, "index: damaged: no more changes");
    }
    err = index_err(guarded(do_begin, &b), "begin");
    if (err) {
        free(tx);
        return err;
    }
    tx->ix = ix;
    tx->txn = b.txn;
    *out = tx;
    return 0;
}

struct change {
    struct index_tx *tx;
    MDB_val k, v;
};

static int do_put(void *arg)
{
    struct change *c = arg;

    return mdb_put(c->tx->txn, c->tx->ix->dbi, &c->k, &c->v, 0);
}

static int do_del(void *arg)
{
    struct change *c = arg;

    return mdb_del(c->tx->txn, c->tx->ix->dbi, &c->k, NULL);
}

static int write_err(struct index_tx *tx, int rc)
{
    if (rc == RC_ASSERTED)
        atomic_store(&tx->ix->broken, true);
    return index_err(rc, "write");
}

int index_put(struct index_tx *tx, const void *key, size_t klen, const void *val, size_t vlen)
{
    size_t need = vlen + CRC_BYTES;
    struct change c = {.tx = tx, .k = {klen, (void *)(uintptr_t)key}};

    if (tx->err)
        return tx->err;
    if (klen == 0 || klen > DFE_KEY_BYTES)
        return -ENAMETOOLONG;
    if (need > tx->buf_bytes) {
        void *p = realloc(tx->buf, need + need / 2);
        if (!p)
            return -ENOMEM;
        tx->buf = p;
        tx->buf_bytes = need + need / 2;
    }
    if (vlen)
        memcpy(tx->buf, val, vlen);
    put_le32(tx->buf + vlen, value_crc(key, klen, val, vlen));
    c.v = (MDB_val){need, tx->buf};
    tx->err = write_err(tx, guarded(do_put, &c));
    return tx->err;
}

int index_del(struct index_tx *tx, const void *key, size_t klen)
{
    struct change c = {.tx = tx, .k = {klen, (void *)(uintptr_t)key}};
    int rc;

    if (tx->err)
        return tx->err;
    if (klen == 0 || klen > DFE_KEY_BYTES)
        return -ENAMETOOLONG;
    rc = guarded(do_del, &c);
    tx->err = rc == MDB_NOTFOUND ? 0 : write_err(tx, rc);
    return tx->err;
}

static int do_commit(void *arg)
{
    return mdb_txn_commit(((struct index_tx *)arg)->txn);
}

int index_commit(struct index_tx *tx)
{
    int err = tx->err;

    if (err) {
        index_abort(tx);
        return err;
    }
    /* After an assertion in here the transaction can be neither used nor ended: LMDB's writer lock
     * stays taken, and index_begin must not wait for it (broken). */
    err = write_err(tx, guarded(do_commit, tx));
    free(tx->buf);
    free(tx);
    return err;
}

void index_abort(struct index_tx *tx)
{
    if (!tx)
        return;
    mdb_txn_abort(tx->txn);
    free(tx->buf);
    free(tx);
}

/* -- space ------------------------------------------------------------------------------------- */

uint64_t index_used_bytes(struct index *ix)
{
    MDB_envinfo info;

    if (mdb_env_info(ix->env, &info))
        return 0;
    return (info.me_last_pgno + 1) * ix->page_bytes;
}

int index_reserve(struct index *ix, uint64_t bytes)
{
    uint64_t end = index_used_bytes(ix) + bytes;

    if (end <= ix->allocated)
        return 0;
    if (fallocate(ix->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)end) < 0) {
        if (errno == ENOSPC || errno == EDQUOT)
            return base_fail(-ENOSPC, "index: the host file system has no room for %llu bytes",
                             (unsigned long long)end);
        if (errno != EOPNOTSUPP)
            return base_fail(-errno, "index: fallocate: %s", strerror(errno));
        base_log(BASE_LOG_DEBUG, "index: the host file system cannot preallocate");
    }
    ix->allocated = end;
    return 0;
}
