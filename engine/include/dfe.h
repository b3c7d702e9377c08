/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dfusepy engine: the public C API.
 *
 * Handles are opaque. Functions return 0, a count or a negative errno; dfe_errmsg() has this
 * thread's last reason in words. Any thread may call. Nothing here calls back under a lock.
 *
 * This is also the text that cffi reads: plain C, no conditionals except the include guard.
 */
#ifndef DFE_H
#define DFE_H

#include <dfe_types.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct dfe_pool;
struct dfe_cont;
struct dfe_fs;
struct dfe_tx;

const char *dfe_version(void);
const char *dfe_errmsg(void);
/* Levels: 0 debug, 1 info, 2 warning, 3 error. Set before the first pool is opened. */
void dfe_log_set(void (*fn)(int level, const char *text, void *arg), void *arg);

/* -- pools: a directory with an index, and a device -------------------------------------------- */

struct dfe_pool_create_opts {
    size_t size;            /* sizeof(struct dfe_pool_create_opts) */
    const char *path;       /* directory to make */
    const char *label;
    const char *device;     /* URI; NULL: a file in the directory */
    uint64_t size_bytes;    /* 0 with a device: all of it */
    uint64_t journal_bytes; /* 0: chosen */
};

struct dfe_pool_open_opts {
    size_t size;                 /* sizeof(struct dfe_pool_open_opts) */
    const char *path;
    uint64_t arena_bytes;        /* bound of cache memory; 0: chosen from the host's memory */
    uint64_t dirty_bytes;        /* bound of unwritten data; 0: a quarter of the arena */
    uint32_t commit_interval_ms; /* 0: 1000 */
    uint32_t flush_threads;      /* 0: chosen */
    uint32_t read_only;
    uint32_t no_hugepages;
    /* A service's socket: a session with it in place of an engine in this process. Then path is
     * only told in errors, and what is above is the service's to choose. */
    const char *socket;
    uint32_t mount; /* the session is a mount's: it can answer dfe_fs_inval_next */
    uint32_t reserved;
};

struct dfe_pool_info {
    char label[64];
    char uuid[40];           /* text */
    char device[256];
    char backend[16];
    char damage[256];        /* why the pool is read-only; "" when it is whole */
    uint32_t format;
    uint32_t read_only, direct, registered;
    uint64_t size_bytes, data_bytes, free_bytes, reserved_bytes;
    uint64_t journal_bytes, journal_used_bytes, index_bytes;
    uint64_t overlay_keys, overlay_bytes;
    uint64_t epoch, durable_epoch;
    uint64_t checkpoints, last_checkpoint_ns;
    uint64_t checksum_errors, io_errors, containers;
    /* memory */
    uint64_t arena_bound_bytes, arena_bytes, arena_huge_bytes, arena_thp_bytes, arena_plain_bytes;
    /* cache */
    uint64_t slots_bytes, dirty_bytes, dirty_bound_bytes, dirty_age_ms;
    uint64_t hits, misses, readahead, evicted, published, writeback_errors;
};

int dfe_pool_create(const struct dfe_pool_create_opts *opts);
int dfe_pool_open(const struct dfe_pool_open_opts *opts, struct dfe_pool **out);
int dfe_pool_close(struct dfe_pool *pool);
int dfe_pool_query(struct dfe_pool *pool, struct dfe_pool_info *out);
/* label, uuid and device from the pool's record, without opening it */
int dfe_pool_peek(const char *path, struct dfe_pool_info *out);
int dfe_pool_destroy(const char *path, int force);
int dfe_pool_sync(struct dfe_pool *pool);
int dfe_pool_checkpoint(struct dfe_pool *pool);
/* Drops clean cached data (cold reads in benchmarks and tests). */
int dfe_pool_drop_caches(struct dfe_pool *pool);

/* -- containers and snapshots ------------------------------------------------------------------ */

