/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that other processes may read and nobody else may write: sealed memfds, and the two tables
 * that say what a reader saw (PROTOCOL.md; the argument is in cache/lease.c).
 *
 * One machine, one byte order: words are the host's. Fixed widths, explicit padding.
 */
#ifndef DFE_BASE_WINDOW_H
#define DFE_BASE_WINDOW_H

#include <stddef.h>
#include <stdint.h>

/* Guards a run of bytes of the arena. Generations come from one counter, so that no value is ever
 * seen twice in a line; odd while what the line guards changes. */
struct proto_line {
    uint64_t gen;
    uint32_t alive;   /* line 0, which guards nothing: the worker's thread, or WINDOW_DEAD */
    uint8_t reserved[52];
};
_Static_assert(sizeof(struct proto_line) == 64, "one cache line");

struct proto_record { /* a file's attributes of the data stream */
    uint64_t gen;     /* odd while it changes */
    uint64_t ino;     /* 0: nobody's */
    uint64_t size;
    uint64_t version;
    int64_t mtime_ns;
    uint32_t cont;    /* number of the container */
    uint8_t reserved[20];
};
_Static_assert(sizeof(struct proto_record) == 64, "one cache line");

/* Set by the kernel when the worker dies, before the pool can be anybody else's: what was read by a
 * lease counts only if this is not set after the copy. */
#define WINDOW_DEAD 0x40000000u

/* Lines and records of a service, each; pages that are not used cost nothing. */
#define WINDOW_TABLE 65536u

/* Kinds of pages to ask the host for. */
enum { WINDOW_PAGES = 0, WINDOW_HUGE = 1 };

/* A memfd of that length, mapped for reading and writing at `at` (NULL: anywhere) and then sealed
 * (FUTURE_WRITE, SHRINK, GROW, SEAL): this mapping is the only one that can ever be written to.
 * Returns the descriptor, or a negative errno; *mem is the mapping, zeros. */
int window_make(const char *name, size_t bytes, unsigned pages, void *at, void **mem);

/* A memfd mapped for reading and writing at `at` (NULL: anywhere), in place of what is mapped
 * there, which stays where that fails: a MAP_FIXED that fails by itself, as without hugepages,
 * leaves a hole, and in it goes what another thread maps at that moment. MAP_FAILED: see errno. */
void *window_map(int fd, size_t bytes, void *at);

/* Another descriptor of it, for somebody else: read-only where /proc is mounted, and sealed
 * anyway. The caller closes it. */
int window_share(int fd);

#endif
