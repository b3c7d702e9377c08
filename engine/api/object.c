/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Key-value and array objects and transactions of the public API.
 *
 * The store writes whole blocks. A write at any other offset reads the blocks at its ends, changes
 * them and writes them back, so that two writers of one block would lose bytes: such a write holds
 * pool->array_lock alone, all other array writes share it. Reads need no lock: a commit is atomic.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/limits.h"

/* What one staging call takes: an extent. */
#define PIECE_BYTES DFE_SLOT_MAX_BYTES
#define ARRAY_BYTES (DFE_FILE_BYTES + 1)

_Static_assert(sizeof(struct dfe_oid) == sizeof(struct obj_id), "an oid is an obj_id");

struct local_tx {
    struct dfe_tx dfe;
    struct local_cont *cont;
    struct obj_tx *tx;
    struct obj_id home;
};

static const struct tx_ops local_tx_ops;

static struct local_tx *local_tx(struct dfe_tx *tx)
{
    return container_of(tx, struct local_tx, dfe);
}

static struct obj_id to_id(const struct dfe_oid *oid)
{
    return (struct obj_id){.hi = oid->hi, .lo = oid->lo};
}

static struct obj_key to_key(const struct dfe_key *key)
{
    return (struct obj_key){
        .dkey = key->dkey,
        .dkey_len = key->dkey_len,
        .akey = key->akey,
        .akey_len = key->akey_len,
    };
}

/* -- keys ---------------------------------------------------------------------------------------
 */

static int local_kv_get(struct dfe_cont *handle, const struct dfe_oid *oid,
                        const struct dfe_key *key, void *value, size_t cap, size_t *len)
{
    struct local_cont *cont = local_cont(handle);
    struct obj_key k = to_key(key);

    return obj_kv_get(cont->obj, to_id(oid), &k, value, cap, len);
}

struct page {
    uint8_t *at;
    size_t left;
    bool full;
};

static uint8_t *append(uint8_t *at, const void *src, size_t len)
{
    if (len)
        memcpy(at, src, len);
    return at + len;
}

/* One record; 1 ends the scan where the page is full. */
static int add_record(const struct obj_key *key, const void *value, size_t len, void *arg)
{
    struct page *page = arg;
    uint32_t value_len = (uint32_t)len;
    size_t need = 8 + (size_t)key->dkey_len + key->akey_len + len;
    uint8_t *at = page->at;

    if (need > page->left) {
        page->full = true;
        return 1;
    }
    at = append(at, &key->dkey_len, 2);
    at = append(at, &key->akey_len, 2);
    at = append(at, &value_len, 4);
    at = append(at, key->dkey, key->dkey_len);
    at = append(at, key->akey, key->akey_len);
    page->at = append(at, value, len);
    page->left -= need;
    return 0;
}

static ssize_t local_kv_scan(struct dfe_cont *handle, const struct dfe_oid *oid,
                             const struct dfe_key *from, void *page, size_t cap)
{
    struct local_cont *cont = local_cont(handle);
    struct page p = {.at = page, .left = cap};
    struct obj_key k;
    int ret;

    if (from)
        k = to_key(from);
    ret = obj_kv_scan(cont->obj, to_id(oid), from ? &k : NULL, 0, add_record, &p);
    if (ret < 0)
        return ret;
    if (p.full && p.left == cap)
        return base_refuse(-E2BIG, "a page of %zu bytes does not hold one key", cap);
    return (ssize_t)(cap - p.left);
}

/* -- arrays: reading ------------------------------------------------------------------------------
 */

static bool aligned(uint64_t off, const void *buf, uint64_t len)
{
    return ((off | len | (uintptr_t)buf) & (DFE_BLOCK_BYTES - 1)) == 0;
}

static uint64_t round_down(uint64_t v)
{
    return v & ~(uint64_t)(DFE_BLOCK_BYTES - 1);
}

static uint64_t round_up(uint64_t v)
{
    return round_down(v + DFE_BLOCK_BYTES - 1);
}

int api_check_range(uint64_t off, uint64_t len)
{
    if (off > ARRAY_BYTES || len > ARRAY_BYTES - off)
        return base_refuse(-EFBIG, "an array ends at 16 TiB");
    return 0;
}

/* Blocks [off, off + len) into buf, all of it multiples of 4 KiB. */
static int read_blocks(struct local_cont *cont, struct obj_id oid, uint64_t off, void *buf,
                       size_t len)
{
    struct obj_io io = {.off = off, .buf = buf, .len = len};

    return obj_array_read(cont->obj, oid, &io, 1);
}

