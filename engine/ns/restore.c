/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an earlier process of the same pool left: inodes that somebody still names by number, inodes
 * without links whose holders will come back, changes of files that were accepted and not
 * published.
 *
 * A number says nothing about where its record is, so while an inode is referred to, the directory
 * of its birth is in kept memory (keep_home); the next process finds it there. Orphans wait,
 * pinned, until their grace ends; so do inodes that lose their last name meanwhile, since their
 * holders may not have come back yet.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/keep.h"
#include "base/log.h"
#include "cache/keep_log.h"
#include "ns/impl.h"

#define DEPTH_MAX 100000u /* directories above one another that are loaded for one number */

/* -- an inode by number ---------------------------------------------------------------------- */

/* The inode of a record. *above: its parent, where that has to be in memory first (-EAGAIN). */
static int restore_fill(struct ns_inode *inode, const struct ns_stat *st, const char *target,
                        uint64_t *above)
{
    struct ns_inode *parent = inode;
    int err;

    if (S_ISDIR(st->mode) && st->nlink > 0) {
        parent = inode_find(inode->ns, st->parent);
        if (!parent || parent->state & INODE_LOADING) {
            *above = st->parent;
            return -EAGAIN;
        }
        if (!S_ISDIR(parent->st.mode) || parent == inode)
            return -EUCLEAN;
    }
    err = inode_fill(inode, st, target, parent);
    if (!err && S_ISDIR(st->mode) && st->nlink == 0)
        dir_set_parent(inode, NULL);
    return err;
}

/* Called and returns with the lock, which it drops. 0: it is in the table. */
static int restore_load(struct ns *ns, uint64_t ino, uint64_t birth, uint64_t *above)
{
    struct ns_inode *inode = inode_in_table(ns, ino);
    uint8_t buf[NSREC_INODE_MAX];
    struct nsrec_key key;
    const char *target;
    struct ns_stat st;
    size_t len;
    int err;

    if (inode && inode->state & INODE_LOADING)
        return pthread_cond_wait(&ns->changed, &ns->lock) ? -EIO : 0;
    if (inode)
        return inode->state & INODE_DEAD ? -ESTALE : 0;
    inode = inode_new(ns, ino, birth);
    if (!inode)
        return -ENOMEM;
    inode->state = INODE_LOADING;
    pthread_mutex_unlock(&ns->lock);
    nsrec_key(&key, 'i', ino, NULL, 0);
    err = obj_kv_get(ns->cont, nsrec_dir_id(birth), &key.key, buf, sizeof(buf), &len);
    pthread_mutex_lock(&ns->lock);
    inode->state &= (uint8_t)~INODE_LOADING;
    pthread_cond_broadcast(&ns->changed);
    if (!err)
        err = nsrec_inode_decode(ino, buf, len < sizeof(buf) ? len : sizeof(buf), &st, &target);
    if (!err && st.nlink == 0 && !ns->grace_until_ns)
        err = -ENOENT; /* it is being reclaimed */
    if (!err)
        err = restore_fill(inode, &st, target, above);
    if (err) {
        inode_free(inode);
        return err == -ENOENT ? -ESTALE : err;
    }
    inode_rest(inode);
    return 0;
}

int restore_inode(struct ns *ns, uint64_t ino, uint64_t birth)
{
    uint64_t at = ino, above = 0;
    int err;

    for (unsigned i = 0; i < DEPTH_MAX; i++) {
        err = restore_load(ns, at, at == ino ? birth : at, &above);
        if (err && err != -EAGAIN)
            return err;
        if (!err && at == ino)
            return 0;
        at = err ? above : ino; /* up to the first one in memory, then the wanted one again */
    }
    return base_fail(-EUCLEAN, "inode %llu: its directories have no end", (unsigned long long)ino);
}

bool restore_home(struct ns *ns, uint64_t ino, uint64_t *birth)
{
    return ns->keep && keep_home(ns->keep, ns->cont_number, ino, birth);
}

/* -- grace ----------------------------------------------------------------------------------- */

