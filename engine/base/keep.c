/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept memory: two rings of records and two tables, in shared memory (meaning: keep.h).
 *
 * Shared is only what a successor needs; locks and cursors are this process's own. Positions are
 * bytes of a ring's endless stream and never wrap; a record's number is its position.
 *
 * Invariants, at every instruction
 *  K1  Between a ring's tail and head lie whole records one after another, each with its own number
 *      and its length: heads are written before the ring's head moves over them, and tail moves
 *      only from one record to a later one.
 *  K2  A record counts if its state has KEPT_VALID and not KEPT_RETIRED. One release store, after
 *      the bytes, makes it count; one store ends it. A successor sees either all of a dead writer's
 *      stores to shared memory that came before the one that it sees, or the store not at all:
 *      processors make stores visible in program order to whoever comes after the process's death
 *      (exit and fork order everything), so that the release is for the compiler and for threads.
 *  K3  A tag is found as long as its request has not been answered: in a record that is not
 *      retired, or in the table of done requests, where it is put before its record is retired.
 *  K4  An entry of a table counts if its stamp is not 0; that is stored last, and cleared first.
 */
#include "base/keep.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/assert.h"
#include "base/log.h"

#define KEEP_MAGIC 0x3150454B45464444ull /* "DDFEKEP1" */
#define LOG_MIN_BYTES (16u << 20)
#define ALIGN_BYTES 64u
#define PAGE_BYTES 4096u

/* Tables: buckets of entries, so that nothing moves when one goes. */
#define BUCKET 8u
#define DONE_BUCKETS 2048u   /* 16,384 requests: more than credits allow */
#define HOME_BUCKETS 131072u /* 1,048,576 inodes, 32 MiB where they are all used */
/* Tags of this process whose thread has gone on to another one, by name: direct-mapped. */
#define LEFT_SLOTS 1024u
#define RETIRE_STEP 64u /* records retired under one hold of the lock */
#define CHAIN_STEP 32u  /* the same, where each is looked at beforehand */

enum { KEPT_VALID = 1, KEPT_RETIRED = 2, KEPT_TAGGED = 4 };

/* Before each record's bytes. */
struct kept {
    uint64_t number;        /* of this record: its position */
    uint64_t len;           /* bytes that follow, before padding */
    _Atomic uint32_t state; /* KEPT_* */
    uint32_t reserved;
    uint64_t session, seq; /* with KEPT_TAGGED */
    uint64_t value;
    /* this process's own */
    uint64_t mark;
    uint64_t next;
};
_Static_assert(sizeof(struct kept) == ALIGN_BYTES, "shared between workers");
_Static_assert(sizeof(_Atomic uint32_t) == 4 && sizeof(_Atomic uint64_t) == 8, "no hidden lock");

struct ring_shared {
    uint64_t at, bytes; /* in the memory */
    uint8_t reserved[48];
    _Atomic uint64_t head;
    uint8_t reserved2[56];
    _Atomic uint64_t tail;
    uint8_t reserved3[56];
};
_Static_assert(sizeof(struct ring_shared) == 192, "shared between workers");

struct entry {
    uint64_t a, b, value;
    _Atomic uint64_t stamp; /* 0: free; larger is younger */
};
_Static_assert(sizeof(struct entry) == 32, "shared between workers");

struct shared {
    uint64_t magic, bytes;
    uint64_t done_at, done_buckets, home_at, home_buckets;
    uint8_t reserved[16];
    _Atomic uint64_t note[KEEP_NOTES];
    struct ring_shared ring[KEEP_LOGS];
};
_Static_assert(sizeof(struct shared) == 512, "shared between workers");

struct ring {
    pthread_mutex_t lock;
    struct ring_shared *s;
    uint8_t *mem;
    uint64_t bytes;
    uint64_t opened;  /* head when this process came */
    uint64_t retired; /* keep_retire_upto has got here */
};

struct table {
    struct entry *e;
    uint64_t mask; /* of buckets */
};

struct left {
    uint64_t session, seq;
    enum keep_log log;
    int64_t number;
};

