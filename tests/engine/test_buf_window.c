/* SPDX-License-Identifier: Apache-2.0 */
/* Read domains: whose bytes an extent holds, and that whoever gets its descriptor can only read. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/limits.h"
#include "buf/buf.h"
#include "test.h"

#define EXTENT ((size_t)DFE_ARENA_EXTENT_BYTES)
#define LARGE ((size_t)BUF_MAX_BYTES)
#define LARGE_PER_EXTENT ((unsigned)(EXTENT / LARGE))
#define EXTENTS 6u

static uint64_t seed;

static struct buf_arena *arena_open(unsigned extents)
{
    struct buf_arena *a;

    CHECK_EQ(buf_arena_open(extents * EXTENT, BUF_PAGES, &a), 0);
    return a;
}

static int share(struct buf_arena *a, const void *ptr, struct buf_place *place)
{
    uint32_t domain = 0;
    int fd;

    buf_place(a, ptr, place);
    fd = buf_extent_fd(a, place->extent, place->stamp, &domain);
    if (fd >= 0)
        CHECK_EQ(domain, place->domain);
    return fd;
}

/* Each kind is tried; what the host refuses falls back, and can be shown all the same. */
static void kinds_fall_back(void)
{
    for (int kind = BUF_HUGE; kind <= BUF_PAGES; kind++) {
        struct buf_arena *a;
        struct buf_place place;
        struct buf_info info;
        CHECK_EQ(buf_arena_open(EXTENT, (enum buf_kind)kind, &a), 0);
        char *p = buf_alloc_in(a, 1, LARGE), *map;
        int fd = share(a, p, &place);
        CHECK(fd >= 0);
        memset(p, 0x33, LARGE);
        map = mmap(NULL, EXTENT, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(map != MAP_FAILED);
        CHECK(memcmp(map + place.off, p, LARGE) == 0);
        munmap(map, EXTENT);
        close(fd);
        buf_arena_info(a, &info);
        for (int better = 0; better < kind; better++)
            CHECK_EQ(info.kind_bytes[better], 0);
        fprintf(stderr, "asked for kind %d: huge %llu, thp %llu, pages %llu\n", kind,
                (unsigned long long)info.kind_bytes[BUF_HUGE],
                (unsigned long long)info.kind_bytes[BUF_THP],
                (unsigned long long)info.kind_bytes[BUF_PAGES]);
        buf_free(a, p, LARGE);
        buf_arena_close(a);
    }
}

/* Everything that could change the memory, tried on a descriptor. */
static void cannot_write(int fd)
{
    char byte = 1;

    CHECK(write(fd, &byte, 1) < 0);
    CHECK(pwrite(fd, &byte, 1, 0) < 0);
    CHECK(ftruncate(fd, 0) < 0);
    CHECK(ftruncate(fd, 2 * EXTENT) < 0);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, EXTENT) < 0);
    CHECK(mmap(NULL, EXTENT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0);
}

