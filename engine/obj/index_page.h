/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the index's B+tree with checks: LMDB believes its pages, and what a damaged one says is a
 * crash or, worse, that a key is absent. So pages are read here, from a mapping of our own, while
 * an LMDB read transaction pins them. FORMAT.md describes them.
 *
 * A page is used only if it is the page asked for, of the kind its level has, its nodes are within
 * it and fill it without gaps, and its keys ascend within the bounds that its parents give. Where a
 * key is not found at the edge of a leaf, the leaf beyond that edge is checked in the same way: a
 * damaged separator shows there. Values are the caller's to verify.
 */
#ifndef DFE_OBJ_INDEX_PAGE_H
#define DFE_OBJ_INDEX_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE_DEPTH_MOST 32 /* of LMDB's cursors */

struct pages {
    const uint8_t *map;
    uint64_t map_bytes;
    uint32_t page_bytes;
    _Atomic uint64_t *checked; /* a bit a page: its nodes have been checked since the last commit */
    uint64_t checked_bytes;
};

/* fd: data.mdb, whose meta pages are checked here: -EUCLEAN, -EPROTONOSUPPORT. */
int pages_open(int fd, struct pages *p);
void pages_close(struct pages *p);
/* After a commit: page numbers have new content. */
void pages_forget(struct pages *p);

struct page_key {
    const uint8_t *p;
    size_t len;
};

struct page_level {
    const uint8_t *page;
    unsigned at, n;
    struct page_key lo, hi; /* lo <= keys < hi; hi.p NULL: no bound */
};

struct page_cur {
    const struct pages *pages;
    uint64_t last_pgno;
    uint64_t *bad; /* not NULL: damaged pages are counted there and passed over */
    unsigned depth;
    struct page_level level[PAGE_DEPTH_MOST];
};

/* The tree as of LMDB's transaction `txnid`, which the caller has open for reading. -EAGAIN, or now
 * and then -EUCLEAN: later commits have overtaken it, begin again with a new transaction. */
int pages_begin(const struct pages *p, uint64_t txnid, uint64_t *bad, struct page_cur *cur);
/* First key >= the given one: 1 found, 0 none, -EUCLEAN. */
int pages_seek(struct page_cur *cur, const void *key, size_t klen);
int pages_next(struct page_cur *cur);
/* The entry before the one found by pages_seek (or the last one, where that found none). */
int pages_before(const struct page_cur *cur, struct page_cur *out);
/* Does the leaf that the cursor is at hold the key's place? */
bool pages_covers(const struct page_cur *cur, const void *key, size_t klen);
/* The value is within the file, or -EUCLEAN. */
int pages_entry(const struct page_cur *cur, struct page_key *key, struct page_key *val);

#endif