struct keep {
    struct shared *s;
    struct ring ring[KEEP_LOGS];
    pthread_mutex_t lock; /* tables; below a ring's */
    struct table done, home;
    const struct keep_tables *tables;
    uint64_t stamp;
    struct left left[LEFT_SLOTS];
};

/* What this thread works for. */
static _Thread_local struct {
    struct keep *keep; /* NULL: for nobody */
    uint64_t session, seq, value;
    int64_t number; /* the record that carries the tag; 0: none yet */
    enum keep_log log;
    unsigned paused;
    unsigned parts;
    bool entered; /* an earlier record's tag has become an entry */
} tag;

/* -- layout ---------------------------------------------------------------------------------- */

static uint64_t up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static uint64_t table_bytes(uint64_t buckets)
{
    return buckets * BUCKET * sizeof(struct entry);
}

size_t keep_bytes(size_t tx_bytes, size_t data_bytes)
{
    return PAGE_BYTES + table_bytes(DONE_BUCKETS) + table_bytes(HOME_BUCKETS) +
           up(tx_bytes, PAGE_BYTES) + up(data_bytes, PAGE_BYTES);
}

int keep_format(void *mem, size_t bytes, size_t tx_bytes, size_t data_bytes)
{
    size_t want[KEEP_LOGS] = {up(tx_bytes, PAGE_BYTES), up(data_bytes, PAGE_BYTES)};
    struct shared *s = mem;
    uint64_t at = PAGE_BYTES;

    if ((uintptr_t)mem % PAGE_BYTES || tx_bytes < LOG_MIN_BYTES || data_bytes < LOG_MIN_BYTES ||
        bytes < keep_bytes(tx_bytes, data_bytes))
        return -EINVAL;
    memset(s, 0, sizeof(*s));
    s->done_at = at;
    s->done_buckets = DONE_BUCKETS;
    at += table_bytes(DONE_BUCKETS);
    s->home_at = at;
    s->home_buckets = HOME_BUCKETS;
    at += table_bytes(HOME_BUCKETS);
    for (unsigned i = 0; i < KEEP_LOGS; i++) {
        s->ring[i].at = at;
        s->ring[i].bytes = want[i];
        s->ring[i].head = s->ring[i].tail = want[i]; /* so that no number is 0 */
        at += want[i];
    }
    s->bytes = bytes;
    s->magic = KEEP_MAGIC;
    return 0;
}

static struct kept *kept_at(const struct ring *r, uint64_t pos)
{
    return (struct kept *)(r->mem + pos % r->bytes);
}

static uint64_t kept_bytes(const struct kept *k)
{
    return sizeof(*k) + up(k->len, ALIGN_BYTES);
}

/* -- copies ---------------------------------------------------------------------------------- */

#define STREAM_MIN_BYTES 1024u
/* A ring that becomes empty begins anew: its first bytes are worth the processor's cache. */
#define CACHED_BYTES (2u << 20)

#ifdef __SSE2__
/* Whole lines; how many bytes that were. Such stores are ordered with no others, so a fence ends
 * them (K2). */
static size_t copy_lines(uint8_t *to, const uint8_t *from, size_t len)
{
    size_t done = 0;

    for (; done + ALIGN_BYTES <= len; done += ALIGN_BYTES) {
        const __m128i *s = (const __m128i *)(from + done);
        __m128i *d = (__m128i *)(to + done);
        __m128i a = _mm_loadu_si128(s), b = _mm_loadu_si128(s + 1), c = _mm_loadu_si128(s + 2),
                e = _mm_loadu_si128(s + 3);
        _mm_stream_si128(d, a);
        _mm_stream_si128(d + 1, b);
        _mm_stream_si128(d + 2, c);
        _mm_stream_si128(d + 3, e);
    }
    _mm_sfence();
    return done;
}
#else
static size_t copy_lines(uint8_t *to, const uint8_t *from, size_t len)
{
    memcpy(to, from, len);
    return len;
}
#endif

