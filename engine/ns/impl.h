/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The namespace's own structures, shared by its files.
 *
 * Invariants (asserts cite them by number):
 *  1. Everything here is read and changed under ns->lock, except where a comment says otherwise.
 *  2. Memory equals the store: a call commits its transaction first, under the lock, and changes
 *     memory only when the commit succeeded. So transactions have the order of the calls, and
 *     whatever is in memory needs no guard: the namespace is the only writer of its objects.
 *  3. A directory in memory pins its parent, so that a walk to the root never leaves memory.
 *  4. An entry in a directory's table equals its record. For cookies below dir->known_to, what is
 *     not in the table does not exist.
 *  5. While dir->holders > 0, nothing leaves the directory's table: what is removed stays as a GONE
 *     mark. So what a holder has read from the store without the lock may be added if absent.
 *  6. An inode is in the table in one of three states: LOADING (only its number is valid), DEAD (no
 *     links, no users, waiting to be reclaimed), or neither. A DEAD inode is found by nobody.
 *  7. While an inode is BUSY, its record is being committed without the lock; others wait.
 */
#ifndef DFE_NS_IMPL_H
#define DFE_NS_IMPL_H

#include <pthread.h>
#include <sys/stat.h>

#include "base/assert.h"
#include "base/list.h"
#include "ns/ns.h"
#include "ns/record.h"

/* Numbers are taken in blocks: one key of the META object changes every so many creates. */
#define NS_NUMBER_BLOCK 65536u
/* The first cookies are left to the faces ("." and ".."). */
#define NS_COOKIE_FIRST 16u
#define NS_COOKIE_END (UINT64_C(1) << 63)
/* A directory up to this is loaded whole at the first miss; larger ones piece by piece. */
#define NS_SMALL_DIR 4096u
/* Entries of one readdir page, and of one load for it: bounds the time under the lock. */
#define NS_PAGE_ENTRIES 512u
/* Cached data handles of files; more clean ones than this are given back. */
#define NS_FILES_BOUND 8192u

enum { ENTRY_MORE = NSREC_ENTRY_MORE, ENTRY_TOMB = 2, ENTRY_GONE = 4 };

struct ns_entry {
    struct ns_entry *next; /* in its bucket, by cookie */
    uint64_t cookie;
    uint64_t ino;
    union {
        uint64_t birth;
        struct ns_entry *gone_next; /* GONE marks only */
    };
    uint8_t type, flags, name_len;
    char name[];
};

struct ns_inode;

struct ns_dir {
    struct ns_inode *inode;
    struct ns_inode *parent; /* pinned; the root's is itself, a removed directory's NULL */
    struct ns_entry **buckets;
    struct ns_entry **old; /* half as many, while they move to buckets a few at a time */
    uint64_t moved;        /* of old */
    unsigned bucket_bits;
    unsigned holders;
    uint64_t count; /* in the table, of any kind */
    uint64_t known_to;
    uint64_t trim_at; /* bucket where the next trim goes on */
    struct ns_entry *gone;
    struct list used; /* ns->dirs */
    void *acl;        /* default ACL; NULL: none, or not read yet */
    size_t acl_len;
};

enum { INODE_LOADING = 1, INODE_BUSY = 2, INODE_DEAD = 4, INODE_SETTLE = 8,
       INODE_STALE = 16 /* the record has an older ctime or used; with SETTLE */ };

struct ns_inode {
    struct ns *ns;
    struct ns_inode *next; /* in its bucket */
    struct list rest;      /* ns->resting or ns->dead, or alone */
    uint64_t ino, birth;
    uint64_t refs; /* of faces */
    uint32_t pins; /* of calls without the lock, and of child directories */
    uint8_t state;
    uint32_t xattr_changes;
    uint32_t published; /* how often data_publish has looked at st */
    struct ns_stat st; /* equals the record, but for ctime and used: those of accepted writes */
    union {
        struct ns_dir *dir;
        struct {
            struct cache_file *file;
            struct list files; /* ns->files or ns->settling where file is set */
        };
        char *target; /* st.size bytes */
    };
};

