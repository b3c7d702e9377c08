/* SPDX-License-Identifier: Apache-2.0 */
/* The table of inodes in memory: loading, references, eviction, attributes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/keep.h"
#include "base/log.h"
#include "ns/impl.h"

#define INODE_TABLE_MIN 1024u
/* Evicted by one call while more than the bound rest: more than one call can add. */
#define INODE_EVICT_STEP 4u

/* Numbers are dense, so they are their own best hash: files made one after another share cache
 * lines of the table. */
static struct ns_inode **inode_bucket(struct ns *ns, uint64_t ino)
{
    return &ns->buckets[ino & ns->bucket_mask];
}

/* The table has its final size from the start (untouched pages cost nothing): growing a table of a
 * million inodes would stall a call for tens of milliseconds. */
int inode_table_open(struct ns *ns)
{
    uint64_t n = INODE_TABLE_MIN;

    while (n < ns->inode_bound)
        n *= 2;
    ns->buckets = calloc(n, sizeof(*ns->buckets));
    ns->bucket_mask = n - 1;
    return ns->buckets ? 0 : -ENOMEM;
}

void inode_table_close(struct ns *ns)
{
    if (!ns->buckets)
        return;
    for (uint64_t i = 0; i <= ns->bucket_mask; i++) {
        for (struct ns_inode *inode = ns->buckets[i]; inode; inode = inode->next) {
            if (S_ISDIR(inode->st.mode))
                dir_set_parent(inode, NULL);
        }
    }
    for (uint64_t i = 0; i <= ns->bucket_mask; i++) {
        while (ns->buckets[i])
            inode_free(ns->buckets[i]);
    }
    free(ns->buckets);
    ns->buckets = NULL;
}

static struct ns_inode *table_find(struct ns *ns, uint64_t ino)
{
    struct ns_inode *inode = *inode_bucket(ns, ino);

    while (inode && inode->ino != ino)
        inode = inode->next;
    return inode;
}

struct ns_inode *inode_find(struct ns *ns, uint64_t ino)
{
    struct ns_inode *inode = table_find(ns, ino);

    return inode && !(inode->state & INODE_DEAD) ? inode : NULL;
}

struct ns_inode *inode_in_table(struct ns *ns, uint64_t ino)
{
    return table_find(ns, ino);
}

struct ns_inode *inode_new(struct ns *ns, uint64_t ino, uint64_t birth)
{
    struct ns_inode **bucket = inode_bucket(ns, ino);
    struct ns_inode *inode = calloc(1, sizeof(*inode));

    if (!inode)
        return NULL;
    inode->ns = ns;
    inode->ino = ino;
    inode->birth = birth;
    list_init(&inode->rest);
    inode->next = *bucket;
    *bucket = inode;
    ns->inodes++;
    ns->bytes += sizeof(*inode);
    return inode;
}

void inode_free(struct ns_inode *inode)
{
    struct ns *ns = inode->ns;
    struct ns_inode **at = inode_bucket(ns, inode->ino);

    while (*at != inode)
        at = &(*at)->next;
    *at = inode->next;
    if (!list_empty(&inode->rest)) {
        list_del(&inode->rest);
        if (!(inode->state & INODE_DEAD))
            ns->nresting--;
    }
    if (S_ISDIR(inode->st.mode))
        dir_free(inode);
    else if (S_ISLNK(inode->st.mode))
        free(inode->target);
    ns->inodes--;
    ns->bytes -= sizeof(*inode);
    free(inode);
}

int inode_fill(struct ns_inode *inode, const struct ns_stat *st, const char *target,
               struct ns_inode *parent)
{
    int err = 0;

    if (S_ISDIR(st->mode)) {
        err = dir_new(inode, parent, false);
    } else if (S_ISLNK(st->mode)) {
        inode->target = malloc(st->size);
        if (!inode->target)
            return -ENOMEM;
        memcpy(inode->target, target, st->size);
    }
    if (!err)
        inode->st = *st;
    return err;
}

int inode_get(struct ns_call *c, uint64_t ino, struct ns_inode **out)
{
    struct ns_inode *inode = inode_find(c->ns, ino);

    if (!inode && restore_home(c->ns, ino, &c->birth)) {
        c->ino = ino;
        return call_need(c, NEED_HOME);
    }
    if (!inode)
        return -ESTALE;
    if (inode->state & INODE_LOADING)
        return call_need(c, NEED_WAIT);
    if (!list_empty(&inode->rest)) {
        list_del(&inode->rest);
        list_add_tail(&c->ns->resting, &inode->rest);
    }
    *out = inode;
    return 0;
}