void keep_copy(struct keep *keep, enum keep_log log, int64_t number, void *to, const void *from,
               size_t len)
{
    uint64_t tail = atomic_load_explicit(&keep->ring[log].s->tail, memory_order_relaxed);
    bool cold = (uint64_t)number - tail > CACHED_BYTES && len >= STREAM_MIN_BYTES;
    size_t done = cold ? copy_lines(to, from, len) : 0;

    if (done < len)
        memcpy((uint8_t *)to + done, (const uint8_t *)from + done, len - done);
}

/* -- tables ---------------------------------------------------------------------------------- */

static struct entry *bucket(const struct table *t, uint64_t hash)
{
    return &t->e[(hash & t->mask) * BUCKET];
}

static struct entry *entry_find(const struct table *t, uint64_t hash, uint64_t a, uint64_t b)
{
    struct entry *e = bucket(t, hash);

    for (unsigned i = 0; i < BUCKET; i++)
        if (e[i].stamp && e[i].a == a && e[i].b == b)
            return &e[i];
    return NULL;
}

/* In a full bucket the oldest goes. */
static void entry_put(struct table *t, uint64_t hash, uint64_t a, uint64_t b, uint64_t value,
                      uint64_t stamp)
{
    struct entry *e = entry_find(t, hash, a, b), *first = bucket(t, hash);

    if (!e) {
        e = first;
        for (unsigned i = 1; i < BUCKET; i++)
            if (first[i].stamp < e->stamp)
                e = &first[i];
    }
    atomic_store_explicit(&e->stamp, 0, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst); /* what follows does not move before it (K4) */
    e->a = a;
    e->b = b;
    e->value = value;
    atomic_store_explicit(&e->stamp, stamp, memory_order_release);
}

static void entry_drop(struct table *t, uint64_t hash, uint64_t a, uint64_t b)
{
    struct entry *e = entry_find(t, hash, a, b);

    if (e)
        atomic_store_explicit(&e->stamp, 0, memory_order_release);
}

static uint64_t tag_hash(uint64_t session, uint64_t seq)
{
    return (session * 0x9E3779B97F4A7C15ull ^ seq) * 0xD6E8FEB86659FD93ull >> 32;
}

static void done_put(struct keep *keep, uint64_t session, uint64_t seq, uint64_t value)
{
    pthread_mutex_lock(&keep->lock);
    entry_put(&keep->done, tag_hash(session, seq), session, seq, value, ++keep->stamp);
    pthread_mutex_unlock(&keep->lock);
}

static void done_drop(struct keep *keep, uint64_t session, uint64_t seq)
{
    pthread_mutex_lock(&keep->lock);
    entry_drop(&keep->done, tag_hash(session, seq), session, seq);
    pthread_mutex_unlock(&keep->lock);
}

bool keep_done(struct keep *keep, uint64_t session, uint64_t seq, uint64_t *value)
{
    const struct entry *e;

    if (!keep)
        return false;
    pthread_mutex_lock(&keep->lock);
    e = entry_find(&keep->done, tag_hash(session, seq), session, seq);
    if (e)
        *value = e->value;
    pthread_mutex_unlock(&keep->lock);
    return e != NULL;
}

/* Neighbours share a bucket: numbers are dense, and whoever walks a tree touches few lines. */
static uint64_t home_hash(uint32_t cont, uint64_t ino)
{
    return ino / BUCKET + cont * 0x9E3779B97F4A7C15ull;
}

void keep_home_set(struct keep *keep, uint32_t cont, uint64_t ino, uint64_t home)
{
    pthread_mutex_lock(&keep->lock);
    entry_put(&keep->home, home_hash(cont, ino), cont, ino, home, ++keep->stamp);
    pthread_mutex_unlock(&keep->lock);
}

void keep_home_clear(struct keep *keep, uint32_t cont, uint64_t ino)
{
    pthread_mutex_lock(&keep->lock);
    entry_drop(&keep->home, home_hash(cont, ino), cont, ino);
    pthread_mutex_unlock(&keep->lock);
}