static void *bounce_alloc(void)
{
    void *buf = NULL;

    return posix_memalign(&buf, DFE_BLOCK_BYTES, PIECE_BYTES) == 0 ? buf : NULL;
}

static ssize_t local_array_read(struct dfe_cont *handle, const struct dfe_oid *oid, uint64_t off,
                                void *dst, size_t len)
{
    struct local_cont *cont = local_cont(handle);
    struct obj_id id = to_id(oid);
    uint8_t *bounce = NULL;
    size_t done = 0;
    int ret;

    ret = api_check_range(off, len);
    while (ret == 0 && done < len) {
        uint64_t at = off + done, start = round_down(at);
        size_t n = len - done, skip = (size_t)(at - start);
        uint8_t *to = (uint8_t *)dst + done;

        if (skip == 0 && n >= DFE_BLOCK_BYTES && aligned(0, to, 0)) {
            n = round_down(n < PIECE_BYTES ? n : PIECE_BYTES);
            ret = read_blocks(cont, id, at, to, n);
        } else {
            if (!bounce)
                bounce = bounce_alloc();
            if (!bounce) {
                ret = -ENOMEM;
                break;
            }
            if (n > PIECE_BYTES - skip)
                n = PIECE_BYTES - skip;
            ret = read_blocks(cont, id, start, bounce, round_up(skip + n));
            if (ret == 0)
                memcpy(to, bounce + skip, n);
        }
        done += n;
    }
    free(bounce);
    return ret < 0 ? ret : (ssize_t)len;
}

static int local_array_next(struct dfe_cont *handle, const struct dfe_oid *oid, uint64_t off,
                            int what, uint64_t *out)
{
    struct local_cont *cont = local_cont(handle);

    return obj_array_next(cont->obj, to_id(oid), off, what ? OBJ_HOLE : OBJ_DATA, out);
}

/* -- arrays: writing ------------------------------------------------------------------------------
 */

/* A write under way: its tx, and room for the blocks whose bytes do not all come from the caller.
 */
struct writer {
    struct local_cont *cont;
    struct obj_id oid;
    struct obj_tx *tx;
    unsigned when;
    unsigned stage_flags;
    uint8_t *bounce;
};

static int stage_blocks(struct writer *w, uint64_t off, void *buf, size_t len)
{
    struct obj_io io = {.off = off, .buf = buf, .len = len};
    struct obj_stage *stage;
    int ret = obj_array_stage(w->cont->obj, w->oid, &io, 1, w->stage_flags, &stage);

    return ret < 0 ? ret : obj_tx_write(w->tx, w->when, w->oid, stage);
}

/* The old bytes of a piece's first and last block, where it covers them in part. */
static int read_edges(struct writer *w, uint64_t start, uint64_t end, uint64_t at, size_t n)
{
    uint64_t last = end - DFE_BLOCK_BYTES;
    int ret = 0;

    if (at != start || (last == start && at + n != end))
        ret = read_blocks(w->cont, w->oid, start, w->bounce, DFE_BLOCK_BYTES);
    if (ret == 0 && last != start && at + n != end)
        ret = read_blocks(w->cont, w->oid, last, w->bounce + (last - start), DFE_BLOCK_BYTES);
    return ret;
}

/* src NULL: zeros. */
static int write_pieces(struct writer *w, uint64_t off, const void *src, size_t len)
{
    size_t done = 0;
    int ret = 0;

    while (ret == 0 && done < len) {
        uint64_t at = off + done, start = round_down(at), end;
        const uint8_t *from = src ? (const uint8_t *)src + done : NULL;
        size_t n = len - done, room = PIECE_BYTES - (size_t)(at - start);

        if (n > room)
            n = room;
        /* The last, partial block goes alone, so that all before it needs no copy. */
        if (at == start && n > DFE_BLOCK_BYTES)
            n = round_down(n);
        end = round_up(at + n);
        done += n;
        if (from && aligned(at, from, n)) {
            ret = stage_blocks(w, at, (void *)(uintptr_t)from, n);
            continue;
        }
        if (!w->bounce)
            w->bounce = bounce_alloc();
        if (!w->bounce)
            return -ENOMEM;
        ret = read_edges(w, start, end, at, n);
        if (ret < 0)
            break;
        if (from)
            memcpy(w->bounce + (at - start), from, n);
        else
            memset(w->bounce + (at - start), 0, n);
        ret = stage_blocks(w, start, w->bounce, (size_t)(end - start));
    }
    return ret;
}

static void lock_range(struct local_pool *pool, uint64_t off, uint64_t len)
{
    if (aligned(off, NULL, len))
        pthread_rwlock_rdlock(&pool->array_lock);
    else
        pthread_rwlock_wrlock(&pool->array_lock);
}