struct dfe_cont_info {
    char label[64];
    char uuid[40];
    uint32_t number;
    uint32_t reserved;
    int64_t created_ns;
    uint64_t snapshots;
};

struct dfe_snap_info {
    char name[64];
    uint64_t epoch;
    int64_t created_ns;
};

/* posix: make an empty file system in it, owned by cred, with the root's mode. */
int dfe_cont_create(struct dfe_pool *pool, const char *label, int posix,
                    const struct dfe_cred *cred, uint32_t root_mode);
int dfe_cont_destroy(struct dfe_pool *pool, const char *label);
/* Fills at most cap; returns how many there are. */
ssize_t dfe_cont_list(struct dfe_pool *pool, struct dfe_cont_info *out, size_t cap);
/* snapshot NULL: the newest state. */
int dfe_cont_open(struct dfe_pool *pool, const char *label, const char *snapshot,
                  struct dfe_cont **out);
int dfe_cont_close(struct dfe_cont *cont);
int dfe_cont_query(struct dfe_cont *cont, struct dfe_cont_info *out);
int dfe_cont_prop_get(struct dfe_cont *cont, const char *name, char *value, size_t cap);
int dfe_cont_prop_set(struct dfe_cont *cont, const char *name, const char *value);
/* Publishes dirty data, then takes the snapshot. */
int dfe_snap_create(struct dfe_cont *cont, const char *name, uint64_t *epoch);
int dfe_snap_destroy(struct dfe_cont *cont, const char *name);
ssize_t dfe_snap_list(struct dfe_cont *cont, struct dfe_snap_info *out, size_t cap);
/* Walks everything; data: reads and verifies file data too. Returns the number of faults; the
 * texts, one a line, into report (at most cap bytes, ends with NUL). progress may be NULL. */
ssize_t dfe_cont_check(struct dfe_cont *cont, int data, char *report, size_t cap,
                       void (*progress)(uint64_t done, uint64_t total, void *arg), void *arg);

/* -- objects ----------------------------------------------------------------------------------- */

struct dfe_oid {
    uint64_t hi, lo;
};

struct dfe_key {
    const void *dkey;
    const void *akey;
    uint16_t dkey_len, akey_len;
};

int dfe_kv_get(struct dfe_cont *cont, const struct dfe_oid *oid, const struct dfe_key *key,
               void *value, size_t cap, size_t *len);
/* A page of keys from `from` (NULL: the first) as records {u16 dkey_len, u16 akey_len,
 * u32 value_len, dkey, akey, value} without padding. Returns bytes used, 0 at the end, -E2BIG if
 * cap cannot hold one. */
ssize_t dfe_kv_scan(struct dfe_cont *cont, const struct dfe_oid *oid, const struct dfe_key *from,
                    void *page, size_t cap);
/* Arrays are written through transactions, or directly (one transaction a call). Any offset. */
ssize_t dfe_array_read(struct dfe_cont *cont, const struct dfe_oid *oid, uint64_t off, void *dst,
                       size_t len);
ssize_t dfe_array_write(struct dfe_cont *cont, const struct dfe_oid *oid, uint64_t off,
                        const void *src, size_t len, unsigned sync);
int dfe_array_punch(struct dfe_cont *cont, const struct dfe_oid *oid, uint64_t off, uint64_t len);
/* what: 0 data, 1 hole; -ENXIO: none. In units of 4 KiB blocks. */
int dfe_array_next(struct dfe_cont *cont, const struct dfe_oid *oid, uint64_t off, int what,
                   uint64_t *out);

int dfe_tx_begin(struct dfe_cont *cont, const struct dfe_oid *home, struct dfe_tx **out);
void dfe_tx_abort(struct dfe_tx *tx);
int dfe_tx_guard_absent(struct dfe_tx *tx, const struct dfe_key *key);
int dfe_tx_guard_equal(struct dfe_tx *tx, const struct dfe_key *key, const void *value, size_t len);
int dfe_tx_guard_exists(struct dfe_tx *tx);
int dfe_tx_put(struct dfe_tx *tx, const struct dfe_oid *oid, const struct dfe_key *key,
               const void *value, size_t len);