bool keep_home(struct keep *keep, uint32_t cont, uint64_t ino, uint64_t *home)
{
    const struct entry *e;

    pthread_mutex_lock(&keep->lock);
    e = entry_find(&keep->home, home_hash(cont, ino), cont, ino);
    if (e)
        *home = e->value;
    pthread_mutex_unlock(&keep->lock);
    return e != NULL;
}

/* -- records --------------------------------------------------------------------------------- */

/* Gives back what has been retired. Under the ring's lock. */
static void trim(struct ring *r)
{
    uint64_t tail = r->s->tail, head = r->s->head;

    while (tail < head && kept_at(r, tail)->state & KEPT_RETIRED)
        tail += kept_bytes(kept_at(r, tail));
    atomic_store_explicit(&r->s->tail, tail, memory_order_release);
}

static void head_make(struct ring *r, uint64_t pos, uint64_t len, uint32_t state)
{
    struct kept *k = kept_at(r, pos);

    k->number = pos;
    k->len = len;
    atomic_store_explicit(&k->state, state, memory_order_relaxed);
    k->reserved = 0;
    k->session = k->seq = k->value = k->mark = k->next = 0;
}

int64_t keep_reserve(struct keep *keep, enum keep_log log, size_t len, void **ptr)
{
    struct ring *r = &keep->ring[log];
    uint64_t need = sizeof(struct kept) + up(len, ALIGN_BYTES), head, left;
    int64_t number = -EINPROGRESS;

    if (need > r->bytes / 2)
        return -E2BIG;
    pthread_mutex_lock(&r->lock);
    head = r->s->head;
    left = r->bytes - head % r->bytes; /* a multiple of ALIGN_BYTES */
    /* an empty ring begins anew: the memory that was used last is still in the processor's cache */
    if (left >= need && !(head == r->s->tail && left < r->bytes))
        left = 0;
    if (head + left + need - r->s->tail > r->bytes) {
        if (head != r->s->tail || left == 0 || need > left)
            goto out;
        left = 0;
    }
    if (left > 0)
        head_make(r, head, left - sizeof(struct kept), KEPT_RETIRED);
    head_make(r, head + left, len, 0);
    atomic_store_explicit(&r->s->head, head + left + need, memory_order_release); /* K1 */
    if (left > 0)
        trim(r);
    number = (int64_t)(head + left);
    *ptr = kept_at(r, head + left) + 1;
out:
    pthread_mutex_unlock(&r->lock);
    return number;
}

static struct kept *kept_of(struct keep *keep, enum keep_log log, int64_t number)
{
    struct kept *k = kept_at(&keep->ring[log], (uint64_t)number);

    DFE_ASSERT(k->number == (uint64_t)number);
    return k;
}

/* The record does not carry its request's tag any more: a later one does, or it was answered.
 * False: the tag has become an entry. */
static bool tag_clear(struct keep *keep, enum keep_log log, int64_t number)
{
    struct ring *r = &keep->ring[log];
    struct kept *k = kept_at(r, (uint64_t)number);
    bool there;

    pthread_mutex_lock(&r->lock);
    there = (uint64_t)number >= r->s->tail && !(k->state & KEPT_RETIRED);
    if (there)
        atomic_fetch_and_explicit(&k->state, ~(uint32_t)KEPT_TAGGED, memory_order_release);
    pthread_mutex_unlock(&r->lock);
    return there;
}

void keep_commit(struct keep *keep, enum keep_log log, int64_t number, uint64_t mark)
{
    struct kept *k = kept_of(keep, log, number);
    bool tagged = tag.keep == keep && tag.paused == 0 && tag.parts == 0;

    k->mark = mark;
    if (tagged) {
        k->session = tag.session;
        k->seq = tag.seq;
        k->value = tag.value;
    }
    atomic_store_explicit(&k->state, tagged ? KEPT_VALID | KEPT_TAGGED : KEPT_VALID,
                          memory_order_release); /* K2 */
    if (!tagged)
        return;
    if (tag.number)
        tag.entered |= !tag_clear(keep, tag.log, tag.number);
    tag.log = log;
    tag.number = number;
}

