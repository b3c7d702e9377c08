/* SPDX-License-Identifier: Apache-2.0 */
/* Checked reading of LMDB's pages (0.9, 64 bits, little-endian: FORMAT.md). */
#include "obj/index_page.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/words.h"
#include "obj/key.h"

#define MAP_MOST_BYTES (1ull << 40)
#define META_PAGES 2u
#define META_MAGIC 0xBEEFC0DEu
#define HEADER_BYTES 16u
#define NODE_BYTES 8u
#define NO_PAGE UINT64_MAX

enum { P_BRANCH = 1, P_LEAF = 2, P_OVERFLOW = 4, P_META = 8 };
enum { NODE_BIG = 1 };

/* Offsets in a meta page. */
enum {
    META_FLAGS = 10,
    META_MAGIC_AT = 16,
    META_VERSION = 20,
    META_PAGE_BYTES = 40,
    META_MAIN_FLAGS = 92,
    META_MAIN_DEPTH = 94,
    META_MAIN_ROOT = 128,
    META_LAST_PGNO = 136,
    META_TXNID = 144,
    META_BYTES = 152
};

static int page_bad(uint64_t pgno, const char *why)
{
    return base_fail(-EUCLEAN, "index: page %llu is damaged: %s", (unsigned long long)pgno, why);
}

/* -- meta pages -------------------------------------------------------------------------------- */

static int meta_check(const uint8_t *m, uint64_t pgno, uint64_t file_bytes, uint32_t *page_bytes)
{
    uint32_t page = get_le32(m + META_PAGE_BYTES);
    uint64_t root = get_le64(m + META_MAIN_ROOT), last = get_le64(m + META_LAST_PGNO);

    if (get_le32(m + META_MAGIC_AT) != META_MAGIC || !(get_le16(m + META_FLAGS) & P_META))
        return page_bad(pgno, "no meta page");
    if (get_le32(m + META_VERSION) != 1)
        return base_fail(-EPROTONOSUPPORT, "index: data.mdb is of another version of LMDB");
    if (page < 512 || page > 65536 || (page & (page - 1)))
        return page_bad(pgno, "impossible page size");
    if (*page_bytes && page != *page_bytes)
        return page_bad(pgno, "the meta pages disagree");
    if (last >= file_bytes / page)
        return page_bad(last, "beyond the end of data.mdb");
    if (get_le16(m + META_MAIN_FLAGS) || get_le16(m + META_MAIN_DEPTH) > PAGE_DEPTH_MOST ||
        (root != NO_PAGE && (root < META_PAGES || root > last)) ||
        (root == NO_PAGE) != (get_le16(m + META_MAIN_DEPTH) == 0))
        return page_bad(pgno, "impossible root");
    *page_bytes = page;
    return 0;
}