static int refuse_read_only(struct local_cont *cont)
{
    return obj_cont_read_only(cont->obj) ? base_refuse(-EROFS, "the container is open read-only")
                                         : 0;
}

static ssize_t local_array_write(struct dfe_cont *handle, const struct dfe_oid *oid, uint64_t off,
                                 const void *src, size_t len, unsigned sync)
{
    struct local_cont *cont = local_cont(handle);
    struct writer w = {.cont = cont, .oid = to_id(oid), .when = OBJ_HOME};
    int ret;

    ret = api_check_range(off, len);
    if (ret == 0)
        ret = refuse_read_only(cont);
    if (ret < 0)
        return ret;
    if (len == 0)
        return 0;
    /* A small synchronous write travels in the journal: one device write in place of two. */
    if (sync && round_up(off + len) - round_down(off) <= DFE_JOURNAL_DATA_BYTES)
        w.stage_flags = OBJ_STAGE_JOURNAL;

    lock_range(cont->pool, off, len);
    ret = obj_tx_begin(cont->obj, w.oid, &w.tx);
    if (ret < 0)
        goto out;
    ret = write_pieces(&w, off, src, len);
    if (ret < 0)
        obj_tx_abort(w.tx);
    else
        ret = obj_tx_commit(w.tx, sync ? OBJ_SYNC : 0, NULL);
out:
    pthread_rwlock_unlock(&cont->pool->array_lock);
    free(w.bounce);
    return ret < 0 ? ret : (ssize_t)len;
}

/* Whole blocks become a hole, what is left at the ends is written as zeros: one transaction. */
static int punch_parts(struct writer *w, uint64_t off, uint64_t len)
{
    uint64_t end = off + len, first = round_up(off), last = round_down(end);
    int ret = 0;

    if (first > last) /* inside one block */
        return write_pieces(w, off, NULL, (size_t)len);
    if (off < first)
        ret = write_pieces(w, off, NULL, (size_t)(first - off));
    if (ret == 0 && first < last)
        ret = obj_tx_punch_array(w->tx, w->when, w->oid, first, last - first);
    if (ret == 0 && last < end)
        ret = write_pieces(w, last, NULL, (size_t)(end - last));
    return ret;
}

static int local_array_punch(struct dfe_cont *handle, const struct dfe_oid *oid, uint64_t off,
                             uint64_t len)
{
    struct local_cont *cont = local_cont(handle);
    struct writer w = {.cont = cont, .oid = to_id(oid), .when = OBJ_HOME};
    int ret;

    ret = refuse_read_only(cont);
    if (ret == 0 && off < ARRAY_BYTES && len > ARRAY_BYTES - off)
        len = ARRAY_BYTES - off; /* to the end */
    if (ret == 0)
        ret = api_check_range(off, len);
    if (ret < 0 || len == 0)
        return ret;

    lock_range(cont->pool, off, len);
    ret = obj_tx_begin(cont->obj, w.oid, &w.tx);
    if (ret < 0)
        goto out;
    ret = punch_parts(&w, off, len);
    if (ret < 0)
        obj_tx_abort(w.tx);
    else
        ret = obj_tx_commit(w.tx, 0, NULL);
out:
    pthread_rwlock_unlock(&cont->pool->array_lock);
    free(w.bounce);
    return ret;
}

/* -- transactions ---------------------------------------------------------------------------------
 */

static int local_tx_begin(struct dfe_cont *handle, const struct dfe_oid *home, struct dfe_tx **out)
{
    struct local_cont *cont = local_cont(handle);
    struct local_tx *tx;
    int ret;

    ret = refuse_read_only(cont);
    if (ret < 0)
        return ret;
    tx = calloc(1, sizeof(*tx));
    if (!tx)
        return -ENOMEM;
    tx->dfe.ops = &local_tx_ops;
    tx->cont = cont;
    tx->home = to_id(home);
    ret = obj_tx_begin(cont->obj, tx->home, &tx->tx);
    if (ret < 0) {
        free(tx);
        return ret;
    }
    api_cont_use(cont);
    *out = &tx->dfe;
    return 0;
}

static void tx_free(struct local_tx *tx)
{
    api_cont_unuse(tx->cont);
    free(tx);
}

static void local_tx_abort(struct dfe_tx *handle)
{
    struct local_tx *tx = local_tx(handle);

    obj_tx_abort(tx->tx);
    tx_free(tx);
}

/* Changes of other objects stay invisible until home has committed. */
static unsigned when(const struct local_tx *tx, const struct dfe_oid *oid)
{
    return oid->hi == tx->home.hi && oid->lo == tx->home.lo ? OBJ_HOME : OBJ_BEFORE;
}

