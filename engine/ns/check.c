/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checking a container: every object is read once, into a table of inodes, and the table is judged.
 *
 * Changes wait meanwhile (ns->frozen), so that what is read belongs together.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/words.h"
#include "ns/impl.h"

struct check_inode {
    uint64_t ino;
    uint64_t birth; /* where its record was found */
    uint64_t said;  /* where the first entry says it is */
    uint64_t dir;   /* of the last entry seen */
    uint64_t parent, size;
    uint64_t links, entries, subdirs;
    uint32_t mode, nlink, xattrs, nxattr;
    uint8_t type; /* as entries say, 0: no entry */
    bool record, orphan;
    uint8_t reached; /* directories: 1 on the way, 2 below the root */
};

struct check {
    struct ns *ns;
    obj_fault_fn fn;
    void (*progress)(uint64_t done, uint64_t total, void *arg);
    void *arg;
    int faults;
    struct check_inode *table; /* open addressing; ino 0 is a free place */
    size_t size, used;
    struct obj_id *ids;
    size_t nids;
    uint64_t number_end;
    /* while one directory object is scanned */
    uint64_t dir, last_cookie, chain_from;
    bool last_more;
};

static void check_fault(struct check *k, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void check_fault(struct check *k, const char *fmt, ...)
{
    char text[320];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    k->faults++;
    if (k->fn)
        k->fn(text, k->arg);
}

static struct check_inode *check_place(struct check_inode *table, size_t size, uint64_t ino)
{
    size_t i = (ino * 0x9E3779B97F4A7C15ull >> 20) & (size - 1);

    while (table[i].ino && table[i].ino != ino)
        i = (i + 1) & (size - 1);
    return &table[i];
}

static struct check_inode *check_get(struct check *k, uint64_t ino)
{
    struct check_inode *ci;

    if (k->used * 2 >= k->size) {
        size_t size = k->size ? 2 * k->size : 1024;
        struct check_inode *table = calloc(size, sizeof(*table));

        if (!table)
            return NULL;
        for (size_t i = 0; i < k->size; i++) {
            if (k->table[i].ino)
                *check_place(table, size, k->table[i].ino) = k->table[i];
        }
        free(k->table);
        k->table = table;
        k->size = size;
    }
    ci = check_place(k->table, k->size, ino);
    if (!ci->ino) {
        ci->ino = ino;
        k->used++;
    }
    return ci;
}

/* -- reading ---------------- */

static int check_record(struct check *k, uint64_t ino, const void *value, size_t len)
{
    struct check_inode *ci = ino ? check_get(k, ino) : NULL;
    const char *target;
    struct ns_stat st;

    if (!ino) {
        check_fault(k, "directory object %llu: a record of inode 0", (unsigned long long)k->dir);
        return 0;
    }
    if (!ci)
        return -ENOMEM;
    if (nsrec_inode_decode(ino, value, len, &st, &target)) {
        check_fault(k, "inode %llu: bad record", (unsigned long long)ino);
        return 0;
    }
    if (ci->record)
        check_fault(k, "inode %llu: records in directory objects %llu and %llu",
                    (unsigned long long)ino, (unsigned long long)ci->birth,
                    (unsigned long long)k->dir);
    ci->record = true;
    ci->birth = k->dir;
    ci->mode = st.mode;
    ci->nlink = st.nlink;
    ci->nxattr = st.nxattr;
    ci->size = st.size;
    ci->parent = S_ISDIR(st.mode) ? st.parent : 0;
    if (ino >= k->number_end)
        check_fault(k, "inode %llu: not below the bound of numbers, %llu", (unsigned long long)ino,
                    (unsigned long long)k->number_end);
    return 0;
}

static void check_chain(struct check *k, const struct obj_key *key, uint64_t cookie, bool more)
{
    uint64_t hash;

    if (!k->last_more || cookie != k->last_cookie + 1)
        k->chain_from = cookie;
    k->last_cookie = cookie;
    k->last_more = more;
    if (key->akey_len == 0)
        return;
    hash = name_hash(k->ns, key->akey, key->akey_len);
    if (hash > cookie || hash < k->chain_from)
        check_fault(k, "directory %llu: the name '%.*s' at cookie %llu cannot be found",
                    (unsigned long long)k->dir, (int)key->akey_len, (const char *)key->akey,
                    (unsigned long long)cookie);
}

static int check_entry(struct check *k, const struct obj_key *key, uint64_t cookie,
                       const void *value, size_t len)
{
    struct check_inode *ci, *dir;
    struct nsrec_entry rec;

    if (nsrec_entry_decode(k->dir, key, value, len, &rec)) {
        check_fault(k, "directory %llu: bad entry at cookie %llu", (unsigned long long)k->dir,
                    (unsigned long long)cookie);
        return 0;
    }
    check_chain(k, key, cookie, rec.flags & NSREC_ENTRY_MORE);
    if (rec.type == 0)
        return 0;
    if (!check_get(k, rec.ino) || !check_get(k, k->dir))
        return -ENOMEM;
    dir = check_get(k, k->dir); /* the table may grow once more, but not twice without a new one */
    ci = check_get(k, rec.ino);
    if (!dir || !ci)
        return -ENOMEM;
    if (ci->type && (ci->type != rec.type || ci->said != rec.birth))
        check_fault(k, "inode %llu: its entries differ", (unsigned long long)rec.ino);
    if (ci->type && rec.type == S_IFDIR >> 12)
        check_fault(k, "directory %llu: has two names", (unsigned long long)rec.ino);
    ci->type = rec.type;
    ci->said = rec.birth;
    ci->dir = k->dir;
    ci->links++;
    dir->entries++;
    dir->subdirs += rec.type == S_IFDIR >> 12;
    return 0;
}

static int check_dir_key(const struct obj_key *key, const void *value, size_t len, void *arg)
{
    struct check *k = arg;
    uint64_t number;

    if (nsrec_key_is(key, 'i', &number))
        return check_record(k, number, value, len);
    if (nsrec_key_is(key, 'e', &number))
        return check_entry(k, key, number, value, len);
    if (nsrec_key_is(key, 'x', &number) && number) {
        struct check_inode *ci = check_get(k, number);

        if (!ci)
            return -ENOMEM;
        ci->xattrs++;
        return 0;
    }
    check_fault(k, "directory object %llu: an unknown key", (unsigned long long)k->dir);
    return 0;
}

static int check_meta_key(const struct obj_key *key, const void *value, size_t len, void *arg)
{
    const uint8_t *dkey = key->dkey;
    struct check *k = arg;
    uint64_t number;

    if (key->dkey_len == 1 && dkey[0] == 'n' && len == 8) {
        k->number_end = get_le64(value);
    } else if (nsrec_key_is(key, 'o', &number) && number) {
        struct check_inode *ci = check_get(k, number);

        if (!ci)
            return -ENOMEM;
        ci->orphan = true;
    } else if (key->dkey_len != 1 || dkey[0] != 's') {
        check_fault(k, "namespace object: an unknown key");
    }
    return 0;
}

static int check_collect(struct obj_id oid, void *arg)
{
    struct check *k = arg;

    if ((k->nids & (k->nids - 1)) == 0) {
        size_t n = k->nids ? 2 * k->nids : 1;
        struct obj_id *ids = realloc(k->ids, n * sizeof(*ids));

        if (!ids)
            return -ENOMEM;
        k->ids = ids;
    }
    k->ids[k->nids++] = oid;
    return 0;
}

/* File objects, once all records are known. */
static int check_file(struct check *k, struct obj_id oid)
{
    struct check_inode *ci = check_place(k->table, k->size, oid.lo);
    uint64_t used, end;
    int err;

    if (!ci->record || !S_ISREG(ci->mode)) {
        check_fault(k, "file object %llu belongs to no file", (unsigned long long)oid.lo);
        return 0;
    }
    err = obj_array_stat(k->ns->cont, oid, &used, &end);
    if (err)
        check_fault(k, "inode %llu: its data cannot be found: %d", (unsigned long long)oid.lo, err);
    else if (end > (ci->size + DFE_BLOCK_BYTES - 1) / DFE_BLOCK_BYTES * DFE_BLOCK_BYTES)
        check_fault(k, "inode %llu: data up to byte %llu, its size is %llu",
                    (unsigned long long)oid.lo, (unsigned long long)end,
                    (unsigned long long)ci->size);
    return 0;
}

static int check_read(struct check *k)
{
    int err = obj_kv_scan(k->ns->cont, nsrec_meta_id(), NULL, 0, check_meta_key, k);

    if (err >= 0)
        err = obj_scan_objects(k->ns->cont, NULL, check_collect, k);
    for (size_t i = 0; i < k->nids && err >= 0; i++) {
        if (k->ids[i].hi >> 56 != NSREC_KIND_DIR)
            continue;
        k->dir = k->ids[i].lo;
        k->last_more = false;
        err = obj_kv_scan(k->ns->cont, k->ids[i], NULL, 0, check_dir_key, k);
        if (k->progress)
            k->progress(i + 1, 2 * k->nids, k->arg);
    }
    if (err >= 0 && !k->table)
        err = check_get(k, NS_ROOT_INO) ? 0 : -ENOMEM;
    for (size_t i = 0; i < k->nids && err >= 0; i++) {
        uint64_t kind = k->ids[i].hi >> 56;

        if (kind == NSREC_KIND_FILE)
            err = check_file(k, k->ids[i]);
        else if (kind != NSREC_KIND_DIR && kind != NSREC_KIND_META)
            check_fault(k, "object %llx.%llx is of no known kind", (unsigned long long)k->ids[i].hi,
                        (unsigned long long)k->ids[i].lo);
        if (k->progress)
            k->progress(k->nids + i + 1, 2 * k->nids, k->arg);
    }
    return err < 0 ? err : 0;
}

/* -- judging ---------------- */

/* Follows parents up to the root, or to a place that is known. */
static void check_reach(struct check *k, struct check_inode *from)
{
    struct check_inode *ci = from;
    uint8_t verdict;

    while (ci->ino != NS_ROOT_INO && !ci->reached && ci->record && ci->links > 0) {
        ci->reached = 1;
        ci = check_place(k->table, k->size, ci->dir);
        if (!ci->ino)
            break;
    }
    verdict = ci->ino == NS_ROOT_INO || ci->reached == 2 ? 2 : 3;
    if (ci->reached == 1)
        check_fault(k, "directory %llu: above itself", (unsigned long long)ci->ino);
    for (ci = from; ci->reached == 1; ci = check_place(k->table, k->size, ci->dir))
        ci->reached = verdict;
    if (verdict == 3)
        check_fault(k, "directory %llu: not below the root", (unsigned long long)from->ino);
}

static void check_judge_dir(struct check *k, struct check_inode *ci)
{
    uint64_t parent = ci->ino == NS_ROOT_INO ? NS_ROOT_INO : ci->dir;
    unsigned long long ino = ci->ino;

    if (ci->size != ci->entries)
        check_fault(k, "directory %llu: has %llu entries, its record says %llu", ino,
                    (unsigned long long)ci->entries, (unsigned long long)ci->size);
    if (ci->nlink == 0)
        return;
    if (ci->nlink != 2 + ci->subdirs)
        check_fault(k, "directory %llu: %u links, expected %llu", ino, ci->nlink,
                    2 + (unsigned long long)ci->subdirs);
    if (ci->parent != parent)
        check_fault(k, "directory %llu: its parent is %llu, its record says %llu", ino,
                    (unsigned long long)parent, (unsigned long long)ci->parent);
    if (ci->birth != ci->ino)
        check_fault(k, "directory %llu: its record is in object %llu", ino,
                    (unsigned long long)ci->birth);
    check_reach(k, ci);
}

static void check_judge(struct check *k, struct check_inode *ci)
{
    bool root = ci->ino == NS_ROOT_INO, dir = S_ISDIR(ci->mode);
    unsigned long long ino = ci->ino;

    if (!ci->record) {
        if (ci->links || ci->entries)
            check_fault(k, "inode %llu: in directory %llu, but it has no record", ino,
                        (unsigned long long)ci->dir);
        else if (ci->xattrs)
            check_fault(k, "inode %llu: attributes, but no record", ino);
        return; /* an orphan's record alone is harmless */
    }
    if (ci->type && (ci->mode & S_IFMT) >> 12 != ci->type)
        check_fault(k, "inode %llu: its entry says type %o, its record %o", ino, ci->type,
                    (ci->mode & S_IFMT) >> 12);
    if (ci->type && ci->said != ci->birth)
        check_fault(k, "inode %llu: its entry says object %llu, its record is in %llu", ino,
                    (unsigned long long)ci->said, (unsigned long long)ci->birth);
    if (ci->xattrs != ci->nxattr)
        check_fault(k, "inode %llu: has %u attributes, its record says %u", ino, ci->xattrs,
                    ci->nxattr);
    if (!dir && ci->nlink != ci->links)
        check_fault(k, "inode %llu: %u links, but %llu entries", ino, ci->nlink,
                    (unsigned long long)ci->links);
    if (dir && !root && (ci->nlink > 0) != (ci->links > 0))
        check_fault(k, "directory %llu: %u links, but %llu entries name it", ino, ci->nlink,
                    (unsigned long long)ci->links);
    if (ci->nlink == 0 && !ci->orphan)
        check_fault(k, "inode %llu: without links and not an orphan", ino);
    if (dir)
        check_judge_dir(k, ci);
}

static void check_freeze(struct ns *ns, bool frozen)
{
    pthread_mutex_lock(&ns->lock);
    while (frozen && ns->frozen)
        pthread_cond_wait(&ns->changed, &ns->lock);
    ns->frozen = frozen;
    pthread_cond_broadcast(&ns->changed);
    pthread_cond_signal(&ns->work);
    pthread_mutex_unlock(&ns->lock);
}

/* A publication or a reclaim that has begun ends first. */
static void check_settle(struct ns *ns)
{
    pthread_mutex_lock(&ns->lock);
    for (uint64_t i = 0; i <= ns->bucket_mask; i++) {
        struct ns_inode *inode = ns->buckets[i];

        while (inode) {
            if (inode->state & INODE_BUSY || ns->reclaiming) {
                pthread_cond_wait(&ns->changed, &ns->lock);
                inode = ns->buckets[i];
            } else {
                inode = inode->next;
            }
        }
    }
    pthread_mutex_unlock(&ns->lock);
}

int ns_check(struct ns *ns, bool data, obj_fault_fn fn,
             void (*progress)(uint64_t done, uint64_t total, void *arg), void *arg)
{
    struct check k = {.ns = ns, .fn = fn, .progress = progress, .arg = arg};
    int err, obj_faults;

    if (!ns->read_only) {
        err = ns_sync(ns);
        if (err)
            return err;
    }
    check_freeze(ns, true);
    check_settle(ns);
    obj_faults = obj_check(ns->cont, data, fn, progress, arg);
    err = obj_faults < 0 ? obj_faults : check_read(&k);
    for (size_t i = 0; i < k.size && !err; i++) {
        if (k.table[i].ino)
            check_judge(&k, &k.table[i]);
    }
    check_freeze(ns, false);
    free(k.table);
    free(k.ids);
    return err ? err : obj_faults + k.faults;
}
