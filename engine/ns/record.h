/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Durable records of the namespace: keys, encoding and decoding. FORMAT.md ("Namespace") describes
 * the bytes. Nothing here keeps state; media is never trusted: a bad record is -EUCLEAN, logged.
 */
#ifndef DFE_NS_RECORD_H
#define DFE_NS_RECORD_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "obj/obj.h"

#define NSREC_VERSION 1u

/* Top byte of an object id's high word. The 24 bits below it are the shard of a large directory;
 * only shard 0 is written today. */
enum { NSREC_KIND_META = 1, NSREC_KIND_DIR = 2, NSREC_KIND_FILE = 3 };

/* META object, dkey 's'. */
struct nsrec_super {
    uint8_t version;
    uint8_t reserved[7];
    uint8_t hash_key[16]; /* of the names' SipHash */
    int64_t created_ns;   /* wall clock */
};
static_assert(sizeof(struct nsrec_super) == 32, "durable");

/* META object, dkey 'o' and the number: an inode without links that somebody still used. */
struct nsrec_orphan {
    uint8_t version;
    uint8_t reserved[7];
    uint64_t birth; /* directory whose object holds the inode's record */
};
static_assert(sizeof(struct nsrec_orphan) == 16, "durable");

/* DIR object, dkey 'e' and the cookie, akey the name. A tombstone has an empty akey and type 0. */
enum { NSREC_ENTRY_MORE = 1 }; /* a name of this or an earlier hash lives beyond this cookie */
struct nsrec_entry {
    uint8_t version;
    uint8_t type; /* (mode & S_IFMT) >> 12 */
    uint8_t flags;
    uint8_t reserved[5];
    uint64_t ino;
    uint64_t birth; /* directory whose object holds the inode's record; a directory's is itself */
};
static_assert(sizeof(struct nsrec_entry) == 24, "durable");

/* DIR object of the birth, dkey 'i' and the number, akey empty. The tail goes by type: regular file
 * nsrec_file, directory nsrec_dir, symbolic link the target's bytes, others nothing. */
enum {
    NSREC_INODE_ACL = 1,
    NSREC_INODE_DEFAULT_ACL = 2,
    NSREC_INODE_USED_UNSURE = 4 /* nsrec_file.used is an estimate */
};
struct nsrec_inode {
    uint8_t version;
    uint8_t flags;
    uint16_t nxattr; /* keys under dkey 'x' and the number */
    uint32_t mode, uid, gid;
    uint32_t nlink;
    uint32_t rdev;
    uint64_t size; /* bytes; of a directory: entries */
    int64_t mtime_ns, ctime_ns, atime_ns, btime_ns;
};
static_assert(sizeof(struct nsrec_inode) == 64, "durable");
static_assert(offsetof(struct nsrec_inode, btime_ns) == 56, "durable");

struct nsrec_file {
    uint64_t version; /* of the data */
    uint64_t used;    /* bytes allocated, whole blocks */
};
static_assert(sizeof(struct nsrec_file) == 16, "durable");

struct nsrec_dir {
    uint64_t parent;
};
static_assert(sizeof(struct nsrec_dir) == 8, "durable");

#define NSREC_INODE_MAX (sizeof(struct nsrec_inode) + DFE_SYMLINK_BYTES)

/* What an inode record says, in the host's words. */
struct ns_stat {
    uint32_t mode, uid, gid, rdev;
    uint32_t nlink;
    uint16_t nxattr;
    uint8_t flags;
    uint64_t size;
    int64_t mtime_ns, ctime_ns, atime_ns, btime_ns;
    union {
        struct {
            uint64_t version, used;
        };
        uint64_t parent;
    };
};

static inline struct obj_id nsrec_meta_id(void)
{
    return (struct obj_id){(uint64_t)NSREC_KIND_META << 56, 0};
}

static inline struct obj_id nsrec_dir_id(uint64_t ino)
{
    return (struct obj_id){(uint64_t)NSREC_KIND_DIR << 56, ino};
}

static inline struct obj_id nsrec_file_id(uint64_t ino)
{
    return (struct obj_id){(uint64_t)NSREC_KIND_FILE << 56, ino};
}

/* A key with its bytes: a letter and, but for 's' and 'n', a big-endian number. The akey is the
 * caller's memory. */
struct nsrec_key {
    struct obj_key key;
    uint8_t dkey[9];
};
void nsrec_key(struct nsrec_key *out, char letter, uint64_t number, const void *akey,
               size_t akey_len);
/* True where the key's dkey is `letter` and a number. */
bool nsrec_key_is(const struct obj_key *key, char letter, uint64_t *number);

/* Bytes written to buf (NSREC_INODE_MAX of them at most). */
size_t nsrec_inode_encode(void *buf, const struct ns_stat *st, const char *target,
                          size_t target_len);
/* *target points into buf, NULL for other types. */
int nsrec_inode_decode(uint64_t ino, const void *buf, size_t len, struct ns_stat *st,
                       const char **target);

void nsrec_entry_encode(struct nsrec_entry *out, uint64_t ino, uint64_t birth, uint8_t type,
                        uint8_t flags);
/* The record in the host's words. `dir` is for the log. */
int nsrec_entry_decode(uint64_t dir, const struct obj_key *key, const void *buf, size_t len,
                       struct nsrec_entry *out);

#endif
