/* SPDX-License-Identifier: Apache-2.0 */
/* Making, opening and closing a namespace; references; figures. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/keep.h"
#include "base/log.h"
#include "base/words.h"
#include "ns/impl.h"

#define NS_INODE_BOUND 1000000u

static int format_put(struct obj_tx *tx, const struct nsrec_super *super, const struct ns_stat *st)
{
    uint8_t buf[NSREC_INODE_MAX];
    struct obj_id meta = nsrec_meta_id();
    struct nsrec_key key;
    int err;

    nsrec_key(&key, 's', 0, NULL, 0);
    err = obj_tx_guard_absent(tx, &key.key);
    if (!err)
        err = obj_tx_put(tx, OBJ_HOME, meta, &key.key, super, sizeof(*super));
    nsrec_key(&key, 'n', 0, NULL, 0);
    if (!err)
        err = obj_tx_max(tx, OBJ_HOME, meta, &key.key, NS_ROOT_INO + 1);
    nsrec_key(&key, 'i', NS_ROOT_INO, NULL, 0);
    if (!err)
        err = obj_tx_put(tx, OBJ_BEFORE, nsrec_dir_id(NS_ROOT_INO), &key.key, buf,
                         nsrec_inode_encode(buf, st, NULL, 0));
    return err;
}

int ns_format(struct obj_cont *cont, const struct dfe_cred *cred, uint32_t mode)
{
    int64_t now_ns = base_real_ns();
    struct nsrec_super super = {.version = NSREC_VERSION,
                                .created_ns = (int64_t)htole64((uint64_t)now_ns)};
    struct ns_stat st = {
        .mode = S_IFDIR | (mode & 07777),
        .uid = cred->uid,
        .gid = cred->gid,
        .nlink = 2,
        .mtime_ns = now_ns,
        .ctime_ns = now_ns,
        .atime_ns = now_ns,
        .btime_ns = now_ns,
        .parent = NS_ROOT_INO,
    };
    struct obj_tx *tx;
    int err;

    if (obj_cont_read_only(cont))
        return -EROFS;
    if (getrandom(super.hash_key, sizeof(super.hash_key), 0) != (ssize_t)sizeof(super.hash_key))
        return base_fail(-EIO, "no random bytes for the key of the name hash");
    err = obj_tx_begin(cont, nsrec_meta_id(), &tx);
    if (err)
        return err;
    err = format_put(tx, &super, &st);
    if (err)
        obj_tx_abort(tx);
    else
        err = obj_tx_commit(tx, OBJ_SYNC, NULL);
    if (err == -EAGAIN)
        return base_refuse(-EEXIST, "the container has a file system already");
    return err;
}

static int open_super(struct ns *ns)
{
    struct nsrec_super super;
    struct nsrec_key key;
    uint8_t number[8];
    size_t len;
    int err;

    nsrec_key(&key, 's', 0, NULL, 0);
    err = obj_kv_get(ns->cont, nsrec_meta_id(), &key.key, &super, sizeof(super), &len);
    if (err == -ENOENT)
        return base_refuse(-ENODATA, "the container holds no file system");
    if (err)
        return err;
    if (len != sizeof(super) || super.version == 0)
        return base_fail(-EUCLEAN, "namespace superblock: bad record of %zu bytes", len);
    if (super.version != NSREC_VERSION)
        return base_fail(-EPROTONOSUPPORT, "namespace format %u is newer than this program's %u",
                         super.version, NSREC_VERSION);
    memcpy(ns->hash_key, super.hash_key, sizeof(ns->hash_key));
    nsrec_key(&key, 'n', 0, NULL, 0);
    err = obj_kv_get(ns->cont, nsrec_meta_id(), &key.key, number, sizeof(number), &len);
    if (!err && len == sizeof(number))
        ns->number_next = ns->number_end = get_le64(number);
    if (err == -ENOENT || len != sizeof(number) || ns->number_next <= NS_ROOT_INO)
        return base_fail(-EUCLEAN, "namespace: bad bound of inode numbers");
    return err;
}

static int open_root(struct ns *ns)
{
    uint8_t buf[NSREC_INODE_MAX];
    struct nsrec_key key;
    struct ns_stat st;
    const char *target;
    size_t len;
    int err;

    nsrec_key(&key, 'i', NS_ROOT_INO, NULL, 0);
    err = obj_kv_get(ns->cont, nsrec_dir_id(NS_ROOT_INO), &key.key, buf, sizeof(buf), &len);
    if (!err)
        err = nsrec_inode_decode(NS_ROOT_INO, buf, len < sizeof(buf) ? len : sizeof(buf), &st,
                                 &target);
    if (err == -ENOENT || (!err && !S_ISDIR(st.mode)))
        err = base_fail(-EUCLEAN, "namespace: no root directory");
    if (err)
        return err;
    ns->root = inode_new(ns, NS_ROOT_INO, NS_ROOT_INO);
    if (!ns->root)
        return -ENOMEM;
    return inode_fill(ns->root, &st, NULL, ns->root);
}

static void ns_free(struct ns *ns)
{
    if (ns->orphans > 0) /* left for the next open */
        cache_doomed(ns->cache, 0, -(int64_t)ns->orphans);
    inode_table_close(ns);
    pthread_cond_destroy(&ns->work);
    pthread_cond_destroy(&ns->changed);
    pthread_mutex_destroy(&ns->lock);
    free(ns->found);
    free(ns->grace);
    free(ns);
}

static struct ns *ns_new(struct cache *cache, struct obj_cont *cont, const struct ns_opts *opts)
{
    struct ns *ns = calloc(1, sizeof(*ns));
    pthread_condattr_t attr;

