/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: readers in other processes copy bytes out of a slot and then check that it was a slot of
 * that file, and unchanged, all the while. Nobody waits for them and they wait for nobody.
 *
 * A line (its generation) guards the bytes of one slot and which of its blocks are valid; a record
 * shows the cut of one file. Both are given out when asked for, and the one that was asked for
 * longest ago is taken from its slot or file when there is none left. All stores here are made with
 * cache.lock held; only the bytes are copied without it, between two of them (plan.c).
 *
 *      writer                                     reader (client/lease.c)
 *   W1 line = odd (relaxed)                    R1 line (acquire): the lease's generation
 *   W2 release fence                           R2 the record as it is at one moment (the same way)
 *   W3 bytes, validity                         R3 bytes
 *   W4 line = even (release)                   R4 acquire fence
 *   W5 record: odd, fence, fields, even        R5 line (relaxed): as in R1
 *
 * Why that which passes R5 is one moment of the file:
 *  1. Generations come from one counter and all stores to the tables are ordered by cache.lock: a
 *     word only grows. What is the same at R1 and R5 was stored to by nobody in between.
 *  2. R3 reads nothing newer than the lease: had it read a byte of some W3, then W2, a release
 *     fence before that byte's store, synchronises with R4, an acquire fence after its load: W1
 *     happens before R5, which finds the odd value or a later one (1). (libc may copy with stores
 *     that x86 does not keep in order; the mutex is unlocked between W2 and the copy, and that
 *     instruction waits for W1.)
 *  3. Nothing older: the lease came in a message, sent after all that was done under the lock
 *     before; and R1 acquires the W4 of its generation.
 *  4. Memory that becomes another slot's, or whose slot has lost its line: the line is stored to
 *     before that, and whoever writes there has taken a lock after it; a release fence follows
 *     (slot.c, plan.c), so 2 holds for those bytes too. A device writes later still.
 *  5. A block that is replaced in another slot (its own was frozen, invariant 4 of cache_int.h), or
 *     becomes a hole: the line of the old place is stored to under cache.lock in which the block
 *     moves, before the call that changed the file returns. Whoever has heard of the change, by
 *     whatever means, finds another generation at R1.
 *  6. Size and version are those of the bytes: the lease is older than R2, and the bytes were the
 *     same from the lease until R5, so they are the file's at the moment of R2. No lease is given
 *     between W1 and W5: the file is locked exclusively. The record is odd only while its fields
 *     change, so that who reads elsewhere in the file does not wait for a long W3. Copies may go
 *     up to the record's size: bytes past the end are zeros, and a write that makes the file
 *     longer in the same slot is a W3.
 *  7. What becomes valid in a slot beside the leased blocks (a load, a hole filled) concerns no
 *     lease: a lease ends at the first block that was not valid when it was given.
 *  8. A record that goes to another file takes the lines of all slots of its old one with it first,
 *     so that no lease is ever checked against the size of another file.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/keep.h"
#include "base/window.h"
#include "cache/cache_int.h"

/* Number 0 is nobody's, in both tables. */
struct line_state {
    struct list lru;
    struct list of_record; /* record_state.lines */
    struct slot *slot;
};

struct record_state {
    struct list lru;
    struct list lines;
    struct cache_file *file;
};

struct cont_domain {
    struct obj_cont *cont;
    uint32_t domain;
};

struct windows {
    uint64_t gen; /* the counter: even */
    uint32_t n_lines, n_records;
    int lines_fd, records_fd;
    bool lent;                   /* both, and their descriptors, by keep */
    struct proto_line *line;     /* shared */
    struct proto_record *record; /* shared */
    struct line_state *lines;
    struct record_state *records;
    struct list line_lru, record_lru; /* those in use behind those that are not */
    struct cont_domain *domains;
    size_t n_domains;
};

/* -- generations ------------------------------------------------------------------------------ */

static uint64_t next_gen(struct windows *w)
{
    return w->gen += 2;
}

