/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading without a message: leases, inode records, extents.
 *
 * The argument (PROTOCOL.md, "Leases", has it with the engine's side). The engine changes bytes of
 * a slot between two stores to its line: an odd generation, then, after a release fence, the bytes,
 * then with release an even generation that has never been used. We load the generation (acquire),
 * copy, fence (acquire), load it again.
 *
 * a. Had we read any byte of a change, the acquire fence after our copy and the release fence
 *    before the change make the odd store happen before our second load: it returns that or
 *    something later, and never the lease's generation again, since no value comes twice.
 * b. Had we read bytes older than the lease: the even store (release) of its generation is what our
 *    first load (acquire) read, or is later than what it read and then differs: we did not copy.
 *    So what was written before it is visible to the copy.
 * Equal generations before and after therefore mean: the bytes are those that the lease is for.
 *
 * Size: read from the record before the copy, as one moment of it (same protocol). The bytes did
 * not change from the lease's grant to the second load, so the read as a whole took place when the
 * size was read. That the record moves on during the copy (an append elsewhere) does no harm.
 *
 * A dead engine's memory stays as it is, right for ever by its generations. So the worker's word of
 * life, which the kernel marks at its death before another process can have the pool, is looked at
 * after the copy, too: unmarked, the read took place before whatever a later service does.
 *
 * SIGBUS cannot happen: a page of a memfd faults so only beyond its end or when it was punched; the
 * seals (checked before mapping) forbid to shrink it, and FUTURE_WRITE forbids punching.
 */
#include <stdlib.h>
#include <string.h>

#include "client/client_int.h"
#include "client/sys.h"

/*
 * The one place that reads memory while another process may be writing it: a data race by C's
 * letter, and by the sanitizers', which see neither fences nor other processes. What was read is
 * not looked at before the second load has said that nothing changed. noinline: the exemption must
 * cover this copy and nothing else; memcpy would not do, since sanitizers intercept it.
 */
#if defined(__x86_64__)
__attribute__((noinline)) static void copy_racing(void *dst, const void *src, size_t len)
{
    /* fast strings: as fast as libc's from 1 KiB on, and no instrumentation can get into it */
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(len) : : "memory");
}
#else
__attribute__((noinline, no_sanitize("address", "thread", "undefined"))) static void
copy_racing(void *dst, const void *src, size_t len)
{
    uint8_t *d = dst;
    const volatile uint8_t *s = src;

    while (len >= 8 && ((uintptr_t)s % 8 == 0) && ((uintptr_t)d % 8 == 0)) {
        *(uint64_t *)d = *(const volatile uint64_t *)s;
        d += 8, s += 8, len -= 8;
    }
    while (len--)
        *d++ = *s++;
}
#endif

static struct extent *find(struct client *c, uint32_t id, uint64_t stamp)
{
    uint64_t life = atomic_load_explicit(&c->life, memory_order_relaxed);
    struct extent *x = atomic_load_explicit(&c->extents[id % CLIENT_BUCKETS],
                                            memory_order_acquire);

    while (x && (x->id != id || x->stamp != stamp || x->life != life ||
                 atomic_load_explicit(&x->gone, memory_order_relaxed)))
        x = x->next;
    return x;
}

int client_record_read(struct client *c, uint32_t record, uint64_t ino, struct proto_record *out)
{
    const struct tables *t = atomic_load_explicit(&c->tables, memory_order_acquire);
    const struct proto_record *r;

    if (record >= t->n_records)
        return -ESTALE;
    r = &t->records[record];
    for (unsigned i = 0; i < CLIENT_TRIES; i++) {
        uint64_t gen = __atomic_load_n(&r->gen, __ATOMIC_ACQUIRE);
        if (gen % 2 == 0) {
            copy_racing(out, r, sizeof(*out));
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            if (__atomic_load_n(&r->gen, __ATOMIC_RELAXED) == gen)
                return out->ino == ino && ino ? 0 : -ESTALE;
        }
        spin_pause();
    }
    return -ESTALE;
}

