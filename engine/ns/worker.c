/* SPDX-License-Identifier: Apache-2.0 */
/* The namespace's own thread: reclaims what nobody uses, keeps inode numbers in stock, writes late
 * times and gives back idle data handles. It sleeps when there is nothing of that. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/words.h"
#include "ns/impl.h"

/* Inodes reclaimed in one tx: far below a tx's limits, enough to share the cost of one. */
#define RECLAIM_BATCH 64u
/* How soon a time that was set on a file with dirty data is looked at again. */
#define SETTLE_WAIT_NS 20000000u
/* How many are looked at then: the lock is held, and a copied tree leaves thousands of them. */
#define SETTLE_BATCH 256u

struct reclaim {
    uint64_t ino, birth;
    struct ns_inode *inode; /* DEAD and in memory, or NULL: found at open */
    struct cache_file *file;
    uint32_t mode;
    bool stale; /* only the orphan's record is wrong */
};

void worker_kick(struct ns *ns)
{
    if (!ns->working)
        pthread_cond_signal(&ns->work);
}

/* An orphan's record that a crash left: is the inode really one? */
static int reclaim_read(struct ns *ns, struct reclaim *r)
{
    uint8_t buf[NSREC_INODE_MAX];
    struct nsrec_key key;
    const char *target;
    struct ns_stat st;
    size_t len;
    int err;

    nsrec_key(&key, 'i', r->ino, NULL, 0);
    err = obj_kv_get(ns->cont, nsrec_dir_id(r->birth), &key.key, buf, sizeof(buf), &len);
    if (!err)
        err = nsrec_inode_decode(r->ino, buf, len < sizeof(buf) ? len : sizeof(buf), &st, &target);
    if (err == -ENOENT || (!err && st.nlink > 0)) {
        r->stale = true;
        return 0;
    }
    r->mode = st.mode;
    return err;
}

struct tomb_scan {
    struct obj_tx *tx;
    struct obj_id dir;
};

static int reclaim_tomb(const struct obj_key *key, const void *value, size_t len, void *arg)
{
    struct tomb_scan *scan = arg;
    uint64_t cookie;

    (void)value, (void)len;
    if (!nsrec_key_is(key, 'e', &cookie))
        return 1;
    return obj_tx_del(scan->tx, OBJ_AFTER, scan->dir, key);
}

/* A removed directory may hold tombstones, and records of inodes that were born there and live on
 * elsewhere; only the former go. */
static int reclaim_dir(struct ns *ns, struct obj_tx *tx, uint64_t ino)
{
    struct tomb_scan scan = {tx, nsrec_dir_id(ino)};
    struct nsrec_key key;
    int err;

    nsrec_key(&key, 'e', 0, NULL, 0);
    err = obj_kv_scan(ns->cont, scan.dir, &key.key, 0, reclaim_tomb, &scan);
    return err < 0 ? err : 0;
}

static int reclaim_put(struct ns *ns, struct obj_tx *tx, const struct reclaim *r)
{
    struct obj_id birth = nsrec_dir_id(r->birth);
    struct nsrec_key key;
    int err;

    nsrec_key(&key, 'o', r->ino, NULL, 0);
    err = obj_tx_del(tx, OBJ_HOME, nsrec_meta_id(), &key.key);
    if (err || r->stale)
        return err;
    nsrec_key(&key, 'i', r->ino, NULL, 0);
    err = obj_tx_del(tx, OBJ_AFTER, birth, &key.key);
    nsrec_key(&key, 'x', r->ino, NULL, 0);
    if (!err)
        err = obj_tx_punch_dkey(tx, OBJ_AFTER, birth, key.dkey, sizeof(key.dkey));
    if (!err && S_ISREG(r->mode))
        err = obj_tx_punch_object(tx, OBJ_AFTER, nsrec_file_id(r->ino));
    if (!err && S_ISDIR(r->mode))
        err = reclaim_dir(ns, tx, r->ino);
    return err;
}

static int reclaim_commit(struct ns *ns, struct reclaim *list, unsigned n)
{
    struct obj_tx *tx;
    int err;

    err = obj_tx_begin(ns->cont, nsrec_meta_id(), &tx);
    for (unsigned i = 0; i < n && !err; i++) {
        if (!list[i].inode)
            err = reclaim_read(ns, &list[i]);
        if (!err)
            err = reclaim_put(ns, tx, &list[i]);
        if (err)
            obj_tx_abort(tx);
    }
    return err ? err : obj_tx_commit(tx, 0, NULL);
}

/* Fills list; with the lock. */
static unsigned reclaim_take(struct ns *ns, struct reclaim *list)
{
    unsigned n = 0;

    while (n < RECLAIM_BATCH && !list_empty(&ns->dead)) {
        struct ns_inode *inode = container_of(ns->dead.next, struct ns_inode, rest);
        struct reclaim *r = &list[n++];

        *r = (struct reclaim){inode->ino, inode->birth, inode, NULL, inode->st.mode, false};
        list_del(&inode->rest);
        if (S_ISREG(r->mode) && inode->file) {
            r->file = inode->file;
            list_del(&inode->files);
            ns->nfiles--;
            inode->file = NULL;
        }
    }
    while (n < RECLAIM_BATCH && ns->nfound > 0) {
        struct ns_orphan *o = &ns->found[--ns->nfound];

        list[n++] = (struct reclaim){o->ino, o->birth, NULL, NULL, 0, false};
    }
    return n;
}