bool grace_hold(struct ns_inode *inode)
{
    struct ns *ns = inode->ns;

    if (!ns->grace_until_ns)
        return false;
    if ((ns->ngrace & (ns->ngrace - 1)) == 0) {
        size_t n = ns->ngrace ? 2 * ns->ngrace : 1;
        struct ns_inode **grown = realloc(ns->grace, n * sizeof(*grown));

        if (!grown)
            return false;
        ns->grace = grown;
    }
    ns->grace[ns->ngrace++] = inode;
    inode->pins++;
    return true;
}

void grace_end(struct ns *ns)
{
    ns->grace_until_ns = 0;
    while (ns->ngrace > 0)
        inode_unpin(ns->grace[--ns->ngrace]);
    free(ns->grace);
    ns->grace = NULL;
}

int grace_begin(struct ns *ns, uint32_t ms)
{
    int err = 0;

    if (ms == 0)
        return 0;
    pthread_mutex_lock(&ns->lock);
    ns->grace_until_ns = base_mono_ns() + ms * UINT64_C(1000000);
    for (size_t i = ns->nfound; i > 0 && !err; i--) {
        struct ns_orphan o = ns->found[i - 1];
        struct ns_inode *inode;

        err = restore_inode(ns, o.ino, o.birth);
        if (err == -ESTALE || err == -EUCLEAN) { /* reclaimed as ever, or said to be damaged */
            err = 0;
            continue;
        }
        inode = err ? NULL : inode_find(ns, o.ino);
        if (!inode || inode->st.nlink > 0)
            continue; /* only its record as an orphan is wrong */
        cache_doomed(ns->cache, 1, -1); /* in use, perhaps */
        ns->found[i - 1] = ns->found[--ns->nfound];
    }
    pthread_mutex_unlock(&ns->lock);
    return err;
}

/* -- changes of files ------------------------------------------------------------------------ */

static int change_apply(struct ns_inode *inode, int64_t number, const struct cache_kept *k)
{
    struct ns *ns = inode->ns;
    uint32_t published;
    int err, applied = 0;

    pthread_mutex_lock(&ns->lock);
    err = S_ISREG(inode->st.mode) ? data_file(inode) : -EUCLEAN;
    inode_pin(inode);
    published = inode->published;
    pthread_mutex_unlock(&ns->lock);
    if (!err)
        applied = cache_kept_apply(inode->file, number, k);
    pthread_mutex_lock(&ns->lock);
    if (applied > 0 && k->kind == CACHE_KEPT_MTIME) {
        data_mtime_pending(inode);
    } else if (applied > 0) { /* what a write adds to memory, from what is known of it */
        if (inode->st.ctime_ns < k->mtime_ns)
            inode->st.ctime_ns = k->mtime_ns;
        inode->st.flags |= NSREC_INODE_USED_UNSURE;
        data_changed(inode, published);
    }
    inode_unpin(inode);
    pthread_mutex_unlock(&ns->lock);
    return err ? err : applied < 0 ? applied : 0;
}

static int change_replay(int64_t number, const struct cache_kept *k, void *arg)
{
    struct ns *ns = arg;
    struct obj_id file = nsrec_file_id(k->oid_lo);
    struct ns_inode *inode = NULL;
    int err = -ESTALE;

    pthread_mutex_lock(&ns->lock);
    if (k->oid_hi == file.hi)
        err = restore_inode(ns, k->oid_lo, k->home);
    if (!err)
        inode = inode_find(ns, k->oid_lo);
    pthread_mutex_unlock(&ns->lock);
    if (err == -ESTALE) { /* the file is gone */
        cache_kept_drop(ns->cache, number);
        return 0;
    }
    return err ? err : change_apply(inode, number, k);
}

int restore_changes(struct ns *ns)
{
    int err = ns->keep ? cache_kept_replay(ns->cache, ns->cont, change_replay, ns) : 0;

    if (err < 0)
        base_log(BASE_LOG_ERROR, "changes that were accepted before cannot be made again now: %d",
                 err);
    return err;
}

/* An opening that failed: what was replayed so far is left to the next one. */
void restore_abandon(struct ns *ns)
{
    list_splice_tail(&ns->files, &ns->settling);
    while (!list_empty(&ns->files)) {
        struct ns_inode *inode = container_of(ns->files.next, struct ns_inode, files);
        struct cache_file *file = inode->file;

        list_del(&inode->files);
        inode->file = NULL;
        cache_kept_abandon(file);
        cache_file_discard(file);
    }
}
