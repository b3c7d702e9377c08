/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overlay: objects found by hash, each with a B+tree of its keys.
 *
 * Invariants:
 *   O1 entries and nodes are never removed: a deletion is a tombstone, memory goes with the overlay
 *   O2 all keys of a tree share its object's prefix; a leaf's keys ascend, and so do the leaves
 *   O3 an inner node's separator i is not above any key of child i and above all of child i - 1
 *   O4 an object is found in `hash`, or in `old` at `moved` or after it
 *   O5 after publication `order` never changes; a new object retires it (active overlay only)
 *
 * Nodes compare the 8 bytes after the prefix as one integer, so that a search touches few cache
 * lines: a key itself is looked at once, or where these bytes tie. The first leaf of an object
 * starts small, since most objects of a busy pool are files with one extent.
 */
#include "obj/overlay.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/words.h"
#include "obj/key.h"

#define FANOUT 32u
#define FIRST_LEAF 2u
#define HEIGHT_MAX 12u /* 16^12 keys at the least fill */
#define CHUNK_FIRST_BYTES (32u << 10)
#define CHUNK_BYTES ((size_t)2 << 20) /* one huge page, where there are any: fewer TLB misses */
#define PAGE_BYTES 4096u
#define HASH_FIRST 64u
#define HASH_MOVE 8u /* slots moved by one insertion; 2 would just do */

struct entry {
    uint32_t vlen, vcap; /* bytes */
    uint16_t klen;
    uint8_t state;
    uint8_t b[]; /* key, value */
};

struct node {
    struct node *next; /* leaves: in order */
    uint16_t n, cap;
    uint16_t height; /* 0: leaf */
    uint64_t pre[];  /* cap of them, then cap entries, then in inner nodes cap children */
};

struct object {
    struct node *root;
    uint32_t rank; /* place in `order` */
    uint8_t plen;
    uint8_t prefix[KEY_OBJ_BYTES];
};

struct slot {
    uint64_t hash;
    struct object *obj; /* NULL: empty */
};

struct chunk {
    struct chunk *next;
    bool mapped; /* CHUNK_BYTES from the kernel; else from the heap */
};

struct order {
    uint64_t n;
    struct object *obj[];
};

struct overlay {
    struct chunk *chunks;
    struct chunk *spare; /* ready to be used, or NULL */
    uint8_t *at, *end;   /* of the chunk in use */
    uint64_t bytes, keys, objects;
    struct slot *hash, *old; /* old: half as large, while its slots move to hash a few at a time */
    uint64_t hash_mask, hash_seed, moved;
    _Atomic(struct order *) order; /* NULL: not sorted */
};

/* A key on its way through a tree. */
struct probe {
    const uint8_t *key;
    size_t klen;
    unsigned plen;
    uint64_t pre;
};

/* -- memory ------------------------------------------------------------------------------------ */

/* From the kernel at once: giving back hundreds of them through the heap would stop other threads
 * that allocate. huge: worth its first touch. */