int dfe_tx_del(struct dfe_tx *tx, const struct dfe_oid *oid, const struct dfe_key *key);
int dfe_tx_punch_dkey(struct dfe_tx *tx, const struct dfe_oid *oid, const void *dkey,
                      uint16_t dkey_len);
int dfe_tx_punch_object(struct dfe_tx *tx, const struct dfe_oid *oid);
int dfe_tx_add(struct dfe_tx *tx, const struct dfe_oid *oid, const struct dfe_key *key,
               int64_t delta);
int dfe_tx_max(struct dfe_tx *tx, const struct dfe_oid *oid, const struct dfe_key *key,
               uint64_t value);
/* Whole 4 KiB blocks: off and len are multiples. */
int dfe_tx_write(struct dfe_tx *tx, const struct dfe_oid *oid, uint64_t off, const void *src,
                 size_t len);
/* -EAGAIN: a guard did not hold. Ends the tx. */
int dfe_tx_commit(struct dfe_tx *tx, int sync, uint64_t *epoch);

/* -- file system ------------------------------------------------------------------------------- */

/* One a container at a time; -ENODATA: the container holds no file system. */
int dfe_fs_open(struct dfe_cont *cont, struct dfe_fs **out);
int dfe_fs_close(struct dfe_fs *fs);

int dfe_fs_ref(struct dfe_fs *fs, uint64_t ino);
void dfe_fs_unref(struct dfe_fs *fs, uint64_t ino, uint64_t n);
int dfe_fs_lookup(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                  unsigned flags, struct dfe_attr *out);
int dfe_fs_getattr(struct dfe_fs *fs, uint64_t ino, unsigned flags, struct dfe_attr *out);
int dfe_fs_setattr(struct dfe_fs *fs, uint64_t ino, const struct dfe_attr *in, unsigned set,
                   unsigned flags, struct dfe_attr *out);
int dfe_fs_mknod(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len, uint32_t mode,
                 uint32_t rdev, const struct dfe_cred *cred, unsigned flags, struct dfe_attr *out);
int dfe_fs_mkdir(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len, uint32_t mode,
                 const struct dfe_cred *cred, unsigned flags, struct dfe_attr *out);
int dfe_fs_symlink(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                   const char *target, size_t target_len, const struct dfe_cred *cred,
                   unsigned flags, struct dfe_attr *out);
int dfe_fs_readlink(struct dfe_fs *fs, uint64_t ino, char *target, size_t cap, unsigned flags);
int dfe_fs_link(struct dfe_fs *fs, uint64_t ino, uint64_t dir, const char *name, size_t name_len,
                unsigned flags, struct dfe_attr *out);
int dfe_fs_unlink(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                  unsigned flags);
int dfe_fs_rmdir(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                 unsigned flags);
int dfe_fs_rename(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                  uint64_t new_dir, const char *new_name, size_t new_name_len, unsigned flags);
ssize_t dfe_fs_readdir(struct dfe_fs *fs, uint64_t dir, uint64_t cookie, void *page, size_t cap,
                       unsigned flags);
int dfe_fs_parent(struct dfe_fs *fs, uint64_t dir, unsigned flags, uint64_t *out);
ssize_t dfe_fs_read(struct dfe_fs *fs, uint64_t ino, uint64_t off, void *dst, size_t len,
                    unsigned flags);
ssize_t dfe_fs_write(struct dfe_fs *fs, uint64_t ino, uint64_t off, const void *src, size_t len,
                     unsigned flags, uint64_t *at);

/* Zero copy: bytes of the cache, read-only, unchanged until dfe_fs_unpin. len may be shorter than
 * asked (the slot's or the file's end); 0 at the end. */
struct dfe_pin {
    const void *ptr;
    size_t len;
    void *slot;
};
int dfe_fs_pin(struct dfe_fs *fs, uint64_t ino, uint64_t off, size_t len, unsigned flags,
               struct dfe_pin *out);
