/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File data: reads and writes through the cache, publication, fsync.
 *
 * Size, mtime and version of a file with data in the cache belong to its data stream (cache.h). The
 * inode's record has those of the last publication; ours of an open file are asked from the cache.
 */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/keep.h"
#include "cache/keep_log.h"
#include "ns/impl.h"

/* Small files that are read ahead together, and how near the last one must have been. */
#define PREFETCH_INODES 64u
#define PREFETCH_BYTES (16u << 10)
#define PREFETCH_NEAR 1024u

bool data_dirty(const struct ns_inode *inode)
{
    return inode->file && cache_file_dirty(inode->file);
}

int data_file(struct ns_inode *inode)
{
    struct ns *ns = inode->ns;
    struct cache_cut cut = {inode->st.size, inode->st.mtime_ns, inode->st.version, 0};
    int err;

    if (inode->file) {
        if (!(inode->state & INODE_SETTLE)) {
            list_del(&inode->files);
            list_add_tail(&ns->files, &inode->files);
        }
        return 0;
    }
    err = cache_file_get(ns->cache, ns->cont, nsrec_file_id(inode->ino),
                         ns->read_only ? NULL : &data_ops, inode, &cut, &inode->file);
    if (err)
        return err;
    list_init(&inode->files);
    list_add_tail(&ns->files, &inode->files);
    ns->nfiles++;
    return 0;
}

void data_put_file(struct ns_inode *inode)
{
    list_del(&inode->files);
    inode->ns->nfiles--;
    cache_file_put(inode->file);
    inode->file = NULL;
}

/* Gives back handles that nobody has used for longest. */
void data_trim_files(struct ns *ns)
{
    unsigned step = 64;

    list_for_each_safe(pos, tmp, &ns->files) {
        struct ns_inode *inode = container_of(pos, struct ns_inode, files);

        if (step-- == 0 || ns->nfiles <= NS_FILES_BOUND)
            return;
        if (inode->pins == 0 && !(inode->state & (INODE_BUSY | INODE_DEAD)) && !data_dirty(inode)) {
            data_put_file(inode);
        } else {
            list_del(&inode->files);
            list_add_tail(&ns->files, &inode->files);
        }
    }
}

/* -- space ---------------- */

static uint64_t blocks_up(uint64_t bytes)
{
    return (bytes + DFE_BLOCK_BYTES - 1) / DFE_BLOCK_BYTES;
}

/* Bytes allocated are counted as they are accepted. That is exact for files without holes and for
 * writes past the end; elsewhere it is an estimate, and whoever wants to know asks the store. */
static void data_used_write(struct ns_inode *inode, uint64_t off, uint64_t len, uint64_t old_size)
{
    uint64_t first = off / DFE_BLOCK_BYTES, end = blocks_up(off + len);
    uint64_t old_end = blocks_up(old_size);

    if (len == 0)
        return;
    if (first < old_end && inode->st.used < old_end * DFE_BLOCK_BYTES)
        inode->st.flags |= NSREC_INODE_USED_UNSURE;
    if (first < old_end)
        first = old_end;
    if (end > first)
        inode->st.used += (end - first) * DFE_BLOCK_BYTES;
}

void data_used_resize(struct ns_inode *inode, uint64_t old_size, uint64_t size)
{
    uint64_t whole = blocks_up(size) * DFE_BLOCK_BYTES;

    if (size < old_size && inode->st.used < blocks_up(old_size) * DFE_BLOCK_BYTES && size > 0)
        inode->st.flags |= NSREC_INODE_USED_UNSURE;
    if (inode->st.used > whole)
        inode->st.used = whole;
    if (size == 0)
        inode->st.flags &= (uint8_t)~NSREC_INODE_USED_UNSURE;
}

int data_used_sure(struct ns_call *c, struct ns_inode *inode)
{
    int err;

    if (!S_ISREG(inode->st.mode) || !(inode->st.flags & NSREC_INODE_USED_UNSURE))
        return 0;
    err = data_file(inode);
    if (err)
        return err;
    c->inode = inode;
    return call_need(c, NEED_USED);
}

/* -- publication ---------------- */

/* The cache's call, without any of its locks: the inode's record joins the cut's data. The commit
 * may wait, so it runs without our lock; BUSY keeps others off the record (invariant 7). */