struct ns {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* LOADING, BUSY or frozen ended */
    pthread_cond_t work;    /* for the worker */
    pthread_t worker;
    struct cache *cache;
    struct obj_cont *cont;
    struct obj_pool *pool;
    struct keep *keep; /* or NULL */
    uint32_t cont_number;
    bool read_only;
    bool stop, working; /* the worker: asked to end; busy, no need to wake it */
    bool worker_started;
    bool frozen; /* a check walks the store: nothing may change it */
    uint8_t hash_key[16];
    unsigned hash_bits;

    struct ns_inode **buckets;
    uint64_t bucket_mask;
    uint64_t inodes, bytes;
    uint64_t inode_bound, entry_bound;
    struct list resting; /* without refs and pins, least recently used first */
    uint64_t nresting;
    struct list dead;
    uint64_t orphans;        /* records in the META object */
    struct ns_orphan *found; /* at open, for the worker */
    size_t nfound;
    uint64_t grace_until_ns;  /* monotonic: orphans are kept for holders to come; 0: not any more */
    struct ns_inode **grace;  /* pinned for that */
    size_t ngrace;

    struct list dirs; /* with entries in memory, least recently used first */
    uint64_t entries, complete;
    struct list files, settling;
    uint64_t nfiles;
    uint64_t cold; /* neighbourhood of the small file that was last read and not in memory */

    uint64_t number_next, number_end; /* [next, end) is ours, durably so */
    bool reclaiming; /* the worker, without the lock */
    bool numbering;  /* the worker is at it, or has failed to */
    struct ns_inode *root;
};

struct ns_orphan {
    uint64_t ino, birth;
};

/* -- calls: call.c ---------------- */

enum call_need {
    NEED_NOTHING,
    NEED_WAIT,  /* somebody else is loading or publishing */
    NEED_INODE, /* ino, birth, dir */
    NEED_RANGE, /* dir, from, limit */
    NEED_ROOM,
    NEED_NUMBERS,
    NEED_PUBLISH,  /* inode */
    NEED_TRUNCATE, /* inode, size */
    NEED_USED,     /* inode */
    NEED_HOME,     /* ino, birth */
    NEED_KEPT,     /* inode */
    NEED_XATTR,    /* inode, xattr.name */
};

/* A range of cookies that is known to this call although the directory is not known there. */
struct call_range {
    struct ns_inode *dir;
    uint64_t from, to;
};

/* One attribute that was read without the lock. */
struct call_xattr {
    char name[DFE_XATTR_NAME_BYTES + 1];
    uint64_t ino;
    uint32_t changes;
    int err; /* 0 or -ENODATA */
    bool valid;
    size_t len;
    void *value;
};

/*
 * A call runs with the lock from memory alone. Where something is missing it says what (need) and
 * returns -EINPROGRESS; call_retry gets it without the lock, and the call starts again. With
 * DFE_NOWAIT that answer goes to the face instead.
 */
struct ns_call {
    struct ns *ns;
    unsigned flags;
    unsigned tries;
    int64_t now_ns;
    enum call_need need;
    struct ns_inode *dir, *inode;
    uint64_t ino, birth, from;
    uint64_t limit;
    uint64_t size, old_size;
    uint64_t missing; /* inode whose record is not there */
    bool published, truncated;
    bool truncates_first; /* the call is not done with the size */
    bool advanced; /* has loaded a piece of a directory */
    struct call_range ranges[2];
    unsigned range_next;
    struct call_xattr xattr;
};

void call_begin(struct ns_call *c, struct ns *ns, unsigned flags);
bool call_retry(struct ns_call *c, int *err);
/* Unlocks; turns -EUCLEAN into -EIO. */
int call_end(struct ns_call *c, int err);
int call_need(struct ns_call *c, enum call_need need);
/* Commits and ends tx; nothing changed where it fails. */
int call_commit(struct ns_call *c, struct obj_tx *tx);
/* The data stream's part of a new size (c->size); without the lock, or with CACHE_NOWAIT. */
int call_truncate(struct ns_call *c, struct ns_inode *inode, unsigned flags);
/* -EROFS, or 0. */
int call_writable(struct ns_call *c);

/* -- inodes: inode.c ---------------- */