ssize_t client_lease_read(struct client *c, const struct proto_lease *lease, uint64_t off,
                          void *dst, size_t len)
{
    const struct tables *t = atomic_load_explicit(&c->tables, memory_order_acquire);
    const struct extent *x = find(c, lease->extent, lease->stamp);
    struct proto_record rec;
    const uint64_t *line;
    uint64_t skip;

    if (!x || !x->base || lease->line >= t->n_lines || lease->extent_off > x->len ||
        lease->len > x->len - lease->extent_off || off < lease->file_off)
        return -ESTALE;
    line = &t->lines[lease->line].gen;
    if (__atomic_load_n(line, __ATOMIC_ACQUIRE) != lease->gen || lease->gen % 2)
        return -ESTALE;
    if (client_record_read(c, lease->record, lease->ino, &rec) < 0)
        return -ESTALE;
    skip = off - lease->file_off;
    if (off >= rec.size)
        len = 0;
    else if (skip >= lease->len)
        return -ESTALE;
    if (len > rec.size - off)
        len = rec.size - off;
    if (len > lease->len - skip)
        len = lease->len - skip;
    copy_racing(dst, x->base + lease->extent_off + skip, len);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (__atomic_load_n(line, __ATOMIC_RELAXED) != lease->gen ||
        __atomic_load_n(&t->lines[0].alive, __ATOMIC_RELAXED) & WINDOW_DEAD)
        return -ESTALE;
    return (ssize_t)len;
}

/* Invariant 5: zeros in its place, which no lease and no reader in the middle takes for data. The
 * memory is the engine's again. */
static void let_go(struct extent *x)
{
    atomic_store(&x->gone, true);
    if (x->base)
        sys_mmap((void *)x->base, x->len, PROT_READ,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1);
}

/* Asks for the extent and enters it, a refusal as well. Lock held. */
static int learn(struct client *c, uint32_t id, uint64_t stamp)
{
    struct proto_msg m = {.type = PROTO_MSG_EXTENT, .id = id, .stamp = stamp};
    struct extent *_Atomic *head = &c->extents[id % CLIENT_BUCKETS];
    struct extent *x = sys_alloc(sizeof(*x));
    struct proto_answer a;
    const void *base = NULL;
    unsigned n;
    int fd, rc;

    if (!x)
        return -ENOMEM;
    rc = link_ask(c, &m, -1, &a, &fd, 1, &n);
    if (rc == 0)
        rc = n == 1 ? link_map(fd, a.bytes, &base) : -EPROTO;
    if (rc < 0 && rc != -EACCES && rc != -ESTALE) {
        sys_free(x, sizeof(*x));
        return rc; /* may be had later */
    }
    for (struct extent *old = *head; old; old = old->next)
        if (rc == 0 && old->id == id && old->life == atomic_load(&c->life) && !old->gone)
            let_go(old);
    x->id = id;
    x->stamp = stamp;
    x->life = atomic_load(&c->life);
    x->base = base;
    x->len = base ? a.bytes : 0;
    x->next = *head;
    atomic_store_explicit(head, x, memory_order_release);
    return 0;
}

const void *client_map_extent(struct client *c, uint32_t id, uint64_t stamp)
{
    struct extent *x = find(c, id, stamp);
    uint64_t saved, life;
    int rc = 0;

    while (!x && rc == 0) {
        if (client_wait_up(c) < 0)
            return NULL;
        client_lock(c, &saved);
        life = atomic_load(&c->life);
        x = find(c, id, stamp);
        if (!x)
            rc = learn(c, id, stamp);
        client_unlock(c, &saved);
        if (rc == -EPIPE) {
            client_lost(c, life);
            return NULL; /* a new worker has no such extent */
        }
        x = find(c, id, stamp);
    }
    return x ? x->base : NULL;
}

void client_leave_extents(struct client *c)
{
    for (unsigned i = 0; i < CLIENT_BUCKETS; i++)
        for (struct extent *x = c->extents[i]; x; x = x->next)
            x->base = NULL;
}

void client_forget_old(struct client *c)
{
    uint64_t saved;

    client_lock(c, &saved);
    for (unsigned i = 0; i < CLIENT_BUCKETS; i++)
        for (struct extent *x = c->extents[i]; x; x = x->next)
            if (x->life != atomic_load(&c->life) && !x->gone)
                let_go(x);
    client_unlock(c, &saved);
}
