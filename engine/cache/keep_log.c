/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is accepted is kept until it has been published, so that it outlives the process.
 *
 * Invariants
 *  1. A change is in the log as a whole before its file is unlocked, so before a cut can take it
 *     and before anybody is told. The log has a file's changes in their order.
 *  2. A file's records are a chain, oldest first. A cut notes the chain's end; when the
 *     publication has been committed (and so is kept or in the journal itself), what lies up to
 *     there is retired. A record that was retired is in no chain.
 *  3. A replayed change brings its own record, which goes into the chain as if it were new: replay
 *     needs no room in the log.
 * An mtime that was set changes no version, so versions do not order it; but as long as its record
 * is not retired the file is dirty or its owner's record is to be settled, and then other mtimes
 * go the same way, into the log, whose order decides.
 */
#include "cache/keep_log.h"

#include <errno.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "cache/cache_int.h"

#define WAIT_MAX_NS 60000000000ull /* without any room in the log: nothing can be published */

/* The record of the change that this thread replays; 0: none. */
static _Thread_local int64_t replaying;

/* -- a change -------------------------------------------------------------------------------- */

int kept_begin(struct kept_change *k, struct cache_file *file, uint32_t kind, uint64_t off,
               uint64_t len, int64_t mtime_ns)
{
    struct keep *keep = file->cache->keep;
    size_t bytes = kind == CACHE_KEPT_WRITE ? (size_t)len : 0;
    struct cache_kept *rec;
    int64_t number;
    void *ptr;

    k->number = replaying;
    k->bytes = NULL;
    if (!keep || replaying)
        return 0;
    number = keep_reserve(keep, KEEP_DATA, sizeof(*rec) + bytes, &ptr);
    if (number < 0)
        return number == -EINPROGRESS ? KEPT_FULL : (int)number;
    rec = ptr;
    *rec = (struct cache_kept){
        .cont = file->cont_number,
        .kind = kind,
        .oid_hi = file->oid.hi,
        .oid_lo = file->oid.lo,
        .home = file->ops->home ? file->ops->home(file->owner) : 0,
        .version = file->cut.version + (kind != CACHE_KEPT_MTIME),
        .mtime_ns = mtime_ns,
        .off = off,
        .len = len,
    };
    k->number = number;
    k->bytes = rec + 1;
    return 0;
}

void kept_copy(const struct kept_change *k, struct cache_file *file, const void *src, size_t len)
{
    if (k->bytes)
        keep_copy(file->cache->keep, KEEP_DATA, k->number, k->bytes, src, len);
}

void kept_done(struct kept_change *k, struct cache_file *file)
{
    struct keep *keep = file->cache->keep;

    if (k->number == 0)
        return;
    if (!replaying)
        keep_commit(keep, KEEP_DATA, k->number, 0);
    keep_link(keep, KEEP_DATA, k->number, 0);
    if (file->kept_last)
        keep_link(keep, KEEP_DATA, file->kept_last, k->number);
    else
        file->kept_first = k->number;
    file->kept_last = k->number;
    k->number = 0;
}

void kept_cancel(struct kept_change *k, struct cache_file *file)
{
    if (k->number && !replaying)
        keep_cancel(file->cache->keep, KEEP_DATA, k->number);
    k->number = 0;
}

int kept_wait(struct cache *cache, uint64_t *since_ns)
{
    uint64_t now_ns = base_mono_ns();
    unsigned tries = 0;

    if (*since_ns == 0)
        *since_ns = now_ns;
    if (cache->failing)
        return -EIO;
    if (now_ns - *since_ns > WAIT_MAX_NS)
        return base_fail(-EIO, "cache: nothing that is kept for an accident can be published");
    return slot_wait_room(cache, &tries); /* everything dirty is published meanwhile */
}

bool kept_pressed(const struct cache *cache)
{
    return cache->keep && keep_pressed(cache->keep, KEEP_DATA);
}

/* -- publication ----------------------------------------------------------------------------- */

void kept_published(struct cache_file *file, int64_t upto)
{
    struct cache *cache = file->cache;
    int64_t from = file->kept_first;

    if (from == 0 || from > upto)
        return;
    file->kept_first = keep_next(cache->keep, KEEP_DATA, upto);
    if (file->kept_first == 0)
        file->kept_last = 0;
    pthread_mutex_unlock(&cache->lock); /* thousands of them, where writes are small */
    keep_retire_chain(cache->keep, KEEP_DATA, from, upto);
    pthread_mutex_lock(&cache->lock);
}

void kept_discarded(struct cache_file *file)
{
    keep_retire_chain(file->cache->keep, KEEP_DATA, file->kept_first, 0);
    file->kept_first = file->kept_last = 0;
}

/* -- an mtime of its own --------------------------------------------------------------------- */

int cache_kept_mtime_begin(struct cache_file *file, int64_t mtime_ns, struct kept_change *k)
{
    int rc;

    pthread_mutex_lock(&file->cache->lock);
    rc = kept_begin(k, file, CACHE_KEPT_MTIME, 0, 0, mtime_ns);
    if (rc == KEPT_FULL)
        flush_kick(file->cache);
    pthread_mutex_unlock(&file->cache->lock);
    return rc == KEPT_FULL ? -EINPROGRESS : rc;
}

bool cache_kept_mtime_done(struct cache_file *file, int64_t mtime_ns, bool streamed,
                           struct kept_change *k)
{
    pthread_mutex_lock(&file->cache->lock);
    streamed = streamed || file_is_dirty(file);
    if (streamed)
        kept_done(k, file);
    else
        kept_cancel(k, file);
    file_set_mtime(file, mtime_ns);
    pthread_mutex_unlock(&file->cache->lock);
    return streamed;
}