/* The file grows under the mapping: as much address space as the host gives. */
static int pages_map(struct pages *p, int fd, uint64_t file_bytes)
{
    void *map = MAP_FAILED;

    for (p->map_bytes = MAP_MOST_BYTES; map == MAP_FAILED; p->map_bytes /= 2) {
        map = mmap(NULL, p->map_bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
        if (map != MAP_FAILED)
            break;
        if (p->map_bytes <= file_bytes)
            return base_fail(-errno, "index: cannot map data.mdb: %s", strerror(errno));
    }
    p->map = map;
    p->checked_bytes = p->map_bytes / p->page_bytes / 8;
    map = mmap(NULL, p->checked_bytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return -ENOMEM;
    p->checked = map;
    return 0;
}

int pages_open(int fd, struct pages *p)
{
    uint8_t meta[META_BYTES];
    struct stat st;
    int err;

    memset(p, 0, sizeof(*p));
    if (fstat(fd, &st) < 0)
        return base_fail(-errno, "index: data.mdb: %s", strerror(errno));
    for (unsigned i = 0; i < META_PAGES; i++) {
        if (pread(fd, meta, sizeof(meta), (off_t)i * p->page_bytes) != (ssize_t)sizeof(meta))
            return page_bad(i, "missing");
        err = meta_check(meta, i, (uint64_t)st.st_size, &p->page_bytes);
        if (err)
            return err;
    }
    return pages_map(p, fd, (uint64_t)st.st_size);
}

void pages_close(struct pages *p)
{
    if (p->map)
        munmap((void *)(uintptr_t)p->map, p->map_bytes);
    if (p->checked)
        munmap((void *)p->checked, p->checked_bytes);
    p->map = NULL;
    p->checked = NULL;
}

void pages_forget(struct pages *p)
{
    /* Reads as zeros afterwards. A page that a reader is checking meanwhile is pinned by it. */
    (void)madvise((void *)p->checked, p->checked_bytes, MADV_DONTNEED);
}

/* -- one page ---------------------------------------------------------------------------------- */

static const uint8_t *node_at(const uint8_t *page, unsigned i)
{
    return page + get_le16(page + HEADER_BYTES + 2 * i);
}

static struct page_key node_key(const uint8_t *page, unsigned i)
{
    const uint8_t *n = node_at(page, i);

    return (struct page_key){n + NODE_BYTES, get_le16(n + 6)};
}

static uint64_t node_child(const uint8_t *n)
{
    return get_le16(n) | (uint64_t)get_le16(n + 2) << 16 | (uint64_t)get_le16(n + 4) << 32;
}

static uint32_t node_value_bytes(const uint8_t *n)
{
    return get_le16(n) | (uint32_t)get_le16(n + 2) << 16;
}

static int cmp(struct page_key a, struct page_key b)
{
    return key_cmp(a.p, a.len, b.p, b.len);
}

/* Bytes of the node at offset `at`, or 0 where it does not fit. */
static size_t node_size(const uint8_t *page, size_t at, size_t page_bytes, bool leaf)
{
    size_t size = NODE_BYTES;

    if (at + size > page_bytes)
        return 0;
    size += get_le16(page + at + 6);
    if (leaf)
        size += get_le16(page + at + 4) & NODE_BIG ? 8 : node_value_bytes(page + at);
    size = (size + 1) & ~(size_t)1;
    return at + size <= page_bytes ? size : 0;
}

/* Nodes within the page and without gaps; keys ascending within bounds. NULL, or what is wrong. */
static const char *nodes_check(const struct page_level *l, size_t page_bytes, bool leaf)
{
    size_t upper = get_le16(l->page + 14), sum = 0;
    struct page_key last = l->lo, key;

    for (unsigned i = 0; i < l->n; i++) {
        size_t at = get_le16(l->page + HEADER_BYTES + 2 * i);
        size_t size = at >= upper ? node_size(l->page, at, page_bytes, leaf) : 0;
        if (size == 0)
            return "node outside";
        sum += size;
        if (i == 0 && !leaf)
            continue; /* stands for everything below the second one */
        key = node_key(l->page, i);
        if (key.len == 0 || key.len > DFE_KEY_BYTES)
            return "key of a wrong length";
        if (cmp(key, last) < (i == 0 ? 0 : 1) && last.len)
            return "keys out of order";
        last = key;
    }
    if (l->hi.p && last.len && cmp(last, l->hi) >= 0)
        return "keys beyond their bounds";
    return sum == page_bytes - upper ? NULL : "gaps between nodes";
}

static int page_load(const struct page_cur *cur, unsigned depth, uint64_t pgno,
                     struct page_level *l)
{
    size_t size = cur->pages->page_bytes, lower, upper;
    bool leaf = depth + 1 == cur->depth;
    _Atomic uint64_t *checked;
    uint64_t bit = 1ull << (pgno % 64);
    const char *why;

    if (pgno < META_PAGES || pgno > cur->last_pgno)
        return page_bad(pgno, "there is none");
    checked = &cur->pages->checked[pgno / 64];
    l->page = cur->pages->map + pgno * size;
    lower = get_le16(l->page + 12);
    upper = get_le16(l->page + 14);
    if (get_le64(l->page) != pgno || get_le16(l->page + 10) != (leaf ? P_LEAF : P_BRANCH))
        return page_bad(pgno, "another page");
    if (lower < HEADER_BYTES + 2 || lower % 2 || lower > upper || upper > size)
        return page_bad(pgno, "impossible header");
    l->n = (unsigned)(lower - HEADER_BYTES) / 2;
    if (atomic_load_explicit(checked, memory_order_relaxed) & bit)
        return 0;
    why = nodes_check(l, size, leaf);
    if (why)
        return page_bad(pgno, why);
    atomic_fetch_or_explicit(checked, bit, memory_order_relaxed);
    return 0;
}

/* First place whose key is >= the given one. */
static unsigned page_search(const struct page_level *l, struct page_key key, bool leaf)
{
    unsigned lo = leaf ? 0 : 1, hi = l->n;

    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;
        if (cmp(node_key(l->page, mid), key) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* -- the tree ---------------------------------------------------------------------------------- */

int pages_begin(const struct pages *p, uint64_t txnid, uint64_t *bad, struct page_cur *cur)
{
    uint32_t page_bytes = p->page_bytes;
    uint8_t meta[META_BYTES];
    int err;

    memcpy(meta, p->map + (txnid & 1) * p->page_bytes, sizeof(meta));
    if (get_le64(meta + META_TXNID) != txnid)
        return -EAGAIN;
    err = meta_check(meta, txnid & 1, p->map_bytes, &page_bytes);
    if (err)
        return err;
    cur->pages = p;
    cur->bad = bad;
    cur->depth = get_le16(meta + META_MAIN_DEPTH);
    cur->last_pgno = get_le64(meta + META_LAST_PGNO);
    cur->level[0] = (struct page_level){0};
    return cur->depth ? page_load(cur, 0, get_le64(meta + META_MAIN_ROOT), &cur->level[0]) : 0;
}

/* Loads the child that level d's place leads to, with the bounds it must keep. */
static int child_load(struct page_cur *cur, unsigned d)
{
    const struct page_level *up = &cur->level[d];
    struct page_level *l = &cur->level[d + 1];

    l->lo = up->at ? node_key(up->page, up->at) : up->lo;
    l->hi = up->at + 1 < up->n ? node_key(up->page, up->at + 1) : up->hi;
    return page_load(cur, d + 1, node_child(node_at(up->page, up->at)), l);
}

/* From level d down to a leaf, at its first or last place. *failed: the level that could not be
 * loaded. */
static int descend(struct page_cur *cur, unsigned d, bool last, unsigned *failed)
{
    int err = 0;

    for (; d + 1 < cur->depth && err == 0; d++) {
        err = child_load(cur, d);
        *failed = d + 1;
        cur->level[d + 1].at = last && err == 0 ? cur->level[d + 1].n - 1 : 0;
    }
    return err;
}

/* From level d, whose page is left, to the next leaf, or the one before: 1, 0 none, -EUCLEAN. */
static int leaf_step(struct page_cur *cur, unsigned d, bool back)
{
    for (;;) {
        int err;
        while (d > 0 &&
               (back ? cur->level[d - 1].at == 0 : cur->level[d - 1].at + 1 == cur->level[d - 1].n))
            d--;
        if (d == 0)
            return 0;
        cur->level[d - 1].at += back ? -1u : 1u;
        err = descend(cur, d - 1, back, &d);
        if (err == 0)
            return 1;
        if (!cur->bad)
            return err;
        ++*cur->bad;
    }
}

/* At the end of a leaf: on to the next one. */
static int settle(struct page_cur *cur)
{
    struct page_level *leaf = &cur->level[cur->depth - 1];

    return leaf->at < leaf->n ? 1 : leaf_step(cur, cur->depth - 1, false);
}

int pages_seek(struct page_cur *cur, const void *key, size_t klen)
{
    struct page_key k = {key, klen};
    struct page_level *l = &cur->level[0];

    if (cur->depth == 0)
        return 0;
    for (unsigned d = 0; d + 1 < cur->depth; d++, l++) {
        unsigned at = page_search(l, k, false);
        int err;
        l->at = at < l->n && cmp(node_key(l->page, at), k) == 0 ? at : at - 1;
        err = child_load(cur, d);
        if (err && !cur->bad)
            return err;
        if (err) {
            ++*cur->bad;
            return leaf_step(cur, d + 1, false);
        }
    }
    l->at = page_search(l, k, true);
    return settle(cur);
}

int pages_next(struct page_cur *cur)
{
    cur->level[cur->depth - 1].at++;
    return settle(cur);
}

int pages_before(const struct page_cur *cur, struct page_cur *out)
{
    struct page_level *leaf;

    if (cur->depth == 0)
        return 0;
    *out = *cur;
    out->bad = NULL;
    leaf = &out->level[out->depth - 1];
    if (leaf->at == 0)
        return leaf_step(out, out->depth - 1, true);
    leaf->at--;
    return 1;
}

bool pages_covers(const struct page_cur *cur, const void *key, size_t klen)
{
    const struct page_level *leaf = &cur->level[cur->depth ? cur->depth - 1 : 0];
    struct page_key k = {key, klen};

    if (cur->depth == 0)
        return true;
    return cmp(leaf->lo, k) <= 0 && (!leaf->hi.p || cmp(k, leaf->hi) < 0);
}

int pages_entry(const struct page_cur *cur, struct page_key *key, struct page_key *val)
{
    const struct page_level *leaf = &cur->level[cur->depth - 1];
    const uint8_t *n = node_at(leaf->page, leaf->at), *big;
    size_t size = cur->pages->page_bytes;
    uint64_t pgno, pages;

    *key = node_key(leaf->page, leaf->at);
    *val = (struct page_key){key->p + key->len, node_value_bytes(n)};
    if (!(get_le16(n + 4) & NODE_BIG))
        return 0;
    pgno = get_le64(val->p);
    if (pgno < META_PAGES || pgno > cur->last_pgno)
        return page_bad(pgno, "there is none");
    big = cur->pages->map + pgno * size;
    pages = get_le32(big + 12);
    if (get_le64(big) != pgno || get_le16(big + 10) != P_OVERFLOW || pages == 0 ||
        pages > cur->last_pgno - pgno + 1 || val->len > pages * size - HEADER_BYTES)
        return page_bad(pgno, "not this value");
    val->p = big + HEADER_BYTES;
    return 0;
}