static struct chunk *chunk_map(bool huge)
{
    uint8_t *p = mmap(NULL, 2 * CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
    size_t before;

    if (p == MAP_FAILED)
        return NULL;
    before = -(uintptr_t)p % CHUNK_BYTES;
    if (before)
        munmap(p, before);
    munmap(p + before + CHUNK_BYTES, CHUNK_BYTES - before);
    p += before;
    (void)madvise(p, CHUNK_BYTES, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); /* may fail */
    return (struct chunk *)(void *)p;
}

static void chunk_unmap(struct chunk *c)
{
    if (c)
        munmap(c, CHUNK_BYTES);
}

static void *chunk_add(struct overlay *o, size_t bytes)
{
    struct chunk *c;
    bool mapped = bytes + sizeof(*c) == CHUNK_BYTES;

    if (mapped && o->spare) {
        c = o->spare;
        o->spare = NULL;
    } else {
        c = mapped ? chunk_map(false) : malloc(sizeof(*c) + bytes);
    }
    if (!c)
        return NULL;
    c->mapped = mapped;
    c->next = o->chunks;
    o->chunks = c;
    o->bytes += sizeof(*c) + bytes;
    return c + 1;
}

bool overlay_hungry(const struct overlay *o)
{
    return !o->spare && o->bytes > CHUNK_BYTES;
}

void *overlay_spare_make(void)
{
    struct chunk *c = chunk_map(true);

    for (size_t i = 0; c && i < CHUNK_BYTES; i += PAGE_BYTES)
        *((volatile uint8_t *)c + i) = 0;
    return c;
}

void overlay_spare_give(struct overlay *o, void *spare)
{
    DFE_ASSERT(!o->spare);
    o->spare = spare;
}

/* Makes the next `bytes` of take() certain. */
static int reserve(struct overlay *o, size_t bytes)
{
    size_t size = (o->chunks ? CHUNK_BYTES : CHUNK_FIRST_BYTES) - sizeof(struct chunk);
    uint8_t *p;

    if ((size_t)(o->end - o->at) >= bytes)
        return 0;
    p = chunk_add(o, size);
    if (!p)
        return -ENOMEM;
    o->at = p;
    o->end = p + size;
    return 0;
}

static void *take(struct overlay *o, size_t bytes)
{
    void *p = o->at;

    bytes = (bytes + 7) & ~(size_t)7;
    DFE_ASSERT((size_t)(o->end - o->at) >= bytes);
    o->at += bytes;
    return p;
}

static struct entry *entry_make(struct overlay *o, const struct probe *q, size_t vlen, size_t vcap)
{
    size_t bytes = (sizeof(struct entry) + q->klen + vcap + 7) & ~(size_t)7;
    struct entry *e;

    if (bytes > CHUNK_FIRST_BYTES / 4) {
        e = chunk_add(o, bytes);
        if (!e)
            return NULL;
    } else {
        if (reserve(o, bytes))
            return NULL;
        e = take(o, bytes);
    }
    e->klen = (uint16_t)q->klen;
    e->vlen = (uint32_t)vlen;
    e->vcap = (uint32_t)vcap;
    memcpy(e->b, q->key, q->klen);
    return e;
}

static size_t node_bytes(unsigned cap, unsigned height)
{
    return sizeof(struct node) + cap * (sizeof(uint64_t) + sizeof(void *) * (height ? 2 : 1));
}

static struct node *node_make(struct overlay *o, unsigned cap, unsigned height)
{
    struct node *n = take(o, node_bytes(cap, height));