/* W1, W2. Once for all brackets around one change: an odd one stays as it is. */
static void gen_open(struct windows *w, uint64_t *gen)
{
    if (__atomic_load_n(gen, __ATOMIC_RELAXED) & 1)
        return;
    __atomic_store_n(gen, next_gen(w) | 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

/* W4 */
static void gen_close(struct windows *w, uint64_t *gen)
{
    __atomic_store_n(gen, next_gen(w), __ATOMIC_RELEASE);
}

/* An end of all leases that there are, where no byte changes here; the fence is for the bytes of
 * whoever comes next (4). */
static void gen_end(struct windows *w, uint64_t *gen)
{
    __atomic_store_n(gen, next_gen(w), __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

/* -- lines ------------------------------------------------------------------------------------ */

void lease_open_line(struct slot *s)
{
    struct windows *w = s->cache->windows;

    gen_open(w, &w->line[s->line].gen);
}

void lease_close_line(struct slot *s)
{
    struct windows *w = s->cache->windows;

    gen_close(w, &w->line[s->line].gen);
}

void lease_end_line(struct slot *s)
{
    struct windows *w = s->cache->windows;
    uint64_t *gen = &w->line[s->line].gen;

    if ((__atomic_load_n(gen, __ATOMIC_RELAXED) & 1) == 0) /* else its bracket ends it */
        gen_end(w, gen);
}

void lease_drop_line(struct slot *s)
{
    struct windows *w = s->cache->windows;
    struct line_state *line = &w->lines[s->line];

    gen_end(w, &w->line[s->line].gen);
    list_del(&line->of_record);
    list_del(&line->lru);
    list_add(&w->line_lru, &line->lru);
    line->slot = NULL;
    s->line = 0;
}

static void line_give(struct windows *w, struct slot *s)
{
    struct line_state *line;

    if (!s->line) {
        line = container_of(w->line_lru.next, struct line_state, lru);
        if (line->slot)
            lease_drop_line(line->slot);
        line->slot = s;
        s->line = (uint32_t)(line - w->lines);
        list_add_tail(&w->records[s->file->record].lines, &line->of_record);
        gen_close(w, &w->line[s->line].gen);
    }
    line = &w->lines[s->line];
    list_del(&line->lru);
    list_add_tail(&w->line_lru, &line->lru);
}

/* -- records ---------------------------------------------------------------------------------- */

/* W5 */
static void record_store(struct windows *w, struct proto_record *r, uint64_t ino, uint32_t cont,
                         const struct cache_cut *cut)
{
    gen_open(w, &r->gen);
    __atomic_store_n(&r->ino, ino, __ATOMIC_RELAXED);
    __atomic_store_n(&r->size, cut->size, __ATOMIC_RELAXED);
    __atomic_store_n(&r->version, cut->version, __ATOMIC_RELAXED);
    __atomic_store_n(&r->mtime_ns, cut->mtime_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&r->cont, cont, __ATOMIC_RELAXED);
    gen_close(w, &r->gen);
}

void lease_show_record(struct cache_file *file)
{
    struct windows *w = file->cache->windows;

    record_store(w, &w->record[file->record], file->oid.lo, file->domain - 1, &file->cut);
}

void lease_drop_record(struct cache_file *file)
{
    struct windows *w = file->cache->windows;
    struct record_state *record = &w->records[file->record];

    while (!list_empty(&record->lines)) /* 8 */
        lease_drop_line(container_of(record->lines.next, struct line_state, of_record)->slot);
    record_store(w, &w->record[file->record], 0, 0, &(struct cache_cut){0});
    list_del(&record->lru);
    list_add(&w->record_lru, &record->lru);
    record->file = NULL;
    file->record = 0;
}

static void record_give(struct windows *w, struct cache_file *file)
{
    struct record_state *record;

    if (!file->record) {
        record = container_of(w->record_lru.next, struct record_state, lru);
        if (record->file)
            lease_drop_record(record->file);
        record->file = file;
        file->record = (uint32_t)(record - w->records);
        lease_show_record(file);
    }
    record = &w->records[file->record];
    list_del(&record->lru);
    list_add_tail(&w->record_lru, &record->lru);
}

/* -- calls ------------------------------------------------------------------------------------ */

/* The file is locked shared: nothing of it is odd. The slot is pinned. */
static int lease_fill(struct windows *w, struct slot *s, uint64_t off, struct cache_lease *out)
{
    struct cache_file *file = s->file;
    unsigned from = (unsigned)(off / BLOCK - s->first);
    unsigned to = bits_next(&s->valid, from, false);

    buf_place(s->cache->arena, s->data, &out->place);
    if (out->place.domain == 0)
        return -ENOTSUP; /* the host had no memfd for it */
    if (to > slot_blocks(s))
        to = (unsigned)slot_blocks(s);
    while (from > 0 && bits_test(&s->valid, from - 1))
        from--;
    record_give(w, file);
    line_give(w, s);
    out->place.off += from * BLOCK;
    out->file_off = (s->first + from) * BLOCK;
    out->len = (to - from) * BLOCK;
    out->line = s->line;
    out->record = file->record;
    out->gen = __atomic_load_n(&w->line[s->line].gen, __ATOMIC_RELAXED);
    out->record_gen = __atomic_load_n(&w->record[file->record].gen, __ATOMIC_RELAXED);
    return 0;
}

/* The file is locked shared. */
static int lease_bytes(struct cache_file *file, uint64_t off, bool nowait, struct cache_lease *out)
{
    uint64_t block = off / BLOCK, end;
    struct slot *s;
    int rc;

    if (file->gone)
        return -ESTALE;
    if (off >= file->cut.size ||
        (!slot_find(file, block, SLOT_VALID) && file_known_zero(file, block)))
        return -ENXIO;
    rc = pin_slot(file, block, readahead_order(file, BLOCK), nowait, &s);
    if (rc < 0)
        return rc;
    rc = lease_fill(file->cache->windows, s, off, out);
    if (rc == 0) {
        end = out->file_off + out->len < file->cut.size ? out->file_off + out->len : file->cut.size;
        readahead_note(file, off, (size_t)(end - off)); /* it will be read up to there */
    }
    slot_unpin(s);
    return rc;
}

int cache_lease(struct cache_file *file, uint64_t off, unsigned flags, struct cache_lease *out)
{
    struct cache *cache = file->cache;
    bool nowait = flags & CACHE_NOWAIT;
    unsigned tries = 0;
    int rc;

    if (!cache->windows || file->domain == 0)
        return -ENOTSUP;
    pthread_mutex_lock(&cache->lock);
    do {
        rc = file_lock_shared(file, nowait);
        if (rc < 0)
            break;
        rc = lease_bytes(file, off, nowait, out);
        file_unlock(file);
    } while (rc == -ENOBUFS && (rc = slot_wait_room(cache, &tries)) == 0);
    pthread_mutex_unlock(&cache->lock);
    return rc;
}

int cache_tables(struct cache *cache, int *lines_fd, uint32_t *lines, int *records_fd,
                 uint32_t *records)
{
    const struct windows *w = cache->windows;

    if (!w)
        return -ENOTSUP;
    *lines_fd = window_share(w->lines_fd);
    if (*lines_fd < 0)
        return *lines_fd;
    *records_fd = window_share(w->records_fd);
    if (*records_fd < 0) {
        close(*lines_fd);
        return *records_fd;
    }
    *lines = w->n_lines;
    *records = w->n_records;
    return 0;
}

/* -- read domains ----------------------------------------------------------------------------- */

static struct cont_domain *domain_find(const struct windows *w, const struct obj_cont *cont)
{
    for (size_t i = 0; i < w->n_domains; i++)
        if (w->domains[i].cont == cont)
            return &w->domains[i];
    return NULL;
}

uint32_t lease_domain(const struct cache *cache, const struct obj_cont *cont)
{
    const struct cont_domain *d = cache->windows ? domain_find(cache->windows, cont) : NULL;

    return d ? d->domain : 0;
}

static void domain_set(struct windows *w, struct obj_cont *cont, uint32_t domain)
{
    struct cont_domain *d = domain_find(w, cont);

    if (!d && domain != 0) {
        d = realloc(w->domains, (w->n_domains + 1) * sizeof(*d));
        if (!d)
            return; /* its files are not shown, and are all right otherwise */
        w->domains = d;
        d = &w->domains[w->n_domains++];
    }
    if (d)
        *d = domain != 0 ? (struct cont_domain){cont, domain} : w->domains[--w->n_domains];
}

void cache_domain(struct cache *cache, struct obj_cont *cont, uint32_t domain)
{
    if (!cache->windows)
        return;
    pthread_mutex_lock(&cache->lock);
    domain_set(cache->windows, cont, domain);
    pthread_mutex_unlock(&cache->lock);
}

/* -- open and close --------------------------------------------------------------------------- */

static void states_init(struct windows *w)
{
    list_init(&w->line_lru);
    list_init(&w->record_lru);
    for (uint32_t i = 1; i < w->n_lines; i++) {
        list_init(&w->lines[i].of_record);
        list_add_tail(&w->line_lru, &w->lines[i].lru);
    }
    for (uint32_t i = 1; i < w->n_records; i++) {
        list_init(&w->records[i].lines);
        list_add_tail(&w->record_lru, &w->records[i].lru);
    }
}

static int extents_init(struct cache *cache)
{
    struct buf_info info;
    uint64_t n;

    buf_arena_info(cache->arena, &info);
    n = info.bound_bytes / DFE_ARENA_EXTENT_BYTES;
    cache->extents = calloc(n, sizeof(*cache->extents));
    if (!cache->extents)
        return -ENOMEM;
    for (uint64_t i = 0; i < n; i++)
        list_init(&cache->extents[i]);
    return 0;
}

static int windows_make(struct windows *w)
{
    void *mem;

    w->lines_fd =
        window_make("dfusepy-lines", w->n_lines * sizeof(*w->line), WINDOW_PAGES, NULL, &mem);
    if (w->lines_fd < 0)
        return w->lines_fd;
    w->line = mem;
    w->records_fd =
        window_make("dfusepy-records", w->n_records * sizeof(*w->record), WINDOW_PAGES, NULL, &mem);
    if (w->records_fd < 0)
        return w->records_fd;
    w->record = mem;
    return 0;
}

/* Goes on in the tables of a dead worker: nothing that it gave is right any more. Its readers may
 * not have heard of its death, and no change is acknowledged before they can see this one. */
static bool windows_adopt(struct windows *w, const struct keep_tables *kept)
{
    if (!kept || kept->bytes != w->n_lines * sizeof(*w->line))
        return false;
    w->lent = true;
    w->lines_fd = kept->lines_fd;
    w->records_fd = kept->records_fd;
    w->line = kept->lines;
    w->record = kept->records;
    for (uint32_t i = 0; w->line[0].gen && i < w->n_lines; i++)
        gen_end(w, &w->line[i].gen);
    for (uint32_t i = 1; w->line[0].gen && i < w->n_records; i++) {
        struct proto_record *r = &w->record[i];
        __atomic_store_n(&r->gen, next_gen(w) | 1, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_RELEASE);
        __atomic_store_n(&r->ino, 0, __ATOMIC_RELAXED);
        gen_close(w, &r->gen);
    }
    gen_end(w, &w->line[0].gen); /* nobody's: it says that the tables have been used */
    return true;
}

int windows_open(struct cache *cache, uint32_t length)
{
    struct windows *w = calloc(1, sizeof(*w));

    if (!w || extents_init(cache) < 0) {
        free(w);
        return -ENOMEM;
    }
    if (length < 2)
        length = WINDOW_TABLE;
    cache->windows = w;
    /* A process that follows this one goes on above all that this one ever gave. */
    w->gen = base_mono_ns() & ~1ull;
    w->n_lines = w->n_records = length;
    w->lines_fd = w->records_fd = -1;
    w->lines = calloc(length, sizeof(*w->lines));
    w->records = calloc(length, sizeof(*w->records));
    if (!w->lines || !w->records)
        return -ENOMEM;
    states_init(w);
    return windows_adopt(w, keep_tables(cache->keep)) ? 0 : windows_make(w);
}

void windows_close(struct cache *cache)
{
    struct windows *w = cache->windows;

    free(cache->extents);
    if (!w)
        return;
    if (w->lent)
        goto out;
    if (w->line)
        munmap(w->line, w->n_lines * sizeof(*w->line));
    if (w->record)
        munmap(w->record, w->n_records * sizeof(*w->record));
    if (w->lines_fd >= 0)
        close(w->lines_fd);
    if (w->records_fd >= 0)
        close(w->records_fd);
out:
    free(w->lines);
    free(w->records);
    free(w->domains);
    free(w);
}