static int data_publish(void *owner, struct obj_tx *tx, const struct cache_cut *cut,
                        unsigned commit_flags)
{
    struct ns_inode *inode = owner;
    struct ns *ns = inode->ns;
    struct ns_stat st;
    uint8_t stale;
    bool live, late;
    int err = -ESTALE;

    pthread_mutex_lock(&ns->lock);
    /* a check waits for a reclaim under way, and that for the dead file's publication: no circle */
    while (inode->state & INODE_BUSY || (ns->frozen && !(inode->state & INODE_DEAD)))
        pthread_cond_wait(&ns->changed, &ns->lock);
    live = !(inode->state & INODE_DEAD);
    if (live)
        inode->state |= INODE_BUSY;
    stale = inode->state & INODE_STALE;
    inode->state &= (uint8_t)~INODE_STALE;
    inode->published++;
    late = inode->pins > 0;
    st = inode->st;
    pthread_mutex_unlock(&ns->lock);
    if (!live) {
        obj_tx_abort(tx);
        return err;
    }
    st.size = cut->size;
    st.mtime_ns = cut->mtime_ns;
    st.version = cut->version;
    if (ns->keep && late) { /* a write may be in the cut that has not come to its ctime and used */
        if (st.ctime_ns < cut->changed_ns)
            st.ctime_ns = cut->changed_ns;
        st.flags |= NSREC_INODE_USED_UNSURE;
    }
    err = inode_put_record(tx, 0, inode, &st);
    if (err)
        obj_tx_abort(tx);
    else
        err = obj_tx_commit(tx, commit_flags & OBJ_SYNC, NULL);
    pthread_mutex_lock(&ns->lock);
    if (!err) {
        inode->st.size = st.size;
        inode->st.mtime_ns = st.mtime_ns;
        inode->st.version = st.version;
    } else {
        inode->state |= stale;
    }
    inode->state &= (uint8_t)~INODE_BUSY;
    pthread_cond_broadcast(&ns->changed);
    pthread_mutex_unlock(&ns->lock);
    return err;
}

static uint64_t data_home(void *owner)
{
    const struct ns_inode *inode = owner;

    return inode->birth;
}

const struct cache_owner_ops data_ops = {.publish = data_publish, .home = data_home};

void data_mtime_pending(struct ns_inode *inode)
{
    struct ns *ns = inode->ns;

    inode->state |= INODE_SETTLE;
    if (list_empty(&ns->settling))
        worker_kick(ns); /* else it looks by itself, again and again */
    list_del(&inode->files);
    list_add_tail(&ns->settling, &inode->files);
}

/* A publication in between has taken the data, perhaps, but the ctime and used from before it. */
void data_changed(struct ns_inode *inode, uint32_t published)
{
    if (inode->published == published)
        return;
    inode->state |= INODE_STALE;
    data_mtime_pending(inode);
}

int data_settle(struct ns_call *c, struct ns_inode *inode)
{
    struct ns_stat st = inode->st;
    struct cache_cut cut;
    struct obj_tx *tx;
    int64_t kept;
    int err = 0;

    if (!(inode->state & INODE_SETTLE) || inode->state & INODE_BUSY || data_dirty(inode))
        return 0;
    kept = cache_kept_clean(inode->file);
    cache_file_cut(inode->file, &cut);
    if ((cut.mtime_ns != st.mtime_ns || inode->state & INODE_STALE) &&
        !(inode->state & INODE_DEAD)) {
        st.mtime_ns = cut.mtime_ns;
        err = obj_tx_begin(c->ns->cont, nsrec_dir_id(inode->birth), &tx);
        if (err)
            return err;
        err = inode_put_record(tx, inode->birth, inode, &st);
        keep_pause(c->ns->keep);
        if (err)
            obj_tx_abort(tx);
        else
            err = call_commit(c, tx);
        keep_resume(c->ns->keep);
        if (err)
            return err;
        inode->st = st;
    }
    cache_kept_settled(inode->file, kept);
    inode->state &= (uint8_t)~(INODE_SETTLE | INODE_STALE);
    list_del(&inode->files);
    list_add_tail(&c->ns->files, &inode->files);
    return 0;
}

int data_settle_all(struct ns *ns, unsigned flags)
{
    struct ns_call c;
    int err;

    call_begin(&c, ns, flags);
    do {
        err = call_writable(&c);
        list_for_each_safe(pos, tmp, &ns->settling) {
            if (!err)
                err = data_settle(&c, container_of(pos, struct ns_inode, files));
        }
    } while (call_retry(&c, &err));
    return call_end(&c, err);
}

/* -- calls ---------------- */

