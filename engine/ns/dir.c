/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries of directories in memory, ordered by cookie.
 *
 * Cookies are keyed hashes, so their top bits spread evenly: a bucket array indexed by them is a
 * hash table for lookups and, its short chains being sorted, an ordered list for listings at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ns/impl.h"

#define DIR_BUCKET_BITS_MIN 3u
#define DIR_BUCKET_BITS_MAX 24u
/* Chains that one insertion moves while the table grows; 2 would just do. */
#define DIR_MOVE_STEP 4u
/* Buckets emptied by one call while more entries than the bound are in memory. */
#define DIR_TRIM_STEP 512u

static size_t entry_bytes(const struct ns_entry *e)
{
    return sizeof(*e) + e->name_len;
}

/* Where a cookie belongs among 2^bits buckets. */
static uint64_t dir_bucket(const struct ns_dir *dir, uint64_t cookie, unsigned bits)
{
    unsigned hash_bits = dir->inode->ns->hash_bits;
    uint64_t last = (UINT64_C(1) << bits) - 1;
    uint64_t i = cookie < NS_COOKIE_FIRST ? 0 : cookie - NS_COOKIE_FIRST;

    i >>= hash_bits > bits ? hash_bits - bits : 0;
    return i < last ? i : last; /* a chain of collisions may lead past the hashes */
}

/* The chain that covers bucket i, and the first bucket after it. */
static struct ns_entry **dir_chain(const struct ns_dir *dir, uint64_t i, uint64_t *next)
{
    if (dir->old && i >> 1 >= dir->moved) {
        *next = (i | 1) + 1;
        return &dir->old[i >> 1];
    }
    *next = i + 1;
    return &dir->buckets[i];
}

static struct ns_entry **dir_chain_of(const struct ns_dir *dir, uint64_t cookie)
{
    uint64_t next;

    return dir_chain(dir, dir_bucket(dir, cookie, dir->bucket_bits), &next);
}

int dir_new(struct ns_inode *inode, struct ns_inode *parent, bool complete)
{
    struct ns *ns = inode->ns;
    struct ns_dir *dir = calloc(1, sizeof(*dir));

    if (!dir)
        return -ENOMEM;
    inode->dir = dir;
    dir->inode = inode;
    dir->parent = parent;
    list_init(&dir->used);
    if (parent != inode)
        inode_pin(parent);
    ns->bytes += sizeof(*dir);
    dir_set_known(dir, complete ? UINT64_MAX : 0);
    return 0;
}

void dir_set_known(struct ns_dir *dir, uint64_t known_to)
{
    struct ns *ns = dir->inode->ns;

    ns->complete += (known_to == UINT64_MAX) - (uint64_t)(dir->known_to == UINT64_MAX);
    dir->known_to = known_to;
}

void dir_set_parent(struct ns_inode *inode, struct ns_inode *parent)
{
    struct ns_inode *old = inode->dir->parent;

    if (old == parent)
        return;
    if (parent)
        inode_pin(parent);
    inode->dir->parent = parent;
    if (old && old != inode)
        inode_unpin(old);
}

/* Drops a chain; the bucket to go on with. */
static uint64_t dir_clear(struct ns_dir *dir, uint64_t bucket)
{
    struct ns_entry **chain = dir_chain(dir, bucket, &bucket);

    while (*chain)
        dir_drop(dir, *chain);
    return bucket;
}

void dir_free(struct ns_inode *inode)
{
    struct ns_dir *dir = inode->dir;
    struct ns *ns = inode->ns;

    dir_set_known(dir, 0);
    for (uint64_t i = 0; dir->count > 0;)
        i = dir_clear(dir, i);
    if (dir->buckets)
        ns->bytes -= sizeof(*dir->buckets) << dir->bucket_bits;
    if (dir->old)
        ns->bytes -= sizeof(*dir->old) << (dir->bucket_bits - 1);
    list_del(&dir->used);
    dir_set_parent(inode, NULL);
    ns->bytes -= sizeof(*dir);
    free(dir->buckets);
    free(dir->old);
    free(dir->acl);
    free(dir);
    inode->dir = NULL;
}

struct ns_entry *dir_next(const struct ns_dir *dir, uint64_t cookie)
{
    uint64_t i;

    if (dir->count == 0)
        return NULL;
    i = dir_bucket(dir, cookie, dir->bucket_bits);
    while (i < UINT64_C(1) << dir->bucket_bits) {
        for (struct ns_entry *e = *dir_chain(dir, i, &i); e; e = e->next) {
            if (e->cookie >= cookie)
                return e;
        }
    }
    return NULL;
}