int inode_table_open(struct ns *ns);
void inode_table_close(struct ns *ns);
struct ns_inode *inode_find(struct ns *ns, uint64_t ino); /* live, or NULL */
struct ns_inode *inode_in_table(struct ns *ns, uint64_t ino); /* in any state, or NULL */
struct ns_inode *inode_new(struct ns *ns, uint64_t ino, uint64_t birth);
void inode_free(struct ns_inode *inode); /* out of the table too */
/* Sets what the record says; a directory gets its ns_dir under `parent`. */
int inode_fill(struct ns_inode *inode, const struct ns_stat *st, const char *target,
               struct ns_inode *parent);
/* By number: -ESTALE where it is not in memory. */
int inode_get(struct ns_call *c, uint64_t ino, struct ns_inode **out);
int inode_get_dir(struct ns_call *c, uint64_t ino, struct ns_inode **out);
/* The inode of an entry of `parent`, loaded where need be. */
int inode_need(struct ns_call *c, uint64_t ino, uint64_t birth, struct ns_inode *parent,
               struct ns_inode **out);
int inode_load(struct ns_call *c); /* NEED_INODE */
/* Nobody else is writing the record. */
int inode_idle(struct ns_call *c, struct ns_inode *inode);
void inode_pin(struct ns_inode *inode);
void inode_unpin(struct ns_inode *inode);
void inode_ref(struct ns_inode *inode);
void inode_unref(struct ns_inode *inode, uint64_t n);
/* Its last link went, and inode_rest comes next: its space will come back. */
void inode_orphan(struct ns_inode *inode);
/* After a change of refs, pins or nlink: rests, is to be reclaimed, or neither. */
void inode_rest(struct ns_inode *inode);
void inode_evict_some(struct ns *ns);
void inode_attr(struct ns_inode *inode, struct dfe_attr *out);
/* Takes the reference that the flags ask for. */
void inode_answer(struct ns_call *c, struct ns_inode *inode, struct dfe_attr *out);
/* The record with `st` for the inode; home is the directory that is the tx's home, 0: another
 * object. */
int inode_put_record(struct obj_tx *tx, uint64_t home, const struct ns_inode *inode,
                     const struct ns_stat *st);

/* -- directories in memory: dir.c ---------------- */

int dir_new(struct ns_inode *inode, struct ns_inode *parent, bool complete);
void dir_free(struct ns_inode *inode);
struct ns_entry *dir_get(const struct ns_dir *dir, uint64_t cookie);
struct ns_entry *dir_next(const struct ns_dir *dir, uint64_t cookie); /* first at or after */
struct ns_entry *dir_entry_new(const char *name, size_t len, uint64_t ino, uint64_t birth,
                               uint32_t mode);
/* Before dir_insert, which cannot fail. */
int dir_reserve(struct ns_dir *dir);
void dir_insert(struct ns_dir *dir, struct ns_entry *e);
/* The record is gone, or has become a tombstone where it had MORE. */
void dir_erase(struct ns_dir *dir, struct ns_entry *e);
void dir_drop(struct ns_dir *dir, struct ns_entry *e); /* out of the table and freed */
void dir_hold(struct ns_inode *inode);
void dir_unhold(struct ns_inode *inode);
void dir_set_known(struct ns_dir *dir, uint64_t known_to);
void dir_set_parent(struct ns_inode *inode, struct ns_inode *parent);
void dir_trim_some(struct ns *ns);
/* NEED_RANGE: at most limit entries from a cookie on. */
int dir_load(struct ns_call *c);

/* -- names: name.c ---------------- */

/* Where a name goes: a cookie, and what is in its place in memory. */
struct name_slot {
    struct ns_inode *dir;
    uint64_t hash, cookie;
    struct ns_entry *old; /* tombstone or GONE mark, or NULL */
    uint8_t flags;        /* of the new entry */
};

int name_check(const char *name, size_t len);
/* 0 with *out, NULL where the name is absent. */
int name_find(struct ns_call *c, struct ns_inode *dir, const char *name, size_t len,
              struct ns_entry **out);
/* For a name that name_find found absent. */
int name_place(struct ns_call *c, struct ns_inode *dir, const char *name, size_t len,
               struct name_slot *out);
uint64_t name_hash(const struct ns *ns, const char *name, size_t len);
/* True where the cookie's content is known: in memory or absent. */
bool name_known(const struct ns_call *c, const struct ns_inode *dir, uint64_t cookie);
/* The tx's part and memory's part of adding an entry ... */
int name_put(struct obj_tx *tx, uint64_t home, const struct name_slot *slot,
             const struct ns_entry *e);