    if (!ns)
        return NULL;
    pthread_mutex_init(&ns->lock, NULL);
    pthread_cond_init(&ns->changed, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&ns->work, &attr);
    pthread_condattr_destroy(&attr);
    list_init(&ns->resting);
    list_init(&ns->dead);
    list_init(&ns->dirs);
    list_init(&ns->files);
    list_init(&ns->settling);
    ns->cache = cache;
    ns->cont = cont;
    ns->pool = obj_cont_pool(cont);
    ns->read_only = obj_cont_read_only(cont);
    ns->inode_bound = opts && opts->inode_bound ? opts->inode_bound : NS_INODE_BOUND;
    ns->entry_bound = 2 * ns->inode_bound;
    ns->hash_bits = opts && opts->name_hash_bits ? opts->name_hash_bits : 63;
    if (opts && opts->keep && !ns->read_only) {
        struct obj_cont_info info;

        obj_cont_query(cont, &info);
        ns->cont_number = info.number;
        ns->keep = opts->keep;
    }
    return ns;
}

int ns_open(struct cache *cache, struct obj_cont *cont, const struct ns_opts *opts, struct ns **out)
{
    struct ns *ns;
    int err;

    if (opts && (opts->size != sizeof(*opts) || opts->name_hash_bits > 63))
        return -EINVAL;
    ns = ns_new(cache, cont, opts);
    if (!ns)
        return -ENOMEM;
    err = inode_table_open(ns);
    if (!err)
        err = open_super(ns);
    if (!err && opts && opts->domain)
        cache_domain(cache, cont, opts->domain);
    if (!err)
        err = open_root(ns);
    if (!err && !ns->read_only)
        err = number_extend(ns);
    if (!err && !ns->read_only)
        err = worker_find_orphans(ns);
    if (!err && !ns->read_only && opts)
        err = grace_begin(ns, opts->orphan_grace_ms);
    if (!err)
        err = restore_changes(ns);
    if (!err)
        err = worker_start(ns);
    if (err) {
        restore_abandon(ns);
        ns_free(ns);
        return err == -EUCLEAN ? -EIO : err;
    }
    *out = ns;
    return 0;
}

/* References that faces left would keep orphans alive. */
static void close_drop_refs(struct ns *ns)
{
    pthread_mutex_lock(&ns->lock);
    for (uint64_t i = 0; i <= ns->bucket_mask; i++) {
        for (struct ns_inode *inode = ns->buckets[i]; inode; inode = inode->next) {
            if (inode->refs > 0)
                inode_unref(inode, inode->refs);
        }
    }
    pthread_mutex_unlock(&ns->lock);
}

/* Data that could not be published has been reported, by ns_sync; its owner goes now. */
static void close_file(struct ns_inode *inode)
{
    struct cache_file *file = inode->file;

    if (!data_dirty(inode)) {
        data_put_file(inode);
        return;
    }
    base_log(BASE_LOG_ERROR, "inode %llu: closed with data that could not be written",
             (unsigned long long)inode->ino);
    list_del(&inode->files);
    inode->file = NULL;
    cache_file_discard(file);
}

int ns_close(struct ns *ns)
{
    int err = 0;

    close_drop_refs(ns);
    if (!ns->read_only)
        err = ns_sync(ns);
    worker_stop(ns); /* after what is dead has been reclaimed */
    if (ns->ngrace > 0) /* their holders come back, perhaps, when it is opened again */
        cache_doomed(ns->cache, -(int64_t)ns->ngrace, (int64_t)ns->ngrace);
    list_splice_tail(&ns->files, &ns->settling);
    while (!list_empty(&ns->files))
        close_file(container_of(ns->files.next, struct ns_inode, files));
    ns_free(ns);
    return err;
}

void ns_query(struct ns *ns, struct ns_info *out)
{
    pthread_mutex_lock(&ns->lock);
    *out = (struct ns_info){
        .inodes_cached = ns->inodes,
        .inode_bytes = ns->bytes,
        .dirs_complete = ns->complete,
        .orphans = ns->orphans,
    };
    pthread_mutex_unlock(&ns->lock);
}

int ns_ref(struct ns *ns, uint64_t ino)
{
    struct ns_inode *inode;
    struct ns_call c;
    int err;

    call_begin(&c, ns, 0);
    do
        err = inode_get(&c, ino, &inode);
    while (call_retry(&c, &err));
    if (!err)
        inode_ref(inode);
    return call_end(&c, err);
}

void ns_unref(struct ns *ns, uint64_t ino, uint64_t n)
{
    struct ns_inode *inode;

    pthread_mutex_lock(&ns->lock);
    inode = inode_find(ns, ino);
    if (inode) {
        if (n > inode->refs)
            base_log(BASE_LOG_WARN, "inode %llu: %llu references given back, %llu were taken",
                     (unsigned long long)ino, (unsigned long long)n,
                     (unsigned long long)inode->refs);
        inode_unref(inode, n < inode->refs ? n : inode->refs);
        if (ns->nresting > ns->inode_bound)
            inode_evict_some(ns);
    }
    pthread_mutex_unlock(&ns->lock);
}

int ns_statfs(struct ns *ns, struct dfe_statfs *out)
{
    struct obj_pool_info info;

    obj_pool_query(ns->pool, &info);
    *out = (struct dfe_statfs){
        .block_bytes = DFE_BLOCK_BYTES,
        .blocks = info.data_bytes / DFE_BLOCK_BYTES,
        .blocks_free = info.free_bytes / DFE_BLOCK_BYTES,
        .name_max = DFE_NAME_BYTES,
    };
    /* Inodes are limited by space alone: as many as there are blocks for data or for their keys. */
    out->files = out->blocks * 8;
    out->files_free = out->blocks_free * 8;
    return 0;
}
