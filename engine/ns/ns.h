/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The POSIX namespace over objects: inodes, directories, links, xattrs, open files.
 *
 * Calls name inodes by number, as FUSE does; DFE_ROOT_INO is the root. A face that keeps a number
 * takes a reference (DFE_REF, or ns_ref) and gives it back (ns_unref): an inode without links lives
 * until its last reference goes. Names are bytes, 1 to 255, without '/' and NUL.
 *
 * Every call runs from memory, or with DFE_NOWAIT returns -EINPROGRESS having changed nothing, and
 * the face repeats it on a thread that may block. Permission bits are checked by the kernel.
 *
 * Locks: one mutex a namespace, above the cache's and obj's; never held across I/O or copies over
 * 4 KiB. Errors are errno's of the matching system call; damage is -EIO here, logged below.
 */
#ifndef DFE_NS_NS_H
#define DFE_NS_NS_H

#include "cache/cache.h"
#include "dfe_types.h"

#define NS_ROOT_INO 1u

struct ns;

struct ns_opts {
    size_t size;             /* sizeof */
    uint64_t inode_bound;    /* cached unreferenced inodes; 0: 1,000,000 */
    unsigned name_hash_bits; /* tests make names collide; 0: 63 */
    struct keep *keep;       /* replays data that an earlier process accepted; NULL: none */
    uint32_t orphan_grace_ms; /* orphans wait this long for their holders to come back, also when
                               * it is closed meanwhile and opened again; 0: no */
    uint32_t domain;         /* read domain of its files (cache_domain); 0: none */
};

struct ns_info {
    uint64_t inodes_cached, inode_bytes; /* memory of cached inodes and their entries */
    uint64_t dirs_complete;              /* directories wholly in memory */
    uint64_t orphans;
};

/* Makes the root directory in an empty container; -EEXIST where there is one. (waits) */
int ns_format(struct obj_cont *cont, const struct dfe_cred *cred, uint32_t mode);
/* -ENODATA: no namespace in this container. Resumes interrupted work and reclaims orphans of a
 * crash (unless the container is read-only). (waits) */
int ns_open(struct cache *cache, struct obj_cont *cont, const struct ns_opts *opts,
            struct ns **out);
/* Publishes everything, drops references that faces left. (waits) */
int ns_close(struct ns *ns);
void ns_query(struct ns *ns, struct ns_info *out);

/* Of an inode in memory; with keep also of one that somebody referred to in an earlier process, as
 * every other call by number (then it waits). -ESTALE: not known. */
int ns_ref(struct ns *ns, uint64_t ino);
/* Never blocks: what nobody uses any more is reclaimed elsewhere. */
void ns_unref(struct ns *ns, uint64_t ino, uint64_t n);

int ns_lookup(struct ns *ns, uint64_t dir, const char *name, size_t name_len, unsigned flags,
              struct dfe_attr *out);
int ns_getattr(struct ns *ns, uint64_t ino, unsigned flags, struct dfe_attr *out);
/* Atomic over all fields in `set`; *out is the result. */
int ns_setattr(struct ns *ns, uint64_t ino, const struct dfe_attr *in, unsigned set, unsigned flags,
               struct dfe_attr *out);
/* Regular files, FIFOs, sockets, devices by mode's type. */
int ns_mknod(struct ns *ns, uint64_t dir, const char *name, size_t name_len, uint32_t mode,
             uint32_t rdev, const struct dfe_cred *cred, unsigned flags, struct dfe_attr *out);
int ns_mkdir(struct ns *ns, uint64_t dir, const char *name, size_t name_len, uint32_t mode,
             const struct dfe_cred *cred, unsigned flags, struct dfe_attr *out);
int ns_symlink(struct ns *ns, uint64_t dir, const char *name, size_t name_len, const char *target,
               size_t target_len, const struct dfe_cred *cred, unsigned flags,
               struct dfe_attr *out);
int ns_readlink(struct ns *ns, uint64_t ino, char *target, size_t cap, unsigned flags); /* length */
int ns_link(struct ns *ns, uint64_t ino, uint64_t dir, const char *name, size_t name_len,
            unsigned flags, struct dfe_attr *out);
int ns_unlink(struct ns *ns, uint64_t dir, const char *name, size_t name_len, unsigned flags);
int ns_rmdir(struct ns *ns, uint64_t dir, const char *name, size_t name_len, unsigned flags);
int ns_rename(struct ns *ns, uint64_t dir, const char *name, size_t name_len, uint64_t new_dir,
              const char *new_name, size_t new_name_len, unsigned flags);

/* A page of entries after cookie (0: the start) as dfe_dirent records; "." and ".." are not among
 * them. Returns bytes used, 0 at the end, -EINVAL where cap cannot hold one entry. With DFE_REF
 * every returned inode has one reference more. */
ssize_t ns_readdir(struct ns *ns, uint64_t dir, uint64_t cookie, void *page, size_t cap,
                   unsigned flags);
/* The parent of a directory (".."), for faces that walk paths. */
int ns_parent(struct ns *ns, uint64_t dir, unsigned flags, uint64_t *out);

ssize_t ns_read(struct ns *ns, uint64_t ino, uint64_t off, void *dst, size_t len, unsigned flags);
/* Zero copy: see cache_pin. */
int ns_pin(struct ns *ns, uint64_t ino, uint64_t off, size_t len, unsigned flags,
           struct cache_pin *out);
void ns_unpin(struct ns *ns, struct cache_pin *pin);
/* See cache_lease; *attr (may be NULL): the inode's. */
int ns_lease(struct ns *ns, uint64_t ino, uint64_t off, unsigned flags, struct cache_lease *out,
             struct dfe_attr *attr);
/* *at (may be NULL): where the bytes went. */
ssize_t ns_write(struct ns *ns, uint64_t ino, uint64_t off, const void *src, size_t len,
                 unsigned flags, uint64_t *at);
int ns_punch(struct ns *ns, uint64_t ino, uint64_t off, uint64_t len, unsigned flags);
int ns_next(struct ns *ns, uint64_t ino, uint64_t off, enum obj_next what, uint64_t *out);
/* The file's data and attributes, and every name change before, are durable. (waits) */
int ns_fsync(struct ns *ns, uint64_t ino, unsigned flags);
/* Publishes all; durable with everything else. (waits) */
int ns_sync(struct ns *ns);

int ns_getxattr(struct ns *ns, uint64_t ino, const char *name, size_t name_len, void *value,
                size_t cap, unsigned flags); /* length; -ERANGE, cap 0 asks; -ENODATA */
int ns_setxattr(struct ns *ns, uint64_t ino, const char *name, size_t name_len, const void *value,
                size_t len, unsigned flags);
int ns_listxattr(struct ns *ns, uint64_t ino, char *names, size_t cap, unsigned flags);
int ns_removexattr(struct ns *ns, uint64_t ino, const char *name, size_t name_len, unsigned flags);

int ns_statfs(struct ns *ns, struct dfe_statfs *out);

/* Walks the tree: every entry has an inode, every inode its links, every file's data lies within
 * its size; with what obj_check finds. Returns the number of faults. (waits) */
int ns_check(struct ns *ns, bool data, obj_fault_fn fn,
             void (*progress)(uint64_t done, uint64_t total, void *arg), void *arg);

#endif
