/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arena of I/O buffers: memory that devices may reach and that does not move.
 *
 * The arena grows by extents of 8 MiB up to its bound: hugepages where there are any, else
 * transparent hugepages, else ordinary pages. A buffer is a power of two from 4 KiB to 1 MiB
 * and is aligned to its size. Any thread may call; a mutex inside is never held across a fault.
 */
#ifndef DFE_BUF_BUF_H
#define DFE_BUF_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sizes of buffers: powers of two between these. */
#define BUF_MIN_BYTES 4096u
#define BUF_MAX_BYTES (1u << 20)

struct buf_arena;

enum buf_kind { BUF_HUGE, BUF_THP, BUF_PAGES };

struct buf_info {
    uint64_t bound_bytes;  /* the arena may grow to this */
    uint64_t mapped_bytes; /* extents that exist now */
    uint64_t used_bytes;   /* in buffers handed out */
    uint64_t kind_bytes[3]; /* mapped, by enum buf_kind */
};

/* Best kind to try first; each extent falls back by itself. bound_bytes is rounded up to extents;
 * -EINVAL when it is 0 or no address range can be that long, -ENOMEM when the host refuses it. */
int buf_arena_open(uint64_t bound_bytes, enum buf_kind best, struct buf_arena **out);

/* All buffers must have been freed. */
void buf_arena_close(struct buf_arena *arena);

/* A buffer of at least len_bytes (1 byte to 1 MiB; rounded up to a power of two), contents
 * undefined. NULL when the bound is reached, the host has no memory or len_bytes is out of range.
 * The caller owns it until buf_free with the same len_bytes. An extent that becomes empty is given
 * back to the host, except one. */
void *buf_alloc(struct buf_arena *arena, size_t len_bytes);
void buf_free(struct buf_arena *arena, void *ptr, size_t len_bytes);

/* The same from memory of one read domain: an extent holds buffers of one domain only, for life,
 * and is a sealed memfd. Domain 0 is never shown to anybody; buf_alloc takes from it. */
void *buf_alloc_in(struct buf_arena *arena, uint32_t domain, size_t len_bytes);

/* Where a buffer is: an extent's number, its stamp (another one each time that number is mapped
 * anew) and the offset in it. domain 0: also where the host refused a memfd, or half of
 * RLIMIT_NOFILE was in use: an extent keeps a descriptor. */
struct buf_place {
    uint64_t stamp;
    uint32_t extent, off;
    uint32_t domain;
};
void buf_place(struct buf_arena *arena, const void *ptr, struct buf_place *out);
/* A descriptor of the extent's memory, sealed (FUTURE_WRITE, SHRINK, GROW, SEAL): whoever gets it
 * can only read. The caller closes it. -ESTALE: another stamp, gone; -EACCES: domain 0. */
int buf_extent_fd(struct buf_arena *arena, uint32_t extent, uint64_t stamp, uint32_t *domain);

void buf_arena_info(struct buf_arena *arena, struct buf_info *out);

/* The range that all extents of this arena lie in, now and later: reserved addresses, bound_bytes
 * long, an extent at each multiple of DFE_ARENA_EXTENT_BYTES from its start. */
void *buf_arena_base(const struct buf_arena *arena);

/* Calls fn for every extent mapped now, for each one mapped later before a buffer of it is handed
 * out, and (mapped false) for each one about to be given back (registration with a kernel ring or
 * a driver), until buf_arena_unwatch has returned. fn runs on the thread that allocates, frees or
 * watches, one call at a time; it must not call the arena. One watcher an arena; -EBUSY for a
 * second. */
typedef void (*buf_extent_fn)(void *arg, void *base, size_t len_bytes, enum buf_kind kind,
                              bool mapped);
int buf_arena_watch(struct buf_arena *arena, buf_extent_fn fn, void *arg);
void buf_arena_unwatch(struct buf_arena *arena);

#endif
