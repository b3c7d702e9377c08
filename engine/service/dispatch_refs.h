/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inodes that one handle of a session holds: how many references, and what the kernel of a
 * mount may have of each.
 *
 * A kernel holds pages, attributes and names of an inode only while it holds the inode, so both
 * live in one entry and end together. Any thread; a lock inside.
 */
#ifndef DFE_SERVICE_DISPATCH_REFS_H
#define DFE_SERVICE_DISPATCH_REFS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* What a kernel may have. */
enum {
    MARK_ATTR = 1,  /* attributes */
    MARK_PAGES = 2, /* pages */
    MARK_NAMES = 4, /* of a directory: names, and that others are absent */
    MARK_ALL = 7
};

/* A kernel holds the root as long as it is mounted, whatever is counted. */
#define REFS_ROOT_INO 1u

/* Inodes of one handle: the entries of a full table take 512 MiB. More is -ENFILE. */
#define REFS_BOUND (16u << 20)

struct refs_entry {
    uint64_t ino; /* 0: free */
    uint64_t count : 56;
    uint64_t marks : 8;
};

struct refs {
    pthread_mutex_t lock;
    struct refs_entry *entries;
    uint64_t mask;     /* entries - 1; 0: none yet */
    uint64_t used;
    uint64_t reserved; /* promised to calls under way */
    uint64_t bound;
};

void refs_open(struct refs *r, uint64_t bound);
/* Calls fn for each inode that is held, and forgets it. */
void refs_close(struct refs *r, void (*fn)(uint64_t ino, void *arg), void *arg);

/* Room for n more inodes, which refs_add cannot lack then; given back with refs_unreserve. */
int refs_reserve(struct refs *r, uint64_t n);
void refs_unreserve(struct refs *r, uint64_t n);
/* Of the caller's references to the engine's inode the table keeps one for all that it counts.
 * True: it had one, and the caller gives his back (count > 0). */
bool refs_add(struct refs *r, uint64_t ino, uint64_t count, unsigned marks);
/* Takes up to n away; true: they were the last, and the engine's is to be given back. */
bool refs_drop(struct refs *r, uint64_t ino, uint64_t n);

/* -ENFILE, -ENOMEM: no room for an inode that was not held. */
int refs_mark(struct refs *r, uint64_t ino, unsigned marks);
/* Those of the marks that were set; and takes them off. */
unsigned refs_marks(struct refs *r, uint64_t ino, unsigned marks);
unsigned refs_unmark(struct refs *r, uint64_t ino, unsigned marks);

#endif
