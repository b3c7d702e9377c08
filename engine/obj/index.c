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
 * LMDB believes its pages, so it reads none for us: index_page.c does, with checks, and LMDB's read
 * transactions only keep the pages from being reused. Before a change, the leaf concerned is
 * checked in the same way. What is left to trust are the free list and, where leaves merge, a
 * neighbour.
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
#include "obj/index_page.h"
#include "obj/key.h"

#define CRC_BYTES 4u
#define MAP_MOST_BYTES (1ull << 40)
#define MAP_LEAST_BYTES (1ull << 30)
#define READERS 510u /* LMDB's lock table; more concurrent readers get -EAGAIN from it */
#define IDLE_READERS 64u
#define BEGIN_TRIES 8

struct index {
    MDB_env *env;
    MDB_dbi dbi;
    int fd; /* data.mdb, for fallocate */
    struct pages pages;
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
    int err;              /* sticky: commit must not follow a failed change */
    struct page_cur leaf; /* of the last change, in the tree as it was at begin */
    bool leaf_known;
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

static int bad_value(struct page_key k, const char *why)
{
    char hex[2 * 24 + 1] = "";

    for (size_t i = 0; i < 24 && i < k.len; i++)
        snprintf(hex + 2 * i, 3, "%02x", k.p[i]);
    return base_fail(-EUCLEAN, "index: damaged entry: %s (table %u, key of %zu bytes %s...)", why,
                     k.len ? k.p[0] : 0, k.len, hex);
}

/* The entry under the cursor, verified; *v without its CRC. */
static int entry_check(const struct page_cur *cur, struct page_key *k, struct page_key *v)
{
    int err = pages_entry(cur, k, v);

    if (err)
        return err;
    if (v->len < CRC_BYTES)
        return bad_value(*k, "too short");
    v->len -= CRC_BYTES;
    if (value_crc(k->p, k->len, v->p, v->len) != get_le32(v->p + v->len))
        return bad_value(*k, "checksum");
    return 0;
}

/* -- open -------------------------------------------------------------------------------------- */

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
    err = pages_open(ix->fd, &ix->pages);
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
    pages_close(&ix->pages);
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

/* A reader, and the tree at its root. Commits that overtake it (two between the lines) are met by
 * beginning again. */
static int read_begin(struct index *ix, uint64_t *bad, MDB_txn **txn, struct page_cur *cur)
{
    int err = -EAGAIN;

    for (int tries = 0; err && tries < BEGIN_TRIES; tries++) {
        err = index_err(reader_get(ix, txn), "read");
        if (err)
            return err;
        err = pages_begin(&ix->pages, mdb_txn_id(*txn), bad, cur);
        if (err)
            reader_put(ix, *txn);
    }
    return err == -EAGAIN ? base_fail(-EUCLEAN, "index: a meta page is damaged") : err;
}

/* A key is absent for certain only if the entries around its place are what they were: one whose
 * key was damaged is next to the place of its true key. found: the cursor is at the entry after the
 * place. */
static int absent_check(const struct page_cur *cur, int found)
{
    struct page_cur before;
    struct page_key k, v;
    int err = found ? entry_check(cur, &k, &v) : 0;

    if (err == 0)
        err = pages_before(cur, &before);
    return err > 0 ? entry_check(&before, &k, &v) : err;
}

int index_get(struct index *ix, const void *key, size_t klen, void *val, size_t cap, size_t *len)
{
    struct page_cur cur;
    struct page_key k = {0}, v = {0};
    MDB_txn *txn;
    int err, found;

    if (klen == 0 || klen > DFE_KEY_BYTES)
        return -ENAMETOOLONG;
    err = read_begin(ix, NULL, &txn, &cur);
    if (err)
        return err;
    found = pages_seek(&cur, key, klen);
    err = found < 0 ? found : found ? entry_check(&cur, &k, &v) : 0;
    if (err == 0 && (!found || key_cmp(k.p, k.len, key, klen) != 0)) {
        err = absent_check(&cur, found);
        if (err == 0)
            err = -ENOENT;
    }
    if (err == 0) {
        *len = v.len;
        if (cap)
            memcpy(val, v.p, v.len < cap ? v.len : cap);
    }
    reader_put(ix, txn);
    return err;
}

/* -EUCLEAN is counted and passed over where the caller counts. */
static int scan_err(int err, uint64_t *bad)
{
    if (err != -EUCLEAN || !bad)
        return err;
    ++*bad;
    return 0;
}

int index_scan(struct index *ix, const void *from, size_t from_len, const void *to, size_t to_len,
               index_fn fn, void *arg, uint64_t *bad)
{
    struct page_cur cur;
    struct page_key k, v;
    MDB_txn *txn;
    int err, found;

    if (from_len > DFE_KEY_BYTES)
        return -ENAMETOOLONG;
    err = read_begin(ix, bad, &txn, &cur);
    if (err)
        return err;
    found = pages_seek(&cur, from, from_len);
    if (found >= 0 && from_len) { /* one before the range may belong into it */
        struct page_cur before;
        int n = pages_before(&cur, &before);
        err = scan_err(n > 0 ? entry_check(&before, &k, &v) : n, bad);
    }
    for (; err == 0 && found > 0; found = err ? 0 : pages_next(&cur)) {
        int damaged = entry_check(&cur, &k, &v);
        if (to && damaged == 0 && key_cmp(k.p, k.len, to, to_len) >= 0)
            break;
        err = damaged ? scan_err(damaged, bad) : fn(k.p, k.len, v.p, v.len, arg);
    }
    if (err == 0 && found < 0)
        err = found;
    reader_put(ix, txn);
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
    err = pages_begin(&ix->pages, mdb_txn_id(b.txn) - 1, NULL, &tx->leaf);
    if (err) {
        index_abort(tx);
        return err == -EAGAIN ? base_fail(-EUCLEAN, "index: a meta page is damaged") : err;
    }
    *out = tx;
    return 0;
}

/* Before LMDB goes there. Changes come in order, so that a leaf is checked once. */
static int leaf_check(struct index_tx *tx, const void *key, size_t klen)
{
    int found;

    if (tx->leaf_known && pages_covers(&tx->leaf, key, klen))
        return 0;
    found = pages_seek(&tx->leaf, key, klen);
    tx->leaf_known = found > 0;
    return found < 0 ? found : 0;
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
    tx->err = leaf_check(tx, key, klen);
    if (tx->err == 0)
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
    tx->err = leaf_check(tx, key, klen);
    if (tx->err)
        return tx->err;
    rc = guarded(do_del, &c);
    tx->err = rc == MDB_NOTFOUND ? 0 : write_err(tx, rc);
    return tx->err;
}

/* LMDB does not write pages that one transaction took and gave back, so that the last ones may be
 * missing, which opening takes for damage. The file is made as long as it says it is: before, by
 * index_reserve, or after it. */
static int extend(struct index *ix, uint64_t bytes)
{
    struct stat st;

    if (fstat(ix->fd, &st) < 0)
        return -1;
    return (uint64_t)st.st_size < bytes ? ftruncate(ix->fd, (off_t)bytes) : 0;
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
    if (err == 0 && extend(tx->ix, index_used_bytes(tx->ix)) < 0)
        base_log(BASE_LOG_WARN, "index: cannot extend data.mdb: %s", strerror(errno));
    pages_forget(&tx->ix->pages);
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
    return (info.me_last_pgno + 1) * ix->pages.page_bytes;
}

int index_reserve(struct index *ix, uint64_t bytes)
{
    uint64_t end = index_used_bytes(ix) + bytes;

    if (end <= ix->allocated)
        return 0;
    if (fallocate(ix->fd, 0, 0, (off_t)end) < 0) {
        if (errno == ENOSPC || errno == EDQUOT)
            return base_fail(-ENOSPC, "index: the host file system has no room for %llu bytes",
                             (unsigned long long)end);
        if (errno != EOPNOTSUPP)
            return base_fail(-errno, "index: fallocate: %s", strerror(errno));
        base_log(BASE_LOG_DEBUG, "index: the host file system cannot preallocate");
        if (extend(ix, end) < 0)
            return base_fail(-errno, "index: cannot extend data.mdb: %s", strerror(errno));
    }
    ix->allocated = end;
    return 0;
}