void cache_kept_mtime_cancel(struct cache_file *file, struct kept_change *k)
{
    kept_cancel(k, file);
}

int cache_kept_wait(struct cache_file *file)
{
    uint64_t since_ns = 0;
    int rc;

    pthread_mutex_lock(&file->cache->lock);
    rc = kept_wait(file->cache, &since_ns);
    pthread_mutex_unlock(&file->cache->lock);
    return rc;
}

int64_t cache_kept_clean(struct cache_file *file)
{
    int64_t upto = 0;

    if (!file->cache->keep)
        return 0;
    pthread_mutex_lock(&file->cache->lock);
    if (!file_is_dirty(file))
        upto = file->kept_last;
    pthread_mutex_unlock(&file->cache->lock);
    return upto;
}

void cache_kept_settled(struct cache_file *file, int64_t upto)
{
    if (upto == 0)
        return;
    pthread_mutex_lock(&file->cache->lock);
    kept_published(file, upto);
    pthread_cond_broadcast(&file->cache->room_cv);
    pthread_mutex_unlock(&file->cache->lock);
}

/* -- replay ---------------------------------------------------------------------------------- */

struct replay {
    uint32_t cont;
    int (*fn)(int64_t number, const struct cache_kept *k, void *arg);
    void *arg;
};

static int replay_one(int64_t number, const void *rec, size_t len, void *arg)
{
    const struct replay *r = arg;
    const struct cache_kept *k = rec;

    if (len < sizeof(*k) || k->kind < CACHE_KEPT_WRITE || k->kind > CACHE_KEPT_MTIME ||
        len - sizeof(*k) != (k->kind == CACHE_KEPT_WRITE ? k->len : 0) ||
        k->len > DFE_FILE_BYTES + 1 || k->off > DFE_FILE_BYTES ||
        (k->kind == CACHE_KEPT_WRITE && (k->len == 0 || k->len > DFE_SLOT_MAX_BYTES)))
        return base_fail(-EUCLEAN, "kept memory: a change of %zu bytes makes no sense", len);
    return k->cont == r->cont ? r->fn(number, k, r->arg) : 0;
}

struct conts {
    uint32_t *numbers;
    unsigned n, cap;
};

static int note_cont(int64_t number, const void *rec, size_t len, void *arg)
{
    const struct cache_kept *k = rec;
    struct conts *c = arg;

    (void)number;
    if (len < sizeof(*k))
        return 0; /* whoever replays it says so */
    for (unsigned i = 0; i < c->n && i < c->cap; i++)
        if (c->numbers[i] == k->cont)
            return 0;
    if (c->n < c->cap)
        c->numbers[c->n++] = k->cont;
    return 0;
}

unsigned cache_kept_conts(struct cache *cache, uint32_t *numbers, unsigned cap)
{
    struct conts c = {.numbers = numbers, .cap = cap};

    if (cache->keep)
        keep_replay(cache->keep, KEEP_DATA, note_cont, &c);
    return c.n;
}

int cache_kept_replay(struct cache *cache, struct obj_cont *cont,
                      int (*fn)(int64_t number, const struct cache_kept *k, void *arg), void *arg)
{
    struct replay r = {.fn = fn, .arg = arg};
    struct obj_cont_info info;

    if (!cache->keep)
        return 0;
    obj_cont_query(cont, &info);
    r.cont = info.number;
    return keep_replay(cache->keep, KEEP_DATA, replay_one, &r);
}

static int forget_one(int64_t number, const struct cache_kept *k, void *arg)
{
    (void)k;
    cache_kept_drop(arg, number);
    return 0;
}

void cache_kept_forget(struct cache *cache, uint32_t cont)
{
    struct replay r = {.cont = cont, .fn = forget_one, .arg = cache};

    if (cache->keep)
        (void)keep_replay(cache->keep, KEEP_DATA, replay_one, &r);
}

static int apply_mtime(struct cache_file *file, const struct cache_kept *k)
{
    struct kept_change change;

    (void)cache_kept_mtime_begin(file, k->mtime_ns, &change); /* brings its record */
    (void)cache_kept_mtime_done(file, k->mtime_ns, true, &change);
    return 0;
}

int cache_kept_apply(struct cache_file *file, int64_t number, const struct cache_kept *k)
{
    struct cache *cache = file->cache;
    bool mtime = k->kind == CACHE_KEPT_MTIME, old;
    ssize_t rc = 0;

    pthread_mutex_lock(&cache->lock);
    old = mtime ? k->version < file->cut.version : k->version <= file->cut.version;
    if (!old && !mtime)
        file->cut.version = k->version - 1; /* so that it becomes what clients were told */
    pthread_mutex_unlock(&cache->lock);
    if (old) {
        keep_retire(cache->keep, KEEP_DATA, number);
        return 0;
    }
    replaying = number;
    if (k->kind == CACHE_KEPT_WRITE)
        rc = cache_write(file, k->off, k + 1, (size_t)k->len, k->mtime_ns, 0, NULL);
    else if (k->kind == CACHE_KEPT_TRUNCATE)
        rc = cache_truncate(file, k->off, k->mtime_ns, 0);
    else if (k->kind == CACHE_KEPT_PUNCH)
        rc = cache_punch(file, k->off, k->len, k->mtime_ns, 0);
    else
        rc = apply_mtime(file, k);
    replaying = 0;
    return rc < 0 ? (int)rc : 1;
}

void cache_kept_drop(struct cache *cache, int64_t number)
{
    keep_retire(cache->keep, KEEP_DATA, number);
}

void cache_kept_abandon(struct cache_file *file)
{
    pthread_mutex_lock(&file->cache->lock);
    file->kept_first = file->kept_last = 0;
    pthread_mutex_unlock(&file->cache->lock);
}