static int local_tx_guard_absent(struct dfe_tx *handle, const struct dfe_key *key)
{
    struct local_tx *tx = local_tx(handle);
    struct obj_key k = to_key(key);

    return obj_tx_guard_absent(tx->tx, &k);
}

static int local_tx_guard_equal(struct dfe_tx *handle, const struct dfe_key *key, const void *value,
                                size_t len)
{
    struct local_tx *tx = local_tx(handle);
    struct obj_key k = to_key(key);

    return obj_tx_guard_equal(tx->tx, &k, value, len);
}

static int local_tx_guard_exists(struct dfe_tx *handle)
{
    struct local_tx *tx = local_tx(handle);

    return obj_tx_guard_exists(tx->tx);
}

static int local_tx_put(struct dfe_tx *handle, const struct dfe_oid *oid, const struct dfe_key *key,
                        const void *value, size_t len)
{
    struct local_tx *tx = local_tx(handle);
    struct obj_key k = to_key(key);

    return obj_tx_put(tx->tx, when(tx, oid), to_id(oid), &k, value, len);
}

static int local_tx_del(struct dfe_tx *handle, const struct dfe_oid *oid, const struct dfe_key *key)
{
    struct local_tx *tx = local_tx(handle);
    struct obj_key k = to_key(key);

    return obj_tx_del(tx->tx, when(tx, oid), to_id(oid), &k);
}

static int local_tx_punch_dkey(struct dfe_tx *handle, const struct dfe_oid *oid, const void *dkey,
                               uint16_t dkey_len)
{
    struct local_tx *tx = local_tx(handle);

    return obj_tx_punch_dkey(tx->tx, when(tx, oid), to_id(oid), dkey, dkey_len);
}

static int local_tx_punch_object(struct dfe_tx *handle, const struct dfe_oid *oid)
{
    struct local_tx *tx = local_tx(handle);

    return obj_tx_punch_object(tx->tx, when(tx, oid), to_id(oid));
}

static int local_tx_add(struct dfe_tx *handle, const struct dfe_oid *oid, const struct dfe_key *key,
                        int64_t delta)
{
    struct local_tx *tx = local_tx(handle);
    struct obj_key k = to_key(key);

    return obj_tx_add(tx->tx, when(tx, oid), to_id(oid), &k, delta);
}

static int local_tx_max(struct dfe_tx *handle, const struct dfe_oid *oid, const struct dfe_key *key,
                        uint64_t value)
{
    struct local_tx *tx = local_tx(handle);
    struct obj_key k = to_key(key);

    return obj_tx_max(tx->tx, when(tx, oid), to_id(oid), &k, value);
}

static int local_tx_write(struct dfe_tx *handle, const struct dfe_oid *oid, uint64_t off,
                          const void *src, size_t len)
{
    struct local_tx *tx = local_tx(handle);
    struct writer w = {.cont = tx->cont, .oid = to_id(oid), .tx = tx->tx, .when = when(tx, oid)};
    int ret;

    if (!aligned(off, NULL, len))
        return base_refuse(-EINVAL, "a transaction writes whole blocks of 4 KiB");
    ret = api_check_range(off, len);
    if (ret == 0)
        ret = write_pieces(&w, off, src, len);
    free(w.bounce);
    return ret;
}

static int local_tx_commit(struct dfe_tx *handle, int sync, uint64_t *epoch)
{
    struct local_tx *tx = local_tx(handle);
    struct local_pool *pool = tx->cont->pool;
    int ret;

    pthread_rwlock_rdlock(&pool->array_lock);
    ret = obj_tx_commit(tx->tx, sync ? OBJ_SYNC : 0, epoch);
    pthread_rwlock_unlock(&pool->array_lock);
    tx_free(tx);
    return ret;
}

static const struct tx_ops local_tx_ops = {
    .abort = local_tx_abort,
    .guard_absent = local_tx_guard_absent,
    .guard_equal = local_tx_guard_equal,
    .guard_exists = local_tx_guard_exists,
    .put = local_tx_put,
    .del = local_tx_del,
    .punch_dkey = local_tx_punch_dkey,
    .punch_object = local_tx_punch_object,
    .add = local_tx_add,
    .max = local_tx_max,
    .write = local_tx_write,
    .commit = local_tx_commit,
};

const struct object_ops local_object_ops = {
    .kv_get = local_kv_get,
    .kv_scan = local_kv_scan,
    .array_read = local_array_read,
    .array_write = local_array_write,
    .array_punch = local_array_punch,
    .array_next = local_array_next,
    .tx_begin = local_tx_begin,
};
