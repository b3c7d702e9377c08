/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions and a mount append to one file at random: what has been answered the mount sees, and no
 * size that it is told is below one that it knew, which would cost its kernel dirty pages.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api_fixture.h"
#include "base/clock.h"
#include "dispatch_rig.h"

#define WRITERS 3u
#define RUN_NS 1500000000ull
#define FILE_MOST (8u << 20)

static struct host *host;
static struct session *api, *mount, *sessions[WRITERS];
static uint64_t ino, seed;
static _Atomic uint64_t answered; /* every byte below it */
static atomic_bool over;

static void raise_to(_Atomic uint64_t *word, uint64_t value)
{
    uint64_t old = atomic_load(word);

    while (old < value && !atomic_compare_exchange_weak(word, &old, value))
        ;
}

/* -- who writes ------------------------------------------------------------------------------- */

static void append(struct session *s, const char *bytes, uint32_t len, uint64_t at)
{
    CHECK_EQ(rig_write(s, 1, ino, at, bytes, len, DFE_APPEND, &at), (int64_t)len);
    raise_to(&answered, at + len);
}

static void *appends(void *arg)
{
    unsigned me = (unsigned)(uintptr_t)arg;
    uint64_t random = seed + me;
    static const char bytes[256];

    while (!atomic_load(&over)) {
        append(sessions[me], bytes, 1 + (uint32_t)test_rand(&random) % sizeof(bytes), 0);
        if (test_rand(&random) % 4 == 0)
            usleep((useconds_t)(test_rand(&random) % 300));
    }
    return NULL;
}

/* -- the mount -------------------------------------------------------------------------------- */

static void *forgets(void *arg)
{
    struct rig_call next = {.e = {.op = PROTO_INVAL_NEXT, .handle = 1}};
    struct dfe_inval inval;

    while (rig_do(mount, &next) == 0) {
        memcpy(&inval, next.reply, sizeof(inval));
        next.e.off = inval.id;
    }
    return arg;
}

static void looks(bool writes, uint64_t *random)
{
    uint64_t known = 0, end = base_mono_ns() + RUN_NS;
    struct dfe_attr attr;
    char page[4096];

    while (base_mono_ns() < end) {
        uint64_t least = atomic_load(&answered);

        CHECK_EQ(rig_getattr(mount, 1, ino, &attr), 0);
        CHECK(attr.size >= least);
        CHECK(attr.size >= known);
        known = attr.size;
        if (known >= FILE_MOST)
            break;
        if (test_rand(random) % 2)
            CHECK(rig_read(mount, 1, ino, known & ~4095ull, page, sizeof(page)) >= 0);
        if (writes && test_rand(random) % 4 == 0) {
            append(mount, "mount", 5, known);
            known += 5;
        }
    }
}

static void run(bool writes)
{
    pthread_t writers[WRITERS], news;
    uint64_t random = seed ^ writes;
    struct dfe_attr attr;

    atomic_store(&over, false);
    atomic_store(&answered, 0);
    CHECK_EQ(rig_make(api, 1, RIG_ROOT, writes ? "own" : "log", S_IFREG | 0644, DFE_REF, &attr), 0);
    ino = attr.ino;
    mount = rig_session(host, PROTO_ROLE_MOUNT, geteuid(), getegid(), 50 + writes);
    CHECK_EQ(rig_fs(mount, 1, "c"), 0);
    CHECK_EQ(rig_simple(mount, PROTO_FS_MOUNT, 1, 0, 0, !writes), 0);
    CHECK_EQ(pthread_create(&news, NULL, forgets, NULL), 0);
    for (unsigned i = 0; i < WRITERS; i++)
        CHECK_EQ(pthread_create(&writers[i], NULL, appends, (void *)(uintptr_t)i), 0);
    looks(writes, &random);
    atomic_store(&over, true);
    for (unsigned i = 0; i < WRITERS; i++)
        CHECK_EQ(pthread_join(writers[i], NULL), 0);
    CHECK_EQ(rig_getattr(mount, 1, ino, &attr), 0);
    CHECK(attr.size >= atomic_load(&answered));
    CHECK_EQ(rig_simple(mount, PROTO_INVAL_STOP, 1, 0, 0, 0), 0);
    CHECK_EQ(pthread_join(news, NULL), 0);
    session_end(mount);
}

static void sessions_append(void)
{
    run(false);
}

static void all_append(void)
{
    run(true);
}

int main(void)
{
    const char *path = api_path("pool");

    seed = test_seed();
    host = rig_open(path, 10000, NULL);
    api = rig_session(host, PROTO_ROLE_API, geteuid(), getegid(), 1);
    CHECK_EQ(rig_fs(api, 1, "c"), 0);
    for (unsigned i = 0; i < WRITERS; i++) {
        sessions[i] = rig_session(host, PROTO_ROLE_API, geteuid(), getegid(), 2 + i);
        CHECK_EQ(rig_fs(sessions[i], 1, "c"), 0);
    }
    RUN(sessions_append);
    RUN(all_append);
    for (unsigned i = 0; i < WRITERS; i++)
        session_end(sessions[i]);
    session_end(api);
    rig_close(host, path);
    return 0;
}