static int data_begin_locked(struct ns_call *c, uint64_t ino, bool write, struct ns_inode **out)
{
    int err = write ? call_writable(c) : 0;

    if (!err)
        err = inode_get(c, ino, out);
    if (err)
        return err;
    if (!S_ISREG((*out)->st.mode))
        return S_ISDIR((*out)->st.mode) ? -EISDIR : -EINVAL;
    return data_file(*out);
}

/* Pins the inode and its data handle, for work without the lock: a write where `published` is
 * given, for data_changed. */
static int data_begin(struct ns *ns, uint64_t ino, uint32_t *published, unsigned flags,
                      struct ns_inode **out)
{
    struct ns_call c;
    int err;

    call_begin(&c, ns, flags);
    do
        err = data_begin_locked(&c, ino, published != NULL, out);
    while (call_retry(&c, &err));
    if (!err)
        inode_pin(*out);
    if (!err && published)
        *published = (*out)->published;
    return call_end(&c, err);
}

/* Called with the lock; releases it. */
static void data_end_locked(struct ns_inode *inode)
{
    struct ns *ns = inode->ns;

    inode_unpin(inode);
    if (ns->nfiles > NS_FILES_BOUND)
        data_trim_files(ns);
    pthread_mutex_unlock(&ns->lock);
}

static void data_end(struct ns_inode *inode)
{
    pthread_mutex_lock(&inode->ns->lock);
    data_end_locked(inode);
}

static unsigned data_flags(unsigned flags)
{
    return (flags & DFE_NOWAIT ? CACHE_NOWAIT : 0) | (flags & DFE_APPEND ? CACHE_APPEND : 0);
}

static ssize_t data_error(ssize_t err)
{
    return err == -EUCLEAN ? -EIO : err;
}

/* A small file was asked for and is not in memory: whoever reads a tree will want the files that
 * were made with it, which have the numbers around its own. Not for the first such read in a
 * neighbourhood, so that reads here and there stay what they are. */
static void data_prefetch(struct ns *ns, const struct ns_inode *inode)
{
    uint64_t first = inode->ino / PREFETCH_INODES * PREFETCH_INODES;
    bool again = ns->cold == inode->ino / PREFETCH_NEAR;

    ns->cold = inode->ino / PREFETCH_NEAR;
    for (uint64_t ino = first; again && ino < first + PREFETCH_INODES; ino++) {
        struct ns_inode *other = inode_find(ns, ino);

        if (!other || other == inode || other->state || !S_ISREG(other->st.mode) ||
            other->st.size == 0 || other->st.size > PREFETCH_BYTES)
            continue;
        if (data_file(other))
            break;
        cache_prefetch(other->file);
    }
}

/* With what the cache said to a read; returns that. */
static ssize_t data_end_read(struct ns_inode *inode, uint64_t off, ssize_t n)
{
    struct ns *ns = inode->ns;

    pthread_mutex_lock(&ns->lock);
    if (n == -EINPROGRESS && off == 0 && inode->st.size <= PREFETCH_BYTES)
        data_prefetch(ns, inode);
    data_end_locked(inode);
    return data_error(n);
}

ssize_t ns_read(struct ns *ns, uint64_t ino, uint64_t off, void *dst, size_t len, unsigned flags)
{
    struct ns_inode *inode;
    ssize_t n = data_begin(ns, ino, NULL, flags, &inode);

    if (n)
        return n;
    n = cache_read(inode->file, off, dst, len, data_flags(flags & DFE_NOWAIT));
    return data_end_read(inode, off, n);
}

int ns_pin(struct ns *ns, uint64_t ino, uint64_t off, size_t len, unsigned flags,
           struct cache_pin *out)
{
    struct ns_inode *inode;
    int err = data_begin(ns, ino, NULL, flags, &inode);

    if (err)
        return err;
    err = cache_pin(inode->file, off, len, data_flags(flags & DFE_NOWAIT), out);
    return (int)data_end_read(inode, off, err);
}

int ns_lease(struct ns *ns, uint64_t ino, uint64_t off, unsigned flags, struct cache_lease *out,
             struct dfe_attr *attr)
{
    struct ns_inode *inode;
    int err = data_begin(ns, ino, NULL, flags, &inode);

    if (err)
        return err;
    err = cache_lease(inode->file, off, data_flags(flags & DFE_NOWAIT), out);
    if (!err && attr) {
        pthread_mutex_lock(&ns->lock);
        inode_attr(inode, attr);
        pthread_mutex_unlock(&ns->lock);
    }
    return (int)data_end_read(inode, off, err);
}

void ns_unpin(struct ns *ns, struct cache_pin *pin)
{
    cache_unpin(ns->cache, pin);
}