/* Under the ring's lock. */
static void retire(struct keep *keep, struct kept *k)
{
    uint32_t state = k->state;

    if (state & KEPT_VALID && state & KEPT_TAGGED && !(state & KEPT_RETIRED))
        done_put(keep, k->session, k->seq, k->value); /* K3 */
    atomic_store_explicit(&k->state, state | KEPT_RETIRED, memory_order_release);
}

void keep_retire_chain(struct keep *keep, enum keep_log log, int64_t from, int64_t upto)
{
    struct ring *r = &keep->ring[log];

    while (from) {
        struct kept *step[CHAIN_STEP];
        unsigned n = 0;

        /* The heads have left the processor's cache long since: they come back before the lock is
         * taken, for which every writer waits. */
        while (from && n < CHAIN_STEP) {
            step[n] = kept_of(keep, log, from);
            from = from == upto ? 0 : (int64_t)step[n]->next;
            n++;
        }
        pthread_mutex_lock(&r->lock);
        for (unsigned i = 0; i < n; i++)
            retire(keep, step[i]);
        trim(r);
        pthread_mutex_unlock(&r->lock);
    }
}

void keep_retire(struct keep *keep, enum keep_log log, int64_t number)
{
    keep_retire_chain(keep, log, number, number);
}

void keep_cancel(struct keep *keep, enum keep_log log, int64_t number)
{
    keep_retire(keep, log, number);
}

void keep_retire_upto(struct keep *keep, enum keep_log log, uint64_t mark)
{
    struct ring *r = &keep->ring[log];
    bool more = true;

    while (more) {
        pthread_mutex_lock(&r->lock);
        if (r->retired < r->s->tail)
            r->retired = r->s->tail;
        for (unsigned i = 0; i < RETIRE_STEP && more; i++) {
            struct kept *k = kept_at(r, r->retired);
            more =
                r->retired < r->s->head && k->state && (k->state & KEPT_RETIRED || k->mark <= mark);
            if (!more)
                break;
            if (!(k->state & KEPT_RETIRED))
                retire(keep, k);
            r->retired += kept_bytes(k);
        }
        trim(r);
        pthread_mutex_unlock(&r->lock);
    }
}

void keep_link(struct keep *keep, enum keep_log log, int64_t number, int64_t next)
{
    kept_of(keep, log, number)->next = (uint64_t)next;
}

int64_t keep_next(struct keep *keep, enum keep_log log, int64_t number)
{
    return (int64_t)kept_of(keep, log, number)->next;
}

bool keep_pressed(const struct keep *keep, enum keep_log log)
{
    const struct ring *r = &keep->ring[log];
    uint64_t tail = atomic_load_explicit(&r->s->tail, memory_order_relaxed);

    return (atomic_load_explicit(&r->s->head, memory_order_relaxed) - tail) * 2 > r->bytes;
}

/* -- tags ------------------------------------------------------------------------------------ */

/* The thread goes on to another request before this one was answered. */
static void tag_leave(struct keep *keep)
{
    struct left *left = &keep->left[tag_hash(tag.session, tag.seq) % LEFT_SLOTS];

    if (tag.number == 0)
        return;
    pthread_mutex_lock(&keep->lock); /* who stood here stays remembered, and becomes an entry */
    *left = (struct left){tag.session, tag.seq, tag.log, tag.number};
    pthread_mutex_unlock(&keep->lock);
}

void keep_begin(struct keep *keep, uint64_t session, uint64_t seq)
{
    if (tag.keep)
        tag_leave(tag.keep);
    memset(&tag, 0, sizeof(tag));
    tag.keep = keep;
    tag.session = session;
    tag.seq = seq;
}

void keep_value(struct keep *keep, uint64_t value)
{
    struct ring *r;
    struct kept *k;
    bool there;

    if (!keep || tag.keep != keep || tag.paused > 0)
        return;
    tag.value = value;
    if (tag.number == 0)
        return;
    r = &keep->ring[tag.log];
    k = kept_at(r, (uint64_t)tag.number);
    pthread_mutex_lock(&r->lock);
    there = (uint64_t)tag.number >= r->s->tail && !(k->state & KEPT_RETIRED);
    if (there)
        k->value = value;
    pthread_mutex_unlock(&r->lock);
    if (!there) {
        done_put(keep, tag.session, tag.seq, value);
        tag.entered = true;
    }
}

