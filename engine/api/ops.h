/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a handle of the public API is: a table of what can be done with it. There are two of each:
 * the engine in this process (local_*), and a session with a service (remote_*). A handle's struct
 * begins with these here.
 *
 * dfe.h says what each function does. Before it calls one, dfe.c has checked what needs no engine:
 * that names are given, that kinds are known, that lengths fit; and has cleared dfe_errmsg().
 */
#ifndef DFE_API_OPS_H
#define DFE_API_OPS_H

#include <dfe.h>

struct pool_ops {
    int (*close)(struct dfe_pool *pool);
    int (*query)(struct dfe_pool *pool, struct dfe_pool_info *out);
    int (*sync)(struct dfe_pool *pool);
    int (*checkpoint)(struct dfe_pool *pool);
    int (*drop_caches)(struct dfe_pool *pool);
    int (*service_query)(struct dfe_pool *pool, struct dfe_service_info *out);
    int (*cont_create)(struct dfe_pool *pool, const char *label, int posix,
                       const struct dfe_cred *cred, uint32_t root_mode);
    int (*cont_destroy)(struct dfe_pool *pool, const char *label);
    ssize_t (*cont_list)(struct dfe_pool *pool, struct dfe_cont_info *out, size_t cap);
    int (*cont_open)(struct dfe_pool *pool, const char *label, const char *snapshot,
                     struct dfe_cont **out);
};

struct cont_ops {
    int (*close)(struct dfe_cont *cont);
    int (*query)(struct dfe_cont *cont, struct dfe_cont_info *out);
    int (*prop_get)(struct dfe_cont *cont, const char *name, char *value, size_t cap);
    int (*prop_set)(struct dfe_cont *cont, const char *name, const char *value);
    int (*snap_create)(struct dfe_cont *cont, const char *name, uint64_t *epoch);
    int (*snap_destroy)(struct dfe_cont *cont, const char *name);
    ssize_t (*snap_list)(struct dfe_cont *cont, struct dfe_snap_info *out, size_t cap);
    ssize_t (*check)(struct dfe_cont *cont, int data, char *report, size_t cap,
                     void (*progress)(uint64_t done, uint64_t total, void *arg), void *arg);
    int (*fs_open)(struct dfe_cont *cont, struct dfe_fs **out);
};

/* Objects of a container. */
struct object_ops {
    int (*kv_get)(struct dfe_cont *cont, const struct dfe_oid *oid, const struct dfe_key *key,
                  void *value, size_t cap, size_t *len);
    ssize_t (*kv_scan)(struct dfe_cont *cont, const struct dfe_oid *oid, const struct dfe_key *from,
                       void *page, size_t cap);
    ssize_t (*array_read)(struct dfe_cont *cont, const struct dfe_oid *oid, uint64_t off, void *dst,
                          size_t len);
    ssize_t (*array_write)(struct dfe_cont *cont, const struct dfe_oid *oid, uint64_t off,
                           const void *src, size_t len, unsigned sync);
    int (*array_punch)(struct dfe_cont *cont, const struct dfe_oid *oid, uint64_t off,
                       uint64_t len);
    int (*array_next)(struct dfe_cont *cont, const struct dfe_oid *oid, uint64_t off, int what,
                      uint64_t *out);
    int (*tx_begin)(struct dfe_cont *cont, const struct dfe_oid *home, struct dfe_tx **out);
};

struct tx_ops {
    void (*abort)(struct dfe_tx *tx);
    int (*guard_absent)(struct dfe_tx *tx, const struct dfe_key *key);
    int (*guard_equal)(struct dfe_tx *tx, const struct dfe_key *key, const void *value, size_t len);
    int (*guard_exists)(struct dfe_tx *tx);
    int (*put)(struct dfe_tx *tx, const struct dfe_oid *oid, const struct dfe_key *key,
               const void *value, size_t len);
    int (*del)(struct dfe_tx *tx, const struct dfe_oid *oid, const struct dfe_key *key);
    int (*punch_dkey)(struct dfe_tx *tx, const struct dfe_oid *oid, const void *dkey,
                      uint16_t dkey_len);
    int (*punch_object)(struct dfe_tx *tx, const struct dfe_oid *oid);
    int (*add)(struct dfe_tx *tx, const struct dfe_oid *oid, const struct dfe_key *key,
               int64_t delta);
    int (*max)(struct dfe_tx *tx, const struct dfe_oid *oid, const struct dfe_key *key,
               uint64_t value);
    int (*write)(struct dfe_tx *tx, const struct dfe_oid *oid, uint64_t off, const void *src,
                 size_t len);
    int (*commit)(struct dfe_tx *tx, int sync, uint64_t *epoch);
};