/* Called and returns with the lock. */
static void worker_reclaim(struct ns *ns)
{
    struct reclaim list[RECLAIM_BATCH];
    unsigned n = reclaim_take(ns, list);
    int err;

    ns->reclaiming = true;
    pthread_mutex_unlock(&ns->lock);
    for (unsigned i = 0; i < n; i++) /* whatever becomes of the records: nobody will ask again */
        if (list[i].file)
            cache_file_discard(list[i].file);
    err = reclaim_commit(ns, list, n);
    /* One that cannot be reclaimed must not keep the others. */
    for (unsigned i = 0; i < n && err; i++) {
        int one = reclaim_commit(ns, &list[i], 1);

        if (one)
            base_log(BASE_LOG_WARN, "inode %llu: not reclaimed now, but when opened again: %d",
                     (unsigned long long)list[i].ino, one);
    }
    pthread_mutex_lock(&ns->lock);
    for (unsigned i = 0; i < n; i++) {
        if (list[i].inode)
            inode_free(list[i].inode);
    }
    ns->orphans -= n;
    cache_doomed(ns->cache, 0, -(int64_t)n);
    ns->reclaiming = false;
    pthread_cond_broadcast(&ns->changed);
}

static void worker_number(struct ns *ns)
{
    int err;

    ns->numbering = true; /* one attempt: a create that needs numbers asks for itself */
    pthread_mutex_unlock(&ns->lock);
    err = number_extend(ns);
    pthread_mutex_lock(&ns->lock);
    ns->numbering = err != 0;
}

static void worker_settle(struct ns *ns)
{
    const struct ns_inode *again = NULL; /* the first that was put back */
    struct ns_call c;
    struct timespec until;
    uint64_t at_ns = base_mono_ns() + SETTLE_WAIT_NS;

    pthread_mutex_unlock(&ns->lock);
    call_begin(&c, ns, DFE_NOWAIT);
    for (unsigned n = 0; n < SETTLE_BATCH && !list_empty(&ns->settling); n++) {
        struct ns_inode *inode = container_of(ns->settling.next, struct ns_inode, files);

        if (inode == again || data_settle(&c, inode))
            break;
        if (!(inode->state & INODE_SETTLE))
            continue;
        list_del(&inode->files); /* still dirty */
        list_add_tail(&ns->settling, &inode->files);
        again = again ? again : inode;
    }
    call_end(&c, 0);
    pthread_mutex_lock(&ns->lock);
    until.tv_sec = (time_t)(at_ns / 1000000000u);
    until.tv_nsec = (long)(at_ns % 1000000000u);
    ns->working = false;
    if (!list_empty(&ns->settling) && !ns->stop)
        pthread_cond_timedwait(&ns->work, &ns->lock, &until);
    ns->working = true;
}

static void worker_sleep(struct ns *ns)
{
    uint64_t at_ns = ns->grace_until_ns;
    struct timespec until = {(time_t)(at_ns / 1000000000u), (long)(at_ns % 1000000000u)};

    ns->working = false;
    if (at_ns > 0)
        pthread_cond_timedwait(&ns->work, &ns->lock, &until);
    else
        pthread_cond_wait(&ns->work, &ns->lock);
}

static void *worker_run(void *arg)
{
    struct ns *ns = arg;

    pthread_mutex_lock(&ns->lock);
    for (;;) {
        bool dead = !list_empty(&ns->dead) || ns->nfound > 0;

        ns->working = true;
        if (dead && !ns->frozen && !ns->read_only)
            worker_reclaim(ns);
        else if (ns->stop)
            break;
        else if (ns->number_end - ns->number_next <= NS_NUMBER_BLOCK / 2 && !ns->numbering &&
                 !ns->read_only)
            worker_number(ns);
        else if (!list_empty(&ns->settling) && !ns->frozen)
            worker_settle(ns);
        else if (ns->grace_until_ns > 0 && base_mono_ns() >= ns->grace_until_ns)
            grace_end(ns);
        else
            worker_sleep(ns);
    }
    pthread_mutex_unlock(&ns->lock);
    return NULL;
}

int worker_start(struct ns *ns)
{
    int err = pthread_create(&ns->worker, NULL, worker_run, ns);

    ns->worker_started = err == 0;
    return -err;
}

void worker_stop(struct ns *ns)
{
    if (!ns->worker_started)
        return;
    pthread_mutex_lock(&ns->lock);
    ns->stop = true;
    pthread_cond_signal(&ns->work);
    pthread_mutex_unlock(&ns->lock);
    pthread_join(ns->worker, NULL);
    ns->worker_started = false;
}

static int worker_found(const struct obj_key *key, const void *value, size_t len, void *arg)
{
    const uint8_t *rec = value;
    struct ns *ns = arg;
    struct ns_orphan *grown;
    uint64_t ino;

    if (!nsrec_key_is(key, 'o', &ino))
        return 1;
    if (len != sizeof(struct nsrec_orphan) || rec[0] != NSREC_VERSION)
        return base_fail(-EUCLEAN, "orphan %llu: bad record", (unsigned long long)ino);
    if ((ns->nfound & (ns->nfound - 1)) == 0) {
        size_t n = ns->nfound ? 2 * ns->nfound : 1;

        grown = realloc(ns->found, n * sizeof(*grown));
        if (!grown)
            return -ENOMEM;
        ns->found = grown;
    }
    ns->found[ns->nfound++] =
        (struct ns_orphan){ino, get_le64(rec + offsetof(struct nsrec_orphan, birth))};
    return 0;
}

int worker_find_orphans(struct ns *ns)
{
    struct nsrec_key key;
    int err;

    nsrec_key(&key, 'o', 0, NULL, 0);
    err = obj_kv_scan(ns->cont, nsrec_meta_id(), &key.key, 0, worker_found, ns);
    ns->orphans = ns->nfound;
    cache_doomed(ns->cache, 0, (int64_t)ns->nfound);
    return err < 0 ? err : 0;
}