void dfe_fs_unpin(struct dfe_fs *fs, struct dfe_pin *pin);

int dfe_fs_punch(struct dfe_fs *fs, uint64_t ino, uint64_t off, uint64_t len, unsigned flags);
/* what: 0 data, 1 hole */
int dfe_fs_next(struct dfe_fs *fs, uint64_t ino, uint64_t off, int what, uint64_t *out);
int dfe_fs_fsync(struct dfe_fs *fs, uint64_t ino, unsigned flags);
int dfe_fs_sync(struct dfe_fs *fs);
int dfe_fs_getxattr(struct dfe_fs *fs, uint64_t ino, const char *name, size_t name_len, void *value,
                    size_t cap, unsigned flags);
int dfe_fs_setxattr(struct dfe_fs *fs, uint64_t ino, const char *name, size_t name_len,
                    const void *value, size_t len, unsigned flags);
int dfe_fs_listxattr(struct dfe_fs *fs, uint64_t ino, char *names, size_t cap, unsigned flags);
int dfe_fs_removexattr(struct dfe_fs *fs, uint64_t ino, const char *name, size_t name_len,
                       unsigned flags);
int dfe_fs_statfs(struct dfe_fs *fs, struct dfe_statfs *out);

/* -- several faces: for a mount on a session ----------------------------------------------------
 */

/* This session's kernel will cache names, attributes and pages of the file system. -EBUSY: another
 * mount writes to it (read-only ones may be many). *generation: another one for each mount, never
 * 0. In-process file systems have one face: 0 at once. */
int dfe_fs_mount(struct dfe_fs *fs, int read_only, uint64_t *generation);
/* Waits for what the kernel is to forget; done: id of what was just done, or 0. Whoever changed it
 * waits meanwhile. For a thread of its own that holds nothing. -ESHUTDOWN after dfe_fs_inval_stop;
 * -ENOTSUP in-process. */
int dfe_fs_inval_next(struct dfe_fs *fs, uint64_t done, struct dfe_inval *out);
void dfe_fs_inval_stop(struct dfe_fs *fs);

/* -- service: an engine for other processes ------------------------------------------------------
 */

struct dfe_service_opts {
    size_t size;             /* sizeof(struct dfe_service_opts) */
    const char *path;        /* of the pool */
    const char *socket;      /* to make and listen on; NULL with listen_fd */
    int listen_fd;           /* a listening SOCK_SEQPACKET socket that somebody else made, or -1 */
    int ready_fd;            /* gets one line when it serves ("ok") or not ("ERRNO why"); or -1 */
    uint64_t arena_bytes, dirty_bytes; /* as for dfe_pool_open */
    uint32_t idle_ms; /* ends after this long without a session; 0: 60,000; UINT32_MAX: never */
    uint32_t no_hugepages;
};
/* Supervises a worker that serves the pool; returns when it has ended (idle, SIGTERM, SIGINT): 0 or
 * a negative errno. Forks; call it in a process that has one thread. */
int dfe_service_run(const struct dfe_service_opts *opts);

struct dfe_service_info {
    uint64_t supervisor_pid, worker_pid;
    uint64_t started_ns;     /* wall clock */
    uint64_t restarts;       /* workers that were lost and replaced */
    uint64_t sessions, channels, mounts;
    uint64_t requests, sleeps;
    uint64_t loans, loan_bytes, leases;
    uint64_t keep_bytes, keep_used_bytes;
    uint64_t bad_clients;    /* sessions ended for what they wrote */
};
/* -ENOTSUP for a pool in this process. */
int dfe_service_query(struct dfe_pool *pool, struct dfe_service_info *out);

struct dfe_fs_info {
    uint64_t inodes_cached, inode_bytes, dirs_complete, orphans;
};
int dfe_fs_query(struct dfe_fs *fs, struct dfe_fs_info *out);

#endif
