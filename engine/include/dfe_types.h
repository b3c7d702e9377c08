/* SPDX-License-Identifier: Apache-2.0 */
/* Structures of the public API that the engine's layers share, so that nothing is copied between
 * two spellings of the same thing. Plain C for cffi: no conditionals, no computed constants. */
#ifndef DFE_TYPES_H
#define DFE_TYPES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Inode attributes, as stat(2) has them. Times are nanoseconds since the epoch. */
struct dfe_attr {
    uint64_t ino;
    uint64_t size;      /* bytes */
    uint64_t used;      /* bytes allocated; st_blocks = used / 512 */
    uint64_t version;   /* data version: equal versions mean equal data */
    int64_t atime_ns, mtime_ns, ctime_ns, btime_ns;
    uint32_t mode;      /* type and permission bits */
    uint32_t nlink;
    uint32_t uid, gid;
    uint32_t rdev;      /* as makedev(3) made it */
    uint32_t blksize;   /* preferred I/O size, bytes */
    uint32_t flags;     /* DFE_ATTR_* */
    uint32_t reserved;
};

enum {
    DFE_ATTR_SHARED = 1 /* another face writes to it now: a cache keeps this for no time at all */
};

/* What a mount is to make its kernel forget, before and after another face changes it. */
struct dfe_inval {
    uint64_t id;        /* to be told as done */
    uint64_t ino;       /* the inode; of an entry: its directory */
    uint32_t what;      /* DFE_INVAL_* */
    uint32_t name_len;  /* of the entry */
    char name[256];
};
enum {
    DFE_INVAL_PAGES =
        1, /* the inode's pages (dirty ones of mmaps are written back) and attributes */
    DFE_INVAL_ATTR = 2, /* its attributes */
    DFE_INVAL_ENTRY = 3 /* a name in a directory, and that directory's attributes */
};

/* Which fields of a dfe_attr a setattr sets. */
enum {
    DFE_SET_MODE = 1,
    DFE_SET_UID = 2,
    DFE_SET_GID = 4,
    DFE_SET_SIZE = 8,
    DFE_SET_ATIME = 16,
    DFE_SET_MTIME = 32,
    DFE_SET_CTIME = 64
};

/* Who asks. The engine uses it for ownership of what is created; who may do what is decided by the
 * kernel's permission checks at the mount (default_permissions). */
struct dfe_cred {
    uint32_t uid, gid;
    uint32_t umask;
};

/* One record of a directory page: this header, then name_len bytes of name, padded to 8 bytes. */
struct dfe_dirent {
    struct dfe_attr attr; /* only ino and mode's type where attributes were not asked for */
    uint64_t cookie;      /* where to go on after this entry */
    uint32_t rec_len;     /* header, name and padding, bytes */
    uint32_t name_len;
};

struct dfe_statfs {
    uint64_t block_bytes;
    uint64_t blocks, blocks_free;
    uint64_t files, files_free;
    uint32_t name_max;
    uint32_t reserved;
};

/* Flags of file-system calls. */
enum {
    DFE_NOWAIT = 1,       /* -EINPROGRESS instead of blocking: repeat it on a thread that may */
    DFE_APPEND = 2,       /* write: at the end of the file */
    DFE_DATASYNC = 4,     /* fsync: data only */
    DFE_PLUS = 8,         /* readdir: with attributes */
    DFE_NOREPLACE = 16,   /* rename */
    DFE_EXCHANGE = 32,    /* rename */
    DFE_XATTR_CREATE = 64,
    DFE_XATTR_REPLACE = 128,
    DFE_REF = 256         /* lookup, create, readdir: take one reference on each inode returned */
};

#endif
