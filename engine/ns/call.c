/* SPDX-License-Identifier: Apache-2.0 */
/* How a call runs: with the lock from memory; what is missing is fetched without it, and then the
 * call starts again. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/keep.h"
#include "base/log.h"
#include "cache/keep_log.h"
#include "ns/impl.h"

/* A commit that still has no room after so many waits, or needs more of the index than one that
 * must not wait gets, is done waiting under the lock: slow for all, but no caller starves. */
#define CALL_TRIES 16u

void call_begin(struct ns_call *c, struct ns *ns, unsigned flags)
{
    memset(c, 0, offsetof(struct ns_call, xattr));
    c->xattr.valid = false;
    c->xattr.value = NULL;
    c->ns = ns;
    c->flags = flags;
    c->now_ns = base_real_ns();
    pthread_mutex_lock(&ns->lock);
}

int call_need(struct ns_call *c, enum call_need need)
{
    c->need = need;
    return -EINPROGRESS;
}

int call_writable(struct ns_call *c)
{
    if (c->ns->read_only)
        return -EROFS;
    return c->ns->frozen ? call_need(c, NEED_WAIT) : 0;
}

int call_truncate(struct ns_call *c, struct ns_inode *inode, unsigned flags)
{
    int err;

    if (c->truncates_first)
        keep_part(c->ns->keep, true);
    err = cache_truncate(inode->file, c->size, c->now_ns, flags);
    if (c->truncates_first)
        keep_part(c->ns->keep, false);
    return err;
}

static int call_unlocked(struct ns_call *c)
{
    bool data = c->need == NEED_PUBLISH || c->need == NEED_TRUNCATE || c->need == NEED_USED ||
                c->need == NEED_KEPT;
    struct ns_inode *inode = data ? c->inode : NULL;
    uint64_t used = 0;
    uint32_t published = inode ? inode->published : 0;
    struct ns *ns = c->ns;
    int err = 0;

    if (inode)
        inode_pin(inode);
    pthread_mutex_unlock(&ns->lock);
    if (c->need == NEED_PUBLISH)
        err = cache_publish(inode->file, 0);
    else if (c->need == NEED_TRUNCATE)
        err = call_truncate(c, inode, 0);
    else if (c->need == NEED_KEPT)
        err = cache_kept_wait(inode->file);
    else if (c->need == NEED_USED)
        err = cache_used(inode->file, &used);
    else if (c->need == NEED_ROOM)
        err = obj_wait_room(ns->pool);
    else
        err = number_extend(ns);
    pthread_mutex_lock(&ns->lock);
    if (c->need == NEED_TRUNCATE && !err) {
        c->truncated = true;
        inode->st.ctime_ns = c->now_ns;
        data_used_resize(inode, c->old_size, c->size);
        data_changed(inode, published);
    }
    if (c->need == NEED_USED && !err) {
        inode->st.used = used;
        inode->st.flags &= (uint8_t)~NSREC_INODE_USED_UNSURE;
    }
    if (inode)
        inode_unpin(inode);
    return err;
}

bool call_retry(struct ns_call *c, int *err)
{
    enum call_need need = c->need;

    if (*err != -EINPROGRESS || c->flags & DFE_NOWAIT)
        return false;
    switch (need) {
    case NEED_WAIT:
        *err = pthread_cond_wait(&c->ns->changed, &c->ns->lock) ? -EIO : 0;
        break;
    case NEED_INODE:
        *err = inode_load(c);
        break;
    case NEED_HOME:
        *err = restore_inode(c->ns, c->ino, c->birth);
        break;
    case NEED_RANGE:
        *err = dir_load(c);
        break;
    case NEED_XATTR:
        *err = xattr_load(c);
        break;
    case NEED_PUBLISH:
    case NEED_TRUNCATE:
    case NEED_USED:
    case NEED_KEPT:
    case NEED_ROOM:
    case NEED_NUMBERS:
        *err = call_unlocked(c);
        break;
    case NEED_NOTHING:
        DFE_ASSERT(need != NEED_NOTHING);
    }
    c->need = NEED_NOTHING;
    return *err == 0;
}

int call_end(struct ns_call *c, int err)
{
    struct ns *ns = c->ns;

    for (unsigned i = 0; i < DFE_ARRAY_LEN(c->ranges); i++) {
        if (c->ranges[i].dir)
            dir_unhold(c->ranges[i].dir);
    }
    if (ns->nresting > ns->inode_bound)
        inode_evict_some(ns);
    if (ns->entries > ns->entry_bound)
        dir_trim_some(ns);
    pthread_mutex_unlock(&ns->lock);
    free(c->xattr.value);
    return err == -EUCLEAN ? -EIO : err;
}

int call_commit(struct ns_call *c, struct obj_tx *tx)
{
    int err = obj_tx_commit(tx, c->tries > CALL_TRIES ? 0 : OBJ_NOWAIT, NULL);

    if (err == -EINPROGRESS) {
        obj_tx_abort(tx);
        c->tries++;
        return call_need(c, NEED_ROOM);
    }
    if (err == -EAGAIN) /* invariant 2: we set no guards */
        err = base_fail(-EIO, "a transaction without guards was refused");
    return err;
}