struct fs_ops {
    int (*close)(struct dfe_fs *fs);
    int (*query)(struct dfe_fs *fs, struct dfe_fs_info *out);
    int (*statfs)(struct dfe_fs *fs, struct dfe_statfs *out);
    int (*mount)(struct dfe_fs *fs, int read_only, uint64_t *generation);
    int (*inval_next)(struct dfe_fs *fs, uint64_t done, struct dfe_inval *out);
    void (*inval_stop)(struct dfe_fs *fs);

    int (*ref)(struct dfe_fs *fs, uint64_t ino);
    void (*unref)(struct dfe_fs *fs, uint64_t ino, uint64_t n);
    int (*lookup)(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                  unsigned flags, struct dfe_attr *out);
    int (*getattr)(struct dfe_fs *fs, uint64_t ino, unsigned flags, struct dfe_attr *out);
    int (*setattr)(struct dfe_fs *fs, uint64_t ino, const struct dfe_attr *in, unsigned set,
                   unsigned flags, struct dfe_attr *out);
    int (*mknod)(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len, uint32_t mode,
                 uint32_t rdev, const struct dfe_cred *cred, unsigned flags, struct dfe_attr *out);
    int (*mkdir)(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len, uint32_t mode,
                 const struct dfe_cred *cred, unsigned flags, struct dfe_attr *out);
    int (*symlink)(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                   const char *target, size_t target_len, const struct dfe_cred *cred,
                   unsigned flags, struct dfe_attr *out);
    int (*readlink)(struct dfe_fs *fs, uint64_t ino, char *target, size_t cap, unsigned flags);
    int (*link)(struct dfe_fs *fs, uint64_t ino, uint64_t dir, const char *name, size_t name_len,
                unsigned flags, struct dfe_attr *out);
    int (*unlink)(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                  unsigned flags);
    int (*rmdir)(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                 unsigned flags);
    int (*rename)(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                  uint64_t new_dir, const char *new_name, size_t new_name_len, unsigned flags);
    ssize_t (*readdir)(struct dfe_fs *fs, uint64_t dir, uint64_t cookie, void *page, size_t cap,
                       unsigned flags);
    int (*parent)(struct dfe_fs *fs, uint64_t dir, unsigned flags, uint64_t *out);

    ssize_t (*read)(struct dfe_fs *fs, uint64_t ino, uint64_t off, void *dst, size_t len,
                    unsigned flags);
    ssize_t (*write)(struct dfe_fs *fs, uint64_t ino, uint64_t off, const void *src, size_t len,
                     unsigned flags, uint64_t *at);
    int (*pin)(struct dfe_fs *fs, uint64_t ino, uint64_t off, size_t len, unsigned flags,
               struct dfe_pin *out);
    void (*unpin)(struct dfe_fs *fs, struct dfe_pin *pin);
    int (*punch)(struct dfe_fs *fs, uint64_t ino, uint64_t off, uint64_t len, unsigned flags);
    int (*next)(struct dfe_fs *fs, uint64_t ino, uint64_t off, int what, uint64_t *out);
    int (*fsync)(struct dfe_fs *fs, uint64_t ino, unsigned flags);
    int (*sync)(struct dfe_fs *fs);

    int (*getxattr)(struct dfe_fs *fs, uint64_t ino, const char *name, size_t name_len, void *value,
                    size_t cap, unsigned flags);
    int (*setxattr)(struct dfe_fs *fs, uint64_t ino, const char *name, size_t name_len,
                    const void *value, size_t len, unsigned flags);
    int (*listxattr)(struct dfe_fs *fs, uint64_t ino, char *names, size_t cap, unsigned flags);
    int (*removexattr)(struct dfe_fs *fs, uint64_t ino, const char *name, size_t name_len,
                       unsigned flags);
};

struct dfe_pool {
    const struct pool_ops *ops;
};

struct dfe_cont {
    const struct cont_ops *ops;
    const struct object_ops *objects;
};

struct dfe_tx {
    const struct tx_ops *ops;
};

struct dfe_fs {
    const struct fs_ops *ops;
};

/* Copies an option struct that begins with its size; fields the caller does not know stay 0. */
int api_opts(void *dst, size_t dst_bytes, const void *src);

/* -EFBIG where it is not all within an array. */
int api_check_range(uint64_t off, uint64_t len);

int local_pool_open(const struct dfe_pool_open_opts *opts, struct dfe_pool **out);
int remote_pool_open(const struct dfe_pool_open_opts *opts, struct dfe_pool **out);

#endif