int inode_get_dir(struct ns_call *c, uint64_t ino, struct ns_inode **out)
{
    int err = inode_get(c, ino, out);

    if (err)
        return err;
    if (!S_ISDIR((*out)->st.mode))
        return -ENOTDIR;
    if (!list_empty(&(*out)->dir->used)) {
        list_del(&(*out)->dir->used);
        list_add_tail(&c->ns->dirs, &(*out)->dir->used);
    }
    return 0;
}

/* Makes the inode of a record that was read. A record without links belongs to no entry. */
static int inode_from_record(struct ns_inode *inode, const void *buf, size_t len,
                             struct ns_inode *parent)
{
    const char *target;
    struct ns_stat st;
    int err = nsrec_inode_decode(inode->ino, buf, len, &st, &target);

    if (!err && st.nlink == 0)
        return -ENOENT;
    return err ? err : inode_fill(inode, &st, target, parent);
}

static int inode_missing(uint64_t ino, uint64_t birth)
{
    return base_fail(-EUCLEAN, "inode %llu has an entry but no record in directory object %llu",
                     (unsigned long long)ino, (unsigned long long)birth);
}

int inode_need(struct ns_call *c, uint64_t ino, uint64_t birth, struct ns_inode *parent,
               struct ns_inode **out)
{
    uint8_t buf[NSREC_INODE_MAX];
    struct ns_inode *inode;
    struct nsrec_key key;
    size_t len;
    int err;

    if (table_find(c->ns, ino)) {
        err = inode_get(c, ino, out);
        return err == -ESTALE ? inode_missing(ino, birth) : err;
    }
    if (c->missing == ino)
        return inode_missing(ino, birth);
    nsrec_key(&key, 'i', ino, NULL, 0);
    err = obj_kv_get_nowait(c->ns->cont, nsrec_dir_id(birth), &key.key, buf, sizeof(buf), &len);
    if (err == -EINPROGRESS) {
        c->ino = ino;
        c->birth = birth;
        c->dir = parent;
        return call_need(c, NEED_INODE);
    }
    if (err)
        return err == -ENOENT ? inode_missing(ino, birth) : err;
    inode = inode_new(c->ns, ino, birth);
    if (!inode)
        return -ENOMEM;
    err = inode_from_record(inode, buf, len < sizeof(buf) ? len : sizeof(buf), parent);
    if (err) {
        inode_free(inode);
        return err == -ENOENT ? inode_missing(ino, birth) : err;
    }
    inode_rest(inode);
    *out = inode;
    return 0;
}

/* The number stands in the table as LOADING meanwhile, so that nobody else loads, changes and
 * evicts it between our read and our insertion. */
int inode_load(struct ns_call *c)
{
    struct ns *ns = c->ns;
    struct ns_inode *parent = c->dir, *inode;
    uint8_t buf[NSREC_INODE_MAX];
    struct nsrec_key key;
    size_t len;
    int err;

    if (table_find(ns, c->ino))
        return 0;
    inode = inode_new(ns, c->ino, c->birth);
    if (!inode)
        return -ENOMEM;
    inode->state = INODE_LOADING;
    inode_pin(parent);
    pthread_mutex_unlock(&ns->lock);
    nsrec_key(&key, 'i', inode->ino, NULL, 0);
    err = obj_kv_get(ns->cont, nsrec_dir_id(inode->birth), &key.key, buf, sizeof(buf), &len);
    pthread_mutex_lock(&ns->lock);
    inode->state &= (uint8_t)~INODE_LOADING;
    pthread_cond_broadcast(&ns->changed);
    if (!err)
        err = inode_from_record(inode, buf, len < sizeof(buf) ? len : sizeof(buf), parent);
    inode_unpin(parent);
    if (err) {
        /* Removed meanwhile: the call starts again and finds no entry, or this is damage. */
        c->missing = err == -ENOENT ? inode->ino : c->missing;
        inode_free(inode);
        return err == -ENOENT ? 0 : err;
    }
    inode_rest(inode);
    return 0;
}

int inode_idle(struct ns_call *c, struct ns_inode *inode)
{
    return inode->state & INODE_BUSY ? call_need(c, NEED_WAIT) : 0;
}

static bool inode_resting(const struct ns_inode *inode)
{
    return inode->refs == 0 && inode->pins == 0 && inode != inode->ns->root;
}

void inode_orphan(struct ns_inode *inode)
{
    inode->ns->orphans++;
    cache_doomed(inode->ns->cache, 1, 0);
}