struct ns_entry *dir_get(const struct ns_dir *dir, uint64_t cookie)
{
    struct ns_entry *e;

    if (!dir->buckets)
        return NULL;
    e = *dir_chain_of(dir, cookie);
    while (e && e->cookie < cookie)
        e = e->next;
    return e && e->cookie == cookie ? e : NULL;
}

struct ns_entry *dir_entry_new(const char *name, size_t len, uint64_t ino, uint64_t birth,
                               uint32_t mode)
{
    struct ns_entry *e = malloc(sizeof(*e) + len);

    if (!e)
        return NULL;
    memset(e, 0, sizeof(*e));
    e->ino = ino;
    e->birth = birth;
    e->type = (uint8_t)((mode & S_IFMT) >> 12);
    e->name_len = (uint8_t)len;
    if (len)
        memcpy(e->name, name, len);
    return e;
}

static void dir_link(struct ns_dir *dir, struct ns_entry *e)
{
    struct ns_entry **at = dir_chain_of(dir, e->cookie);

    while (*at && (*at)->cookie < e->cookie)
        at = &(*at)->next;
    e->next = *at;
    *at = e;
}

/* Begins to have twice the buckets. Where there is no memory, chains just stay longer. */
static void dir_grow(struct ns_dir *dir)
{
    struct ns_entry **buckets = calloc(UINT64_C(2) << dir->bucket_bits, sizeof(*buckets));

    if (!buckets)
        return;
    dir->old = dir->buckets;
    dir->buckets = buckets;
    dir->bucket_bits++;
    dir->moved = 0;
    dir->inode->ns->bytes += sizeof(*buckets) << dir->bucket_bits;
}

/* A few chains move with each insertion: all at once would stall a call for long where there are
 * hundreds of thousands. */
static void dir_move_some(struct ns_dir *dir)
{
    uint64_t size = UINT64_C(1) << (dir->bucket_bits - 1);

    for (unsigned i = 0; i < DIR_MOVE_STEP && dir->moved < size; i++) {
        struct ns_entry *e = dir->old[dir->moved];

        dir->old[dir->moved++] = NULL;
        while (e) {
            struct ns_entry *next = e->next;

            dir_link(dir, e);
            e = next;
        }
    }
    if (dir->moved < size)
        return;
    dir->inode->ns->bytes -= sizeof(*dir->old) * size;
    free(dir->old);
    dir->old = NULL;
}

void dir_insert(struct ns_dir *dir, struct ns_entry *e)
{
    struct ns *ns = dir->inode->ns;

    if (!dir->old && dir->count >> dir->bucket_bits && dir->bucket_bits < DIR_BUCKET_BITS_MAX &&
        dir->bucket_bits < ns->hash_bits)
        dir_grow(dir);
    if (dir->old)
        dir_move_some(dir);
    dir_link(dir, e);
    dir->count++;
    ns->entries++;
    ns->bytes += entry_bytes(e);
    if (list_empty(&dir->used))
        list_add_tail(&ns->dirs, &dir->used);
}

/* The bucket array, made with the first entry: most directories in a tree of files have few. */
int dir_reserve(struct ns_dir *dir)
{
    if (dir->buckets)
        return 0;
    dir->buckets = calloc(1u << DIR_BUCKET_BITS_MIN, sizeof(*dir->buckets));
    if (!dir->buckets)
        return -ENOMEM;
    dir->bucket_bits = DIR_BUCKET_BITS_MIN;
    dir->inode->ns->bytes += sizeof(*dir->buckets) << DIR_BUCKET_BITS_MIN;
    return 0;
}

static void dir_ungone(struct ns_dir *dir, struct ns_entry *e)
{
    struct ns_entry **at = &dir->gone;

    while (*at != e)
        at = &(*at)->gone_next;
    *at = e->gone_next;
}

void dir_drop(struct ns_dir *dir, struct ns_entry *e)
{
    struct ns *ns = dir->inode->ns;
    struct ns_entry **at = dir_chain_of(dir, e->cookie);

    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    if (e->flags & ENTRY_GONE)
        dir_ungone(dir, e);
    dir->count--;
    ns->entries--;
    ns->bytes -= entry_bytes(e);
    free(e);
    if (dir->count == 0)
        list_del(&dir->used);
}