    n->next = NULL;
    n->n = 0;
    n->cap = (uint16_t)cap;
    n->height = (uint16_t)height;
    return n;
}

static inline struct entry **entries(const struct node *n)
{
    return (struct entry **)(uintptr_t)(n->pre + n->cap);
}

static inline struct node **children(const struct node *n)
{
    return (struct node **)(entries(n) + n->cap);
}

/* -- objects by hash --------------------------------------------------------------------------- */

/* Object tables: table, container and id. The pool's tables: the first byte. */
static unsigned prefix_len(const uint8_t *key, size_t klen)
{
    unsigned most = klen && key[0] < KEY_KV ? 1 : KEY_OBJ_BYTES;

    return klen < most ? (unsigned)klen : most;
}

/* Both halves of the product: high bytes (ids are big-endian) must reach the low bits. */
static uint64_t mix(uint64_t h, uint64_t v)
{
    unsigned __int128 p = (unsigned __int128)(h ^ v) * 0x9E3779B97F4A7C15ull;

    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static uint64_t hash_prefix(const struct overlay *o, const uint8_t *p, unsigned len)
{
    uint64_t h = o->hash_seed;

    if (len == KEY_OBJ_BYTES) {
        h = mix(h, ((uint64_t)p[0] << 32) | get_le32(p + 1));
        return mix(mix(h, get_le64(p + 5)), get_le64(p + 13));
    }
    for (unsigned i = 0; i < len; i++)
        h = mix(h, p[i]);
    return h;
}

static struct slot *table_make(uint64_t slots)
{
    void *p;

    if (slots * sizeof(struct slot) < CHUNK_BYTES)
        return calloc(slots, sizeof(struct slot));
    /* the heap would clear used memory at once, the kernel does it page by page */
    p = mmap(NULL, slots * sizeof(struct slot), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void table_free(struct slot *table, uint64_t slots)
{
    if (slots * sizeof(struct slot) < CHUNK_BYTES)
        free(table);
    else
        munmap(table, slots * sizeof(struct slot));
}

static struct object *table_find(const struct slot *table, uint64_t mask, const uint8_t *prefix,
                                 unsigned len, uint64_t hash)
{
    for (uint64_t i = hash & mask;; i = (i + 1) & mask) {
        struct object *obj = table[i].obj;
        if (!obj)
            return NULL;
        if (table[i].hash == hash && obj->plen == len && memcmp(obj->prefix, prefix, len) == 0)
            return obj;
    }
}

static struct object *object_find(const struct overlay *o, const uint8_t *prefix, unsigned len,
                                  uint64_t hash)
{
    struct object *obj = table_find(o->hash, o->hash_mask, prefix, len, hash);

    return obj || !o->old ? obj : table_find(o->old, o->hash_mask / 2, prefix, len, hash);
}

static void hash_insert(struct slot *table, uint64_t mask, uint64_t hash, struct object *obj)
{
    uint64_t i = hash & mask;

    while (table[i].obj)
        i = (i + 1) & mask;
    table[i] = (struct slot){hash, obj};
}

/* All at once would stop everybody for 8 ms at 200,000 objects. What has moved stays in the old
 * table too: chains lead through it. */
static void hash_move_some(struct overlay *o)
{
    uint64_t slots = (o->hash_mask + 1) / 2;

    for (unsigned n = 0; n < HASH_MOVE && o->moved < slots; n++) {
        const struct slot *s = &o->old[o->moved++];
        if (s->obj)
            hash_insert(o->hash, o->hash_mask, s->hash, s->obj);
    }
    if (o->moved < slots)
        return;
    table_free(o->old, slots);
    o->old = NULL;
    o->bytes -= slots * sizeof(*o->old);
}

/* Keeps a quarter of the table empty. */
static int hash_room(struct overlay *o)
{
    uint64_t slots = o->hash_mask + 1;
    struct slot *bigger;

    if (o->old)
        hash_move_some(o);
    if ((o->objects + 1) * 4 <= slots * 3)
        return 0;
    DFE_ASSERT(!o->old);
    bigger = table_make(slots * 2);
    if (!bigger)
        return -ENOMEM;
    o->old = o->hash;
    o->moved = 0;
    o->hash = bigger;
    o->hash_mask = slots * 2 - 1;
    o->bytes += 2 * slots * sizeof(*bigger);
    return 0;
}

static void order_retire(struct overlay *o)
{
    free(atomic_exchange_explicit(&o->order, NULL, memory_order_relaxed));
}

/* An object with one key. */
static int object_make(struct overlay *o, const struct probe *q, uint64_t hash, struct entry *e)
{
    struct object *obj;

    if (hash_room(o) || reserve(o, sizeof(*obj) + 8 + node_bytes(FIRST_LEAF, 0)))
        return -ENOMEM;
    obj = take(o, sizeof(*obj));
    obj->plen = (uint8_t)q->plen;
    memcpy(obj->prefix, q->key, q->plen);
    obj->root = node_make(o, FIRST_LEAF, 0);
    obj->root->n = 1;
    obj->root->pre[0] = q->pre;
    entries(obj->root)[0] = e;
    hash_insert(o->hash, o->hash_mask, hash, obj);
    o->objects++;
    order_retire(o);
    return 0;
}

/* -- one object's tree ------------------------------------------------------------------------- */

static struct probe probe_make(const void *key, size_t klen)
{
    struct probe q = {.key = key, .klen = klen, .plen = prefix_len(key, klen)};
    uint8_t b[8] = {0};
    size_t rest = klen - q.plen;

    if (rest >= 8) {
        q.pre = get_be64(q.key + q.plen);
    } else if (rest) {
        memcpy(b, q.key + q.plen, rest);
        q.pre = get_be64(b);
    }
    return q;
}

static int probe_cmp(const struct probe *q, uint64_t pre, const struct entry *e)
{
    if (q->pre != pre)
        return q->pre < pre ? -1 : 1;
    return key_cmp(q->key + q->plen, q->klen - q->plen, e->b + q->plen, e->klen - q->plen);
}

/* First place whose key is >= the probe's; *equal: it is the probe's. */
static unsigned node_search(const struct node *n, const struct probe *q, bool *equal)
{
    unsigned at = 0, len = n->n;
    int c;

    for (unsigned i = 8; i < len; i += 8) { /* all at once, not one after the other */
        __builtin_prefetch(n->pre + i);
        __builtin_prefetch(entries(n) + i);
    }
    /* Without branches on what is compared: the processor's guess would be wrong half the time. */
    while (len > 1) {
        unsigned half = len / 2;
        at += n->pre[at + half - 1] < q->pre ? half : 0;
        len -= half;
    }
    at += len && n->pre[at] < q->pre;
    *equal = false;
    for (; at < n->n && n->pre[at] == q->pre; at++) {
        c = probe_cmp(q, n->pre[at], entries(n)[at]);
        if (c <= 0) {
            *equal = c == 0;
            break;
        }
    }
    return at;
}

/* The child that may hold the probe. */
static unsigned child_search(const struct node *n, const struct probe *q)
{
    bool equal;
    unsigned at = node_search(n, q, &equal);

    return equal || at == 0 ? at : at - 1;
}

static struct node *leaf_find(const struct object *obj, const struct probe *q)
{
    struct node *n = obj->root;

    while (n->height)
        n = children(n)[child_search(n, q)];
    return n;
}

static void node_insert(struct node *n, unsigned at, uint64_t pre, struct entry *e,
                        struct node *child)
{
    size_t rest = n->n - at;

    memmove(n->pre + at + 1, n->pre + at, rest * sizeof(n->pre[0]));
    memmove(entries(n) + at + 1, entries(n) + at, rest * sizeof(e));
    n->pre[at] = pre;
    entries(n)[at] = e;
    if (n->height) {
        memmove(children(n) + at + 1, children(n) + at, rest * sizeof(child));
        children(n)[at] = child;
    }
    n->n++;
}

static void node_move(struct node *to, struct node *from, unsigned at)
{
    to->n = (uint16_t)(from->n - at);
    memcpy(to->pre, from->pre + at, to->n * sizeof(to->pre[0]));
    memcpy(entries(to), entries(from) + at, to->n * sizeof(struct entry *));
    if (from->height)
        memcpy(children(to), children(from) + at, to->n * sizeof(struct node *));
    from->n = (uint16_t)at;
}

/* The full node's upper part goes to a new node on its right. Keys that come in order leave full
 * nodes behind. */
static struct node *node_split(struct overlay *o, struct node *n, unsigned insert_at)
{
    struct node *right = node_make(o, FANOUT, n->height);

    node_move(right, n, insert_at == n->n ? n->n - 1u : n->n / 2u);
    right->next = n->next;
    n->next = right;
    return right;
}

static int leaf_grow(struct overlay *o, struct object *obj)
{
    struct node *old = obj->root, *n;
    unsigned cap = old->cap * 4u < FANOUT ? old->cap * 4u : FANOUT;

    if (reserve(o, node_bytes(cap, 0)))
        return -ENOMEM;
    n = node_make(o, cap, 0);
    node_move(n, old, 0);
    obj->root = n;
    return 0;
}

/* Puts a new key in: down with the path noted, up with splits. Memory is reserved before anything
 * changes. */
static int tree_insert(struct overlay *o, struct object *obj, const struct probe *q,
                       struct entry *e)
{
    struct node *path[HEIGHT_MAX], *n, *child = NULL, *right;
    unsigned at[HEIGHT_MAX], h = 0;
    uint64_t pre = q->pre;
    bool equal;

    if (obj->root->height == 0 && obj->root->n == obj->root->cap && obj->root->cap < FANOUT &&
        leaf_grow(o, obj))
        return -ENOMEM;
    for (n = obj->root; n->height; n = children(n)[at[h++]]) {
        DFE_ASSERT(h < HEIGHT_MAX - 1);
        path[h] = n;
        at[h] = child_search(n, q);
    }
    path[h] = n;
    at[h] = node_search(n, q, &equal);
    DFE_ASSERT(!equal);
    if (n->n == n->cap && reserve(o, (h + 2) * node_bytes(FANOUT, 1)))
        return -ENOMEM;
    for (unsigned i = 0; i < h; i++)
        if (probe_cmp(q, path[i]->pre[0], entries(path[i])[0]) < 0) { /* O3: the least key so far */
            path[i]->pre[0] = q->pre;
            entries(path[i])[0] = e;
        }
    for (;;) {
        n = path[h];
        if (n->n < n->cap) {
            node_insert(n, at[h], pre, e, child);
            return 0;
        }
        right = node_split(o, n, at[h]);
        if (at[h] <= n->n)
            node_insert(n, at[h], pre, e, child);
        else
            node_insert(right, at[h] - n->n, pre, e, child);
        pre = right->pre[0];
        e = entries(right)[0];
        child = right;
        if (h == 0)
            break;
        h--;
        at[h]++; /* right of the child that was split */
    }
    n = node_make(o, FANOUT, path[0]->height + 1u);
    node_insert(n, 0, path[0]->pre[0], entries(path[0])[0], path[0]);
    node_insert(n, 1, pre, e, child);
    obj->root = n;
    return 0;
}

/* -- the interface ----------------------------------------------------------------------------- */

int overlay_open(struct overlay **out)
{
    struct overlay *o = calloc(1, sizeof(*o));

    if (!o)
        return -ENOMEM;
    o->hash = table_make(HASH_FIRST);
    if (!o->hash) {
        free(o);
        return -ENOMEM;
    }
    o->hash_mask = HASH_FIRST - 1;
    o->hash_seed = mix(base_mono_ns(), (uintptr_t)o);
    o->bytes = HASH_FIRST * sizeof(*o->hash);
    *out = o;
    return 0;
}

void overlay_close(struct overlay *o)
{
    struct chunk *next;

    if (!o)
        return;
    for (struct chunk *c = o->chunks; c; c = next) {
        next = c->next;
        if (c->mapped)
            chunk_unmap(c);
        else
            free(c);
    }
    chunk_unmap(o->spare);
    order_retire(o);
    table_free(o->hash, o->hash_mask + 1);
    if (o->old)
        table_free(o->old, (o->hash_mask + 1) / 2);
    free(o);
}

static int change(struct overlay *o, const struct probe *q, enum overlay_state state,
                  const void *val, size_t vlen)
{
    uint64_t hash = hash_prefix(o, q->key, q->plen);
    struct object *obj = object_find(o, q->key, q->plen, hash);
    struct entry **place = NULL, *e;
    int err;

    if (obj) {
        bool equal;
        struct node *leaf = leaf_find(obj, q);
        unsigned at = node_search(leaf, q, &equal);
        if (equal)
            place = &entries(leaf)[at];
    }
    if (place && vlen <= (*place)->vcap) {
        e = *place;
        e->vlen = (uint32_t)vlen;
    } else {
        /* A value that has grown once will grow again. */
        e = entry_make(o, q, vlen, place ? vlen + vlen / 2 : vlen);
        if (!e)
            return -ENOMEM;
    }
    e->state = (uint8_t)state;
    if (vlen)
        memmove(e->b + e->klen, val, vlen);
    if (place) {
        *place = e;
        return 0;
    }
    err = obj ? tree_insert(o, obj, q, e) : object_make(o, q, hash, e);
    if (err == 0)
        o->keys++;
    return err;
}

int overlay_put(struct overlay *o, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct probe q = probe_make(key, klen);

    if (klen > DFE_KEY_BYTES || vlen > UINT32_MAX / 2)
        return -EINVAL;
    return change(o, &q, OVERLAY_VALUE, val, vlen);
}

int overlay_del(struct overlay *o, const void *key, size_t klen)
{
    struct probe q = probe_make(key, klen);

    return klen > DFE_KEY_BYTES ? -EINVAL : change(o, &q, OVERLAY_TOMB, NULL, 0);
}

enum overlay_state overlay_get(const struct overlay *o, const void *key, size_t klen,
                               const void **val, size_t *vlen)
{
    struct probe q = probe_make(key, klen);
    struct object *obj = object_find(o, q.key, q.plen, hash_prefix(o, q.key, q.plen));
    struct node *leaf;
    struct entry *e;
    unsigned at;
    bool equal;

    if (!obj)
        return OVERLAY_NONE;
    leaf = leaf_find(obj, &q);
    at = node_search(leaf, &q, &equal);
    if (!equal)
        return OVERLAY_NONE;
    e = entries(leaf)[at];
    if (e->state == OVERLAY_VALUE) {
        *val = e->b + e->klen;
        *vlen = e->vlen;
    }
    return e->state;
}

static int cur_set(struct overlay_cur *cur, struct object *obj, struct node *leaf, unsigned at)
{
    struct entry *e = entries(leaf)[at];

    cur->key = e->b;
    cur->klen = e->klen;
    cur->val = e->b + e->klen;
    cur->vlen = e->vlen;
    cur->state = e->state;
    cur->pos[0] = obj;
    cur->pos[1] = leaf;
    cur->slot = at;
    return 1;
}

static int cur_first(struct overlay_cur *cur, struct object *obj)
{
    struct node *n = obj->root;

    while (n->height)
        n = children(n)[0];
    return cur_set(cur, obj, n, 0);
}

/* First object of the order whose prefix is above the given one. */
static struct object *object_after(const struct order *order, const uint8_t *prefix, unsigned len)
{
    uint64_t lo = 0, hi = order->n;

    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        struct object *obj = order->obj[mid];
        if (key_cmp(obj->prefix, obj->plen, prefix, len) <= 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < order->n ? order->obj[lo] : NULL;
}

int overlay_seek(const struct overlay *o, const void *key, size_t klen, struct overlay_cur *cur)
{
    struct order *order = atomic_load_explicit(&o->order, memory_order_acquire);
    struct probe q = probe_make(key, klen);
    struct object *obj = object_find(o, q.key, q.plen, hash_prefix(o, q.key, q.plen));
    struct node *leaf;
    unsigned at;
    bool equal;

    if (obj) {
        leaf = leaf_find(obj, &q);
        at = node_search(leaf, &q, &equal);
        if (at == leaf->n) {
            leaf = leaf->next;
            at = 0;
        }
        if (leaf)
            return cur_set(cur, obj, leaf, at);
    }
    obj = order ? object_after(order, q.key, q.plen) : NULL;
    return obj ? cur_first(cur, obj) : 0;
}

int overlay_next(const struct overlay *o, struct overlay_cur *cur)
{
    struct object *obj = cur->pos[0];
    struct node *leaf = cur->pos[1];
    struct order *order;

    if (cur->slot + 1 < leaf->n)
        return cur_set(cur, obj, leaf, cur->slot + 1);
    if (leaf->next)
        return cur_set(cur, obj, leaf->next, 0);
    order = atomic_load_explicit(&o->order, memory_order_acquire);
    if (!order || obj->rank + 1ull >= order->n)
        return 0;
    return cur_first(cur, order->obj[obj->rank + 1ull]);
}

uint64_t overlay_keys(const struct overlay *o)
{
    return o->keys;
}

uint64_t overlay_bytes(const struct overlay *o)
{
    return o->bytes - (uint64_t)(o->end - o->at);
}

static int object_cmp(const void *a, const void *b)
{
    const struct object *x = *(struct object *const *)a, *y = *(struct object *const *)b;

    return key_cmp(x->prefix, x->plen, y->prefix, y->plen);
}

int overlay_sort(struct overlay *o)
{
    struct order *order;

    if (atomic_load_explicit(&o->order, memory_order_relaxed))
        return 0;
    order = malloc(sizeof(*order) + o->objects * sizeof(order->obj[0]));
    if (!order)
        return -ENOMEM;
    order->n = 0;
    for (uint64_t i = 0; i <= o->hash_mask; i++)
        if (o->hash[i].obj)
            order->obj[order->n++] = o->hash[i].obj;
    for (uint64_t i = o->moved; o->old && i <= o->hash_mask / 2; i++)
        if (o->old[i].obj)
            order->obj[order->n++] = o->old[i].obj;
    DFE_ASSERT(order->n == o->objects);
    qsort(order->obj, order->n, sizeof(order->obj[0]), object_cmp);
    for (uint64_t i = 0; i < order->n; i++)
        order->obj[i]->rank = (uint32_t)i;
    atomic_store_explicit(&o->order, order, memory_order_release);
    return 0;
}