ssize_t ns_write(struct ns *ns, uint64_t ino, uint64_t off, const void *src, size_t len,
                 unsigned flags, uint64_t *at)
{
    int64_t now_ns = base_real_ns();
    struct ns_inode *inode;
    struct cache_cut before;
    uint64_t where = off;
    uint32_t published;
    ssize_t n;

    if (!(flags & DFE_APPEND)) {
        if (len > 0 && off >= DFE_FILE_BYTES)
            return -EFBIG;
        if (len > DFE_FILE_BYTES - off)
            len = DFE_FILE_BYTES - off;
    }
    n = data_begin(ns, ino, &published, flags, &inode);
    if (n)
        return n;
    cache_file_cut(inode->file, &before);
    n = cache_write(inode->file, off, src, len, now_ns, data_flags(flags), &where);
    pthread_mutex_lock(&ns->lock);
    if (n > 0) {
        inode->st.ctime_ns = now_ns;
        data_used_write(inode, where, (uint64_t)n, before.size);
        data_changed(inode, published);
    }
    data_end_locked(inode);
    if (n >= 0 && at)
        *at = where;
    return data_error(n);
}

int ns_punch(struct ns *ns, uint64_t ino, uint64_t off, uint64_t len, unsigned flags)
{
    int64_t now_ns = base_real_ns();
    struct ns_inode *inode;
    struct cache_cut cut;
    uint32_t published;
    int err;

    if (len == 0)
        return -EINVAL;
    if (off > DFE_FILE_BYTES || len > DFE_FILE_BYTES - off)
        return -EFBIG;
    err = data_begin(ns, ino, &published, flags, &inode);
    if (err)
        return err;
    cache_file_cut(inode->file, &cut);
    if (off < cut.size) {
        if (len > cut.size - off)
            len = cut.size - off;
        err = cache_punch(inode->file, off, len, now_ns, data_flags(flags & DFE_NOWAIT));
    }
    pthread_mutex_lock(&ns->lock);
    if (!err) {
        inode->st.ctime_ns = now_ns;
        inode->st.flags |= NSREC_INODE_USED_UNSURE;
        data_changed(inode, published);
    }
    data_end_locked(inode);
    return (int)data_error(err);
}

int ns_next(struct ns *ns, uint64_t ino, uint64_t off, enum obj_next what, uint64_t *out)
{
    struct ns_inode *inode;
    int err = data_begin(ns, ino, NULL, 0, &inode);

    if (err)
        return err;
    err = cache_next(inode->file, off, what, out);
    data_end(inode);
    return (int)data_error(err);
}

/* -- durability ---------------- */

static int fsync_locked(struct ns_call *c, uint64_t ino, struct ns_inode **out)
{
    int err = inode_get(c, ino, out);

    if (!err)
        inode_pin(*out);
    return err;
}

static int fsync_settle(struct ns *ns, struct ns_inode *inode)
{
    struct ns_call c;
    int err;

    call_begin(&c, ns, 0);
    do
        err = inode->state & INODE_SETTLE ? data_settle(&c, inode) : 0;
    while (call_retry(&c, &err));
    return call_end(&c, err);
}

int ns_fsync(struct ns *ns, uint64_t ino, unsigned flags)
{
    struct cache_file *file;
    struct ns_inode *inode;
    struct ns_call c;
    int err, sync_err;

    call_begin(&c, ns, flags);
    do
        err = fsync_locked(&c, ino, &inode);
    while (call_retry(&c, &err));
    file = !err && S_ISREG(inode->st.mode) ? inode->file : NULL;
    err = call_end(&c, err);
    if (err)
        return err;
    if (!ns->read_only && flags & DFE_NOWAIT)
        err = -EINPROGRESS;
    else if (!ns->read_only) {
        if (file)
            err = cache_publish(file, CACHE_SYNC);
        if (file && !err)
            err = fsync_settle(ns, inode);
        sync_err = obj_sync(ns->pool); /* the names */
        err = err ? err : sync_err;
    }
    pthread_mutex_lock(&ns->lock);
    inode_unpin(inode);
    pthread_mutex_unlock(&ns->lock);
    return (int)data_error(err);
}

int ns_sync(struct ns *ns)
{
    int err, settle_err, sync_err;

    if (ns->read_only)
        return 0;
    err = cache_publish_all(ns->cache, ns->cont, CACHE_SYNC);
    settle_err = data_settle_all(ns, 0);
    sync_err = obj_sync(ns->pool);
    err = err ? err : settle_err ? settle_err : sync_err;
    return (int)data_error(err);
}