void dir_erase(struct ns_dir *dir, struct ns_entry *e)
{
    if (e->flags & ENTRY_MORE) {
        e->flags |= ENTRY_TOMB;
        e->ino = e->birth = 0;
        e->type = 0;
    } else if (dir->holders > 0) {
        e->flags = ENTRY_GONE;
        e->gone_next = dir->gone;
        dir->gone = e;
    } else {
        dir_drop(dir, e);
    }
}

void dir_hold(struct ns_inode *inode)
{
    inode->dir->holders++;
    inode_pin(inode);
}

void dir_unhold(struct ns_inode *inode)
{
    struct ns_dir *dir = inode->dir;

    DFE_ASSERT(dir->holders > 0);
    dir->holders--;
    while (dir->holders == 0 && dir->gone)
        dir_drop(dir, dir->gone);
    inode_unpin(inode);
}

/* Forgets entries of the directory that was used longest ago (invariant 5: of one without holders).
 * A few buckets a call: a directory of millions must not stall anybody. */
void dir_trim_some(struct ns *ns)
{
    struct ns_dir *dir = NULL;

    list_for_each(pos, &ns->dirs) {
        struct ns_dir *d = container_of(pos, struct ns_dir, used);

        if (d->holders == 0 && d->inode->st.nlink > 0) {
            dir = d;
            break;
        }
    }
    if (!dir)
        return;
    dir_set_known(dir, 0);
    for (unsigned i = 0; i < DIR_TRIM_STEP && dir->count > 0; i++)
        dir->trim_at = dir_clear(dir, dir->trim_at & ((UINT64_C(1) << dir->bucket_bits) - 1));
}

/* -- loading ---------------- */

struct dir_scan {
    struct ns_inode *inode;
    struct ns_entry *first, **tail;
    uint64_t from, seen, limit, next; /* next: everything before it has been seen */
};

/* Runs without the lock. */
static int dir_scan_one(const struct obj_key *key, const void *value, size_t len, void *arg)
{
    struct dir_scan *scan = arg;
    struct nsrec_entry rec;
    struct ns_entry *e;
    uint64_t cookie;
    int err;

    if (!nsrec_key_is(key, 'e', &cookie)) {
        scan->next = UINT64_MAX;
        return 1;
    }
    if (scan->seen == scan->limit) {
        scan->next = cookie;
        return 1;
    }
    err = nsrec_entry_decode(scan->inode->ino, key, value, len, &rec);
    if (err)
        return err;
    e = dir_entry_new(key->akey, key->akey_len, rec.ino, rec.birth, (uint32_t)rec.type << 12);
    if (!e)
        return -ENOMEM;
    e->cookie = cookie;
    e->flags = rec.flags & ENTRY_MORE;
    if (key->akey_len == 0)
        e->flags |= ENTRY_TOMB;
    *scan->tail = e;
    scan->tail = &e->next;
    scan->seen++;
    return 0;
}

/* The call keeps what it learned until it ends, and the directory held (invariant 5). */
static void dir_learn(struct ns_call *c, struct ns_inode *inode, uint64_t from, uint64_t to)
{
    struct call_range *range = &c->ranges[c->range_next++ % DFE_ARRAY_LEN(c->ranges)];

    if (range->dir)
        dir_unhold(range->dir);
    *range = (struct call_range){inode, from, to};
}

int dir_load(struct ns_call *c)
{
    struct ns_inode *inode = c->dir;
    struct ns_dir *dir = inode->dir;
    struct dir_scan scan = {.inode = inode, .from = c->from, .limit = c->limit, .next = UINT64_MAX};
    struct nsrec_key key;
    int err;

    scan.tail = &scan.first;
    dir_hold(inode);
    pthread_mutex_unlock(&c->ns->lock);
    nsrec_key(&key, 'e', c->from, NULL, 0);
    err = obj_kv_scan(c->ns->cont, nsrec_dir_id(inode->ino), &key.key, c->limit + 1, dir_scan_one,
                      &scan);
    pthread_mutex_lock(&c->ns->lock);
    err = err < 0 ? err : dir_reserve(dir);
    *scan.tail = NULL;
    while (scan.first) {
        struct ns_entry *e = scan.first;

        scan.first = e->next;
        if (err < 0 || dir_get(dir, e->cookie))
            free(e); /* memory is newer */
        else
            dir_insert(dir, e);
    }
    if (err < 0) {
        dir_unhold(inode);
        return err;
    }
    if (dir->known_to >= scan.from && scan.next > dir->known_to)
        dir_set_known(dir, scan.next);
    dir_learn(c, inode, scan.from, scan.next);
    return 0;
}