void inode_rest(struct ns_inode *inode)
{
    struct ns *ns = inode->ns;

    if (inode->state & INODE_DEAD)
        return;
    if (!list_empty(&inode->rest)) {
        list_del(&inode->rest);
        ns->nresting--;
    }
    if (!inode_resting(inode))
        return;
    if (inode->st.nlink == 0 && grace_hold(inode))
        return;
    if (inode->st.nlink == 0) {
        inode->state |= INODE_DEAD;
        list_add_tail(&ns->dead, &inode->rest);
        cache_doomed(ns->cache, -1, 1);
        worker_kick(ns);
    } else {
        list_add_tail(&ns->resting, &inode->rest);
        ns->nresting++;
    }
}

void inode_pin(struct ns_inode *inode)
{
    inode->pins++;
    inode_rest(inode);
}

void inode_unpin(struct ns_inode *inode)
{
    DFE_ASSERT(inode->pins > 0);
    inode->pins--;
    inode_rest(inode);
}

void inode_ref(struct ns_inode *inode)
{
    struct ns *ns = inode->ns;

    if (inode->refs++ == 0 && ns->keep)
        keep_home_set(ns->keep, ns->cont_number, inode->ino, inode->birth);
    inode_rest(inode);
}

void inode_unref(struct ns_inode *inode, uint64_t n)
{
    struct ns *ns = inode->ns;

    inode->refs -= n;
    if (inode->refs == 0 && ns->keep)
        keep_home_clear(ns->keep, ns->cont_number, inode->ino);
    inode_rest(inode);
}

/* True where memory holds nothing of the inode that the store does not. */
static bool inode_evictable(struct ns_inode *inode)
{
    if (inode->state & (INODE_BUSY | INODE_SETTLE | INODE_LOADING))
        return false;
    if (S_ISDIR(inode->st.mode))
        return inode->dir->count <= NS_SMALL_DIR;
    return !S_ISREG(inode->st.mode) || !data_dirty(inode);
}

void inode_evict_some(struct ns *ns)
{
    for (unsigned i = 0; i < INODE_EVICT_STEP && ns->nresting > ns->inode_bound; i++) {
        struct ns_inode *inode = container_of(ns->resting.next, struct ns_inode, rest);

        if (!inode_evictable(inode)) {
            if (S_ISDIR(inode->st.mode))
                dir_trim_some(ns);
            list_del(&inode->rest);
            list_add_tail(&ns->resting, &inode->rest);
            continue;
        }
        if (S_ISREG(inode->st.mode) && inode->file)
            data_put_file(inode);
        inode_free(inode);
    }
}

void inode_attr(struct ns_inode *inode, struct dfe_attr *out)
{
    const struct ns_stat *st = &inode->st;
    bool dir = S_ISDIR(st->mode);

    *out = (struct dfe_attr){
        .ino = inode->ino,
        .size = st->size,
        .version = (uint64_t)st->mtime_ns,
        .atime_ns = st->atime_ns,
        .mtime_ns = st->mtime_ns,
        .ctime_ns = st->ctime_ns,
        .btime_ns = st->btime_ns,
        .mode = st->mode,
        .nlink = st->nlink,
        .uid = st->uid,
        .gid = st->gid,
        .rdev = st->rdev,
        .blksize = dir ? DFE_BLOCK_BYTES : DFE_SLOT_MAX_BYTES,
    };
    if (!S_ISREG(st->mode))
        return;
    out->version = st->version;
    out->used = st->used;
    if (inode->file) {
        struct cache_cut cut;

        cache_file_cut(inode->file, &cut);
        out->size = cut.size;
        out->mtime_ns = cut.mtime_ns;
        out->version = cut.version;
    }
}

void inode_answer(struct ns_call *c, struct ns_inode *inode, struct dfe_attr *out)
{
    inode_attr(inode, out);
    if (c->flags & DFE_REF)
        inode_ref(inode);
}

int inode_put_record(struct obj_tx *tx, uint64_t home, const struct ns_inode *inode,
                     const struct ns_stat *st)
{
    uint8_t buf[NSREC_INODE_MAX];
    struct nsrec_key key;
    size_t len;

    len = nsrec_inode_encode(buf, st, S_ISLNK(st->mode) ? inode->target : NULL,
                             S_ISLNK(st->mode) ? st->size : 0);
    nsrec_key(&key, 'i', inode->ino, NULL, 0);
    return obj_tx_put(tx, tx_when(home, inode->birth), nsrec_dir_id(inode->birth), &key.key, buf,
                      len);
}
