/* SPDX-License-Identifier: Apache-2.0 */
/* Readers, writers, flushers and evictions at once: a read sees each write whole or not at all. */
#include <pthread.h>
#include <sched.h>

#include "base/clock.h"
#include "base/limits.h"
#include "cache_rig.h"

#define FILES 2
#define FILE_BYTES (2u << 20)
#define RECORD 20000u /* straddles blocks and slots */
#define RECORDS (FILE_BYTES / RECORD)
#define WRITERS 2
#define READERS 2

static struct rig rig;
static struct cache_file *files[FILES];
static struct rig_owner owners[FILES];
static uint64_t deadline_ns, seed;
static unsigned long reads, writes;

static bool time_left(void)
{
    return base_mono_ns() < deadline_ns;
}

/* A record is one value all over; zeros before its first write or after a punch. */
static void *writer(void *arg)
{
    uint64_t rng = seed + (uintptr_t)arg * 977;
    uint8_t *buf = malloc(RECORD);
    unsigned long n = 0;

    while (time_left()) {
        struct cache_file *file = files[test_rand(&rng) % FILES];
        uint64_t off = test_rand(&rng) % RECORDS * RECORD;
        unsigned flags = test_rand(&rng) % 2 ? CACHE_NOWAIT : 0;
        ssize_t rc;
        if (test_rand(&rng) % 10 == 0) {
            rc = cache_punch(file, off, RECORD, 1, flags);
            CHECK(rc == 0 || (rc == -EINPROGRESS && flags));
            continue;
        }
        memset(buf, (int)(1 + test_rand(&rng) % 255), RECORD);
        rc = cache_write(file, off, buf, RECORD, 1, flags, NULL);
        CHECK(rc == RECORD || (rc == -EINPROGRESS && flags));
        n++;
    }
    free(buf);
    __atomic_fetch_add(&writes, n, __ATOMIC_RELAXED);
    return NULL;
}

static void check_record(const uint8_t *buf, uint64_t off)
{
    for (size_t i = 1; i < RECORD; i++)
        if (buf[i] != buf[0]) {
            fprintf(stderr, "record %llu torn at %zu: %d %d\n", (unsigned long long)(off / RECORD),
                    i, buf[0], buf[i]);
            abort();
        }
}

static void *reader(void *arg)
{
    uint64_t rng = seed + (uintptr_t)arg * 31337;
    uint8_t *buf = malloc(RECORD);
    unsigned long n = 0;

    while (time_left()) {
        struct cache_file *file = files[test_rand(&rng) % FILES];
        uint64_t off = test_rand(&rng) % RECORDS * RECORD;
        unsigned flags = test_rand(&rng) % 2 ? CACHE_NOWAIT : 0;
        struct cache_pin pin;
        ssize_t rc = cache_read(file, off, buf, RECORD, flags);
        CHECK(rc == RECORD || (rc == -EINPROGRESS && flags));
        if (rc == RECORD)
            check_record(buf, off);
        if (test_rand(&rng) % 8 == 0 && cache_pin(file, off, RECORD, flags, &pin) == 0) {
            uint8_t first = *(const uint8_t *)pin.ptr;
            sched_yield();
            for (size_t i = 0; i < pin.len; i++)
                CHECK_EQ(((const uint8_t *)pin.ptr)[i], first);
            cache_unpin(rig.cache, &pin);
        }
        n++;
    }
    free(buf);
    __atomic_fetch_add(&reads, n, __ATOMIC_RELAXED);
    return NULL;
}

static void *disturber(void *arg)
{
    uint64_t rng = seed + 5;

    while (time_left()) {
        struct cache_file *file = files[test_rand(&rng) % FILES];
        struct cache_info info;
        uint64_t at;
        switch (test_rand(&rng) % 6) {
        case 0:
            CHECK_EQ(cache_publish(file, CACHE_SYNC), 0);
            break;
        case 1:
            CHECK_EQ(cache_publish_all(rig.cache, NULL, 0), 0);
            break;
        case 2:
            cache_drop(rig.cache, file);
            break;
        case 3:
            cache_query(rig.cache, &info);
            break;
        case 4:
            CHECK(cache_next(file, test_rand(&rng) % FILE_BYTES, OBJ_DATA, &at) != -EIO);
            break;
        default:
            CHECK_EQ(cache_used(file, &at), 0);
        }
        usleep(500);
    }
    return NULL;
}

static void run(uint64_t slots_bytes, uint64_t dirty_bytes, unsigned ms)
{
    struct cache_opts opts = {.size = sizeof(opts),
                              .slots_bound_bytes = slots_bytes,
                              .dirty_bound_bytes = dirty_bytes,
                              .commit_interval_ms = 3};
    pthread_t threads[WRITERS + READERS + 1];
    unsigned n = 0;

    rig_make(&rig, 1 << 30);
    rig_open(&rig, &opts);
    for (unsigned i = 0; i < FILES; i++) {
        files[i] = rig_file(&rig, &owners[i], i + 1);
        CHECK_EQ(cache_truncate(files[i], FILE_BYTES, 1, 0), 0);
    }
    model_nowait(seed, 5);
    deadline_ns = base_mono_ns() + ms * 1000000ull;
    for (unsigned i = 0; i < WRITERS; i++)
        CHECK_EQ(pthread_create(&threads[n++], NULL, writer, (void *)(uintptr_t)(i + 1)), 0);
    for (unsigned i = 0; i < READERS; i++)
        CHECK_EQ(pthread_create(&threads[n++], NULL, reader, (void *)(uintptr_t)(i + 1)), 0);
    CHECK_EQ(pthread_create(&threads[n++], NULL, disturber, NULL), 0);
    while (n > 0)
        pthread_join(threads[--n], NULL);
    for (unsigned i = 0; i < FILES; i++)
        cache_file_put(files[i]);
    rig_close(&rig, false);
    rig_free(&rig);
    fprintf(stderr, "%lu reads, %lu writes\n", reads, writes);
}

static void test_roomy(void)
{
    run(0, 0, 1500);
}

static void test_tight(void)
{
    run(3 << 20, 512 << 10, 1500);
}

int main(void)
{
    seed = test_seed();
    RUN(test_roomy);
    RUN(test_tight);
    return 0;
}