static void readers_only_read(void)
{
    struct buf_arena *a = arena_open(1);
    char *p = buf_alloc_in(a, 7, LARGE), path[32];
    struct buf_place place;
    int fd = share(a, p, &place), again;
    char *map;

    CHECK(fd >= 0);
    CHECK_EQ(place.domain, 7);
    CHECK(p == (char *)buf_arena_base(a) + place.extent * EXTENT + place.off);
    memset(p, 0x5a, LARGE);
    map = mmap(NULL, EXTENT, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    CHECK(memcmp(map + place.off, p, LARGE) == 0);
    memset(p, 0x5b, LARGE); /* ours is the one mapping that writes */
    CHECK(memcmp(map + place.off, p, LARGE) == 0);
    CHECK(mprotect(map, EXTENT, PROT_READ | PROT_WRITE) < 0);
    cannot_write(fd);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    again = open(path, O_RDWR | O_CLOEXEC);
    if (again >= 0) {
        cannot_write(again);
        close(again);
    }
    close(fd);
    munmap(map, EXTENT);
    buf_free(a, p, LARGE);
    buf_arena_close(a);
}

static void domain_zero_is_not_shown(void)
{
    struct buf_arena *a = arena_open(2);
    void *p = buf_alloc(a, 4096);
    struct buf_place place;

    CHECK_EQ(share(a, p, &place), -EACCES);
    CHECK_EQ(place.domain, 0);
    CHECK_EQ(buf_extent_fd(a, 2, place.stamp, &place.domain), -ESTALE);
    CHECK_EQ(buf_extent_fd(a, 0, place.stamp + 1, &place.domain), -ESTALE);
    CHECK_EQ(buf_extent_fd(a, 1, place.stamp, &place.domain), -ESTALE);
    buf_free(a, p, 4096);
    buf_arena_close(a);
}

/* An extent whose domain has no use for it makes way at the bound; who mapped it sees it as it was,
 * and its number comes back with another stamp. */
static void extents_are_given_back_whole(void)
{
    struct buf_arena *a = arena_open(1);
    struct buf_place one, two;
    char *p = buf_alloc_in(a, 1, LARGE), *map;
    int fd = share(a, p, &one);

    memset(p, 1, LARGE);
    map = mmap(NULL, EXTENT, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    close(fd);
    CHECK(!buf_alloc_in(a, 2, 4096)); /* domain 1 has a buffer in the only extent */
    CHECK(!buf_alloc(a, 4096));
    buf_free(a, p, LARGE);
    p = buf_alloc_in(a, 2, LARGE);
    CHECK(p);
    memset(p, 2, LARGE);
    CHECK(map[one.off] == 1 && map[one.off + LARGE - 1] == 1);
    fd = share(a, p, &two);
    CHECK(fd >= 0);
    close(fd);
    CHECK_EQ(two.extent, one.extent);
    CHECK(two.stamp != one.stamp);
    CHECK_EQ(buf_extent_fd(a, one.extent, one.stamp, &one.domain), -ESTALE);
    munmap(map, EXTENT);
    buf_free(a, p, LARGE);
    buf_arena_close(a);
}

/* Random allocations in four domains: no extent ever holds two, no stamp comes back. */
static void domains_do_not_mix(void)
{
    enum { LIVE = 400 };
    struct buf_arena *a = arena_open(EXTENTS);
    struct {
        void *ptr;
        size_t len;
        uint32_t domain;
    } live[LIVE];
    uint32_t owner[EXTENTS] = {0}, users[EXTENTS] = {0};
    uint64_t stamp[EXTENTS] = {0}, newest = 0;
    unsigned n = 0, refused = 0, mappings = 0;

    for (int step = 0; step < 100000; step++) {
        bool phase = (step / 5000) % 2;
        if (n < LIVE && test_rand(&seed) % 100 < (phase ? 35u : 65u)) {
            uint32_t domain = (uint32_t)(test_rand(&seed) % 4);
            size_t len = (size_t)BUF_MIN_BYTES << (test_rand(&seed) % 9);
            void *p = buf_alloc_in(a, domain, len);
            struct buf_place at;
            if (!p) {
                refused++;
                continue;
            }
            buf_place(a, p, &at);
            CHECK_EQ(at.domain, domain);
            if (users[at.extent]++ == 0)
                owner[at.extent] = domain;
            CHECK_EQ(owner[at.extent], domain);
            if (at.stamp != stamp[at.extent]) {
                CHECK(at.stamp > newest && users[at.extent] == 1);
                newest = stamp[at.extent] = at.stamp;
                mappings++;
            }
            live[n].ptr = p;
            live[n].len = len;
            live[n++].domain = domain;
        } else if (n > 0) {
            unsigned k = (unsigned)(test_rand(&seed) % n);
            users[(size_t)((char *)live[k].ptr - (char *)buf_arena_base(a)) / EXTENT]--;
            buf_free(a, live[k].ptr, live[k].len);
            live[k] = live[--n];
        }
    }
    fprintf(stderr, "%u mappings, %u refused\n", mappings, refused);
    CHECK(mappings > EXTENTS);
    while (n > 0) {
        n--;
        buf_free(a, live[n].ptr, live[n].len);
    }
    buf_arena_close(a);
}

/* Where descriptors are few the memory is there, and nobody can be shown it. */
static void no_descriptor_left(void)
{
    struct buf_arena *a = arena_open(3);
    struct rlimit before, few;
    struct buf_place place;
    char *p[3 * LARGE_PER_EXTENT];

    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 4; /* half is for others, and the standard ones are there */
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (unsigned i = 0; i < 3 * LARGE_PER_EXTENT; i++) {
        p[i] = buf_alloc_in(a, 3, LARGE);
        CHECK(p[i]);
        memset(p[i], 1, LARGE);
    }
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_EQ(share(a, p[3 * LARGE_PER_EXTENT - 1], &place), -EACCES);
    CHECK_EQ(place.domain, 0);
    for (unsigned i = 0; i < 3 * LARGE_PER_EXTENT; i++)
        buf_free(a, p[i], LARGE);
    buf_arena_close(a);
}

/* -- other people's mappings ------------------------------------------------------------------ */

/* Maps what channels map, more and more of it so that no old place serves, a word in each, and
 * looks whether it stays. */
static void *maps(void *arg)
{
    enum { BYTES = 64 << 10, MAPS = 256 };
    volatile uint32_t *p[MAPS];
    atomic_bool *stop = arg;

    while (!atomic_load(stop)) {
        for (unsigned i = 0; i < MAPS; i++) {
            p[i] =
                mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            CHECK(p[i] != MAP_FAILED);
            p[i][2] = i + 1;
        }
        for (unsigned i = 0; i < MAPS; i++) {
            CHECK_EQ(p[i][2], i + 1);
            CHECK_EQ(munmap((void *)p[i], BYTES), 0);
        }
    }
    return NULL;
}

/* Extents come and go, of kinds that the host may refuse; nobody else gets into their place. */
static void extents_stay_where_they_are(void)
{
    uint64_t end = base_mono_ns() + 2000000000ull;
    atomic_bool stop = false;
    pthread_t threads[2];

    for (unsigned i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, maps, &stop), 0);
    while (base_mono_ns() < end) {
        struct buf_arena *a;
        char *p[EXTENTS];

        CHECK_EQ(buf_arena_open(EXTENTS * EXTENT, BUF_HUGE, &a), 0);
        for (unsigned i = 0; i < EXTENTS; i++) {
            p[i] = i % 2 ? buf_alloc_in(a, i, LARGE) : buf_alloc(a, LARGE);
            CHECK(p[i]);
            memset(p[i], 0xff, 4096);
        }
        for (unsigned i = 0; i < EXTENTS; i++) {
            CHECK_EQ((uint8_t)p[i][8], 0xff);
            buf_free(a, p[i], LARGE);
        }
        buf_arena_close(a);
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < 2; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

int main(void)
{
    seed = test_seed();
    RUN(kinds_fall_back);
    RUN(readers_only_read);
    RUN(domain_zero_is_not_shown);
    RUN(extents_are_given_back_whole);
    RUN(domains_do_not_mix);
    RUN(no_descriptor_left);
    RUN(extents_stay_where_they_are);
    return 0;
}