void name_apply_put(const struct name_slot *slot, struct ns_entry *e);
/* ... of removing one (more: a slot of the same tx reaches beyond it) ... */
int name_del(struct obj_tx *tx, uint64_t home, const struct ns_inode *dir, const struct ns_entry *e,
             bool more);
/* ... and of pointing one to another inode. */
int name_repoint(struct obj_tx *tx, uint64_t home, const struct ns_inode *dir,
                 const struct ns_entry *e, const struct ns_inode *to);

/* -- the rest ---------------- */

static inline unsigned tx_when(uint64_t home, uint64_t dir)
{
    return home == dir ? OBJ_HOME : OBJ_AFTER;
}

/* number.c */
int number_take(struct ns_call *c, uint64_t *out);
int number_extend(struct ns *ns); /* without the lock */

/* remove.c: a link less, in a copy of the attributes; the orphan's record where it was the last */
int link_drop(struct obj_tx *tx, uint64_t home, const struct ns_inode *inode, struct ns_stat *st,
              int64_t now_ns);

/* data.c */
extern const struct cache_owner_ops data_ops;
int data_file(struct ns_inode *inode);      /* makes inode->file */
void data_put_file(struct ns_inode *inode); /* gives it back; clean and settled */
bool data_dirty(const struct ns_inode *inode);
/* Writes what no publication will: an mtime that was set after the last cut, or INODE_STALE. */
int data_settle(struct ns_call *c, struct ns_inode *inode);
int data_settle_all(struct ns *ns, unsigned flags);
/* The size becomes another one: what is allocated, as far as that is known. */
void data_used_resize(struct ns_inode *inode, uint64_t old_size, uint64_t size);
/* Asks for the allocated bytes where an estimate is all there is. */
int data_used_sure(struct ns_call *c, struct ns_inode *inode);
void data_mtime_pending(struct ns_inode *inode);
/* After a change without the lock st's ctime and used are set; `published` is from before. */
void data_changed(struct ns_inode *inode, uint32_t published);
void data_trim_files(struct ns *ns);

/* restore.c: what an earlier process left */
/* Loads it, and the directories that it needs; with the lock, which is dropped meanwhile. -ESTALE:
 * there is no such inode. */
int restore_inode(struct ns *ns, uint64_t ino, uint64_t birth);
/* Is it known where the record of a number is that somebody has referred to? */
bool restore_home(struct ns *ns, uint64_t ino, uint64_t *birth);
/* After worker_find_orphans, before anybody else is there. Without the lock. */
int grace_begin(struct ns *ns, uint32_t ms);
bool grace_hold(struct ns_inode *inode); /* pins an inode without links; false: no grace */
void grace_end(struct ns *ns);
int restore_changes(struct ns *ns); /* without the lock, before anybody else is there */
void restore_abandon(struct ns *ns);

/* worker.c */
int worker_start(struct ns *ns);
void worker_stop(struct ns *ns);
void worker_kick(struct ns *ns);
int worker_find_orphans(struct ns *ns);

/* xattr.c: the value into c->xattr, from memory or as NEED_XATTR */
int xattr_peek(struct ns_call *c, struct ns_inode *inode, const char *name);
int xattr_load(struct ns_call *c);
int xattr_put(struct obj_tx *tx, uint64_t home, const struct ns_inode *inode, const char *name,
              size_t name_len, const void *value, size_t len);
int xattr_del(struct obj_tx *tx, uint64_t home, const struct ns_inode *inode, const char *name,
              size_t name_len);

/* acl.c */
#define ACL_ACCESS "system.posix_acl_access"
#define ACL_DEFAULT "system.posix_acl_default"
/* -EINVAL for a malformed one; *mode's permission bits follow the ACL, *plain: mode says it all */
int acl_check(const void *acl, size_t len, uint32_t *mode, bool *plain);
/* In place: the ACL follows the mode. */
void acl_chmod(void *acl, size_t len, uint32_t mode);
/* In place: a default ACL becomes the access ACL of a new inode; *mode follows. */
void acl_inherit(void *acl, size_t len, uint32_t *mode);
/* The directory's default ACL in dir->dir->acl. */
int acl_default(struct ns_call *c, struct ns_inode *dir);

#endif