void keep_part(struct keep *keep, bool part)
{
    if (!keep || tag.keep != keep)
        return;
    if (part)
        tag.parts++;
    else if (tag.parts > 0)
        tag.parts--;
}

void keep_pause(struct keep *keep)
{
    if (keep && tag.keep == keep)
        tag.paused++;
}

void keep_resume(struct keep *keep)
{
    if (keep && tag.keep == keep && tag.paused > 0)
        tag.paused--;
}

void keep_end(struct keep *keep)
{
    if (!keep || tag.keep != keep)
        return;
    if (tag.number && (!tag_clear(keep, tag.log, tag.number) || tag.entered))
        done_drop(keep, tag.session, tag.seq);
    tag.keep = NULL;
    tag.number = 0;
}

void keep_answered(struct keep *keep, uint64_t session, uint64_t seq)
{
    struct left *slot, left;

    if (!keep)
        return;
    if (tag.keep == keep && tag.session == session && tag.seq == seq) {
        keep_end(keep);
        return;
    }
    slot = &keep->left[tag_hash(session, seq) % LEFT_SLOTS];
    pthread_mutex_lock(&keep->lock);
    left = *slot;
    if (left.number && left.session == session && left.seq == seq)
        slot->number = 0;
    else
        left.number = 0;
    pthread_mutex_unlock(&keep->lock);
    if (left.number)
        (void)tag_clear(keep, left.log, left.number);
    done_drop(keep, session, seq);
}

/* -- opening --------------------------------------------------------------------------------- */

/* What a dead worker left: unfinished records go, tags become entries. */
static int ring_adopt(struct keep *keep, struct ring *r)
{
    uint64_t pos = r->s->tail, head = r->s->head;

    if (pos % ALIGN_BYTES || head % ALIGN_BYTES || pos > head || head - pos > r->bytes ||
        pos < r->bytes)
        return -EUCLEAN;
    while (pos < head) {
        struct kept *k = kept_at(r, pos);
        uint64_t left = r->bytes - pos % r->bytes;
        if (left > head - pos)
            left = head - pos;
        if (k->number != pos || k->len > left - sizeof(*k) || kept_bytes(k) > left)
            return -EUCLEAN;
        if (!(k->state & KEPT_VALID))
            k->state = KEPT_RETIRED;
        if ((k->state & (KEPT_TAGGED | KEPT_RETIRED)) == KEPT_TAGGED) {
            done_put(keep, k->session, k->seq, k->value);
            k->state &= ~(uint32_t)KEPT_TAGGED;
        }
        k->mark = UINT64_MAX; /* the dead worker's journal positions mean nothing here */
        k->next = 0;
        pos += kept_bytes(k);
    }
    trim(r);
    r->opened = head;
    return 0;
}

static int table_open(struct table *t, void *mem, uint64_t at, uint64_t buckets, uint64_t bytes)
{
    if (buckets == 0 || buckets & (buckets - 1) || buckets > HOME_BUCKETS || at % PAGE_BYTES ||
        at > bytes || table_bytes(buckets) > bytes - at)
        return -EUCLEAN;
    t->e = (struct entry *)((uint8_t *)mem + at);
    t->mask = buckets - 1;
    return 0;
}

static int keep_adopt(struct keep *keep, void *mem, size_t bytes)
{
    struct shared *s = mem;
    int rc;

    keep->s = s;
    if (bytes < sizeof(*s) || s->magic != KEEP_MAGIC || s->bytes > bytes)
        return -EUCLEAN;
    rc = table_open(&keep->done, mem, s->done_at, s->done_buckets, s->bytes);
    if (rc == 0)
        rc = table_open(&keep->home, mem, s->home_at, s->home_buckets, s->bytes);
    for (uint64_t i = 0; rc == 0 && i < s->done_buckets * BUCKET; i++)
        if (keep->done.e[i].stamp > keep->stamp)
            keep->stamp = keep->done.e[i].stamp;
    for (unsigned i = 0; rc == 0 && i < KEEP_LOGS; i++) {
        struct ring *r = &keep->ring[i];
        r->s = &s->ring[i];
        r->bytes = r->s->bytes;
        r->mem = (uint8_t *)mem + r->s->at;
        if (r->bytes < LOG_MIN_BYTES || r->bytes % PAGE_BYTES || r->s->at % PAGE_BYTES ||
            r->s->at > s->bytes || r->bytes > s->bytes - r->s->at)
            return -EUCLEAN;
        rc = ring_adopt(keep, r);
    }
    return rc;
}

int keep_open(void *mem, size_t bytes, struct keep **out)
{
    struct keep *keep = calloc(1, sizeof(*keep));
    int rc;

    if (!keep)
        return -ENOMEM;
    pthread_mutex_init(&keep->lock, NULL);
    for (unsigned i = 0; i < KEEP_LOGS; i++)
        pthread_mutex_init(&keep->ring[i].lock, NULL);
    rc = keep_adopt(keep, mem, bytes);
    if (rc < 0) {
        keep_close(keep);
        return base_fail(rc, "kept memory: not what an earlier worker of this program left");
    }
    *out = keep;
    return 0;
}

void keep_lend_tables(struct keep *keep, const struct keep_tables *tables)
{
    keep->tables = tables;
}

const struct keep_tables *keep_tables(const struct keep *keep)
{
    return keep ? keep->tables : NULL;
}

void keep_close(struct keep *keep)
{
    if (!keep)
        return;
    if (tag.keep == keep)
        memset(&tag, 0, sizeof(tag));
    for (unsigned i = 0; i < KEEP_LOGS; i++)
        pthread_mutex_destroy(&keep->ring[i].lock);
    pthread_mutex_destroy(&keep->lock);
    free(keep);
}

bool keep_empty(const struct keep *keep)
{
    for (unsigned i = 0; i < KEEP_LOGS; i++)
        if (keep->ring[i].s->tail < keep->ring[i].opened)
            return false;
    return true;
}

void keep_usage(const struct keep *keep, uint64_t *used, uint64_t *bytes)
{
    *used = *bytes = 0;
    for (unsigned i = 0; i < KEEP_LOGS; i++) {
        const struct ring_shared *s = keep->ring[i].s;
        uint64_t tail = atomic_load_explicit(&s->tail, memory_order_acquire);

        *used += atomic_load_explicit(&s->head, memory_order_acquire) - tail;
        *bytes += keep->ring[i].bytes;
    }
}

void keep_note(struct keep *keep, unsigned i, uint64_t value)
{
    DFE_ASSERT(i < KEEP_NOTES);
    atomic_store_explicit(&keep->s->note[i], value, memory_order_release);
}

uint64_t keep_noted(const struct keep *keep, unsigned i)
{
    DFE_ASSERT(i < KEEP_NOTES);
    return atomic_load_explicit(&keep->s->note[i], memory_order_acquire);
}

int keep_replay(struct keep *keep, enum keep_log log,
                int (*fn)(int64_t number, const void *rec, size_t len, void *arg), void *arg)
{
    struct ring *r = &keep->ring[log];
    uint64_t pos = 0;
    int rc = 0;

    pthread_mutex_lock(&r->lock);
    while (rc == 0) {
        const struct kept *k;
        bool counts;
        if (pos < r->s->tail) /* what was retired may be overwritten */
            pos = r->s->tail;
        if (pos >= r->opened)
            break;
        k = kept_at(r, pos);
        counts = (k->state & (KEPT_VALID | KEPT_RETIRED)) == KEPT_VALID;
        pos += kept_bytes(k);
        if (!counts)
            continue;
        pthread_mutex_unlock(&r->lock);
        rc = fn((int64_t)k->number, k + 1, k->len, arg);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}
