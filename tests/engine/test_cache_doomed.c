/* SPDX-License-Identifier: Apache-2.0 */
/* A writer that finds no space waits for deletions under way, and for nothing else. */
#include <pthread.h>

#include "base/clock.h"
#include "cache_rig.h"

#define MS 1000000ull
#define POOL (1u << 20)
#define PIECE 40000u

static struct rig rig;
static struct rig_owner owners[2];
static struct cache_file *dead, *file;
static uint8_t bytes[PIECE];

/* What the other thread does meanwhile: after ms, held and leaving change; with `space`, the dead
 * file's comes back before. */
struct step {
    unsigned ms;
    int held, leaving;
    bool space;
};

static void *deleter(void *arg)
{
    for (const struct step *s = arg; s->ms > 0; s++) {
        usleep(s->ms * 1000);
        if (s->space) {
            cache_file_discard(dead);
            dead = NULL;
        }
        cache_doomed(rig.cache, s->held, s->leaving);
    }
    return NULL;
}

static void setup(void)
{
    struct cache_opts opts = {.size = sizeof(opts), .commit_interval_ms = 3600 * 1000};
    uint64_t at = 0;

    rig_make(&rig, POOL);
    rig_open(&rig, &opts);
    dead = rig_file(&rig, &owners[0], 1);
    file = rig_file(&rig, &owners[1], 2);
    owners[0].err = -EIO; /* its data stays in memory, and keeps its space reserved */
    while (cache_write(dead, at, bytes, PIECE, 1, 0, NULL) == PIECE)
        at += PIECE;
    CHECK(at > POOL - 2 * PIECE);
}

static void teardown(void)
{
    if (dead)
        cache_file_discard(dead);
    cache_file_put(file);
    rig_close(&rig, false);
    rig_free(&rig);
}

/* Writes while the steps are done; how long that took. */
static uint64_t write_during(struct step *steps, ssize_t expected)
{
    uint64_t begun = base_mono_ns();
    pthread_t thread;

    CHECK_EQ(pthread_create(&thread, NULL, deleter, steps), 0);
    CHECK_EQ(cache_write(file, 0, bytes, PIECE, 1, CACHE_NOWAIT, NULL), -EINPROGRESS);
    CHECK_EQ(cache_write(file, 0, bytes, PIECE, 1, 0, NULL), expected);
    begun = base_mono_ns() - begun;
    CHECK_EQ(pthread_join(thread, NULL), 0);
    return begun;
}

static void a_deletion_is_waited_for(void)
{
    struct step steps[] = {{300, 0, -1, true}, {0}};

    setup();
    cache_doomed(rig.cache, 0, 1);
    CHECK(write_during(steps, PIECE) >= 250 * MS);
    teardown();
}

static void a_file_in_use_is_waited_for_when_that_is_news(void)
{
    struct step steps[] = {{200, -1, 1, false}, {200, 0, -1, true}, {0}};

    setup();
    cache_doomed(rig.cache, 1, 0);
    CHECK(write_during(steps, PIECE) >= 350 * MS);
    teardown();
}

static void the_one_that_gives_no_space_is_not_the_last(void)
{
    struct step steps[] = {{100, 0, -1, false}, {100, 0, -1, false}, {100, 0, -1, true}, {0}};

    setup();
    cache_doomed(rig.cache, 0, 3);
    CHECK(write_during(steps, PIECE) >= 250 * MS);
    teardown();
}

static void without_hope_it_is_told_at_once(void)
{
    struct step none[] = {{0}}, gone[] = {{100, 0, -1, false}, {0}};

    setup();
    CHECK(write_during(none, -ENOSPC) < 1000 * MS);
    cache_doomed(rig.cache, 0, 1);
    CHECK(write_during(gone, -ENOSPC) < 1500 * MS); /* as soon as the last is done in vain */
    teardown();
}

static void a_file_in_use_for_long_costs_little(void)
{
    struct step none[] = {{0}};
    uint64_t took;

    setup();
    cache_doomed(rig.cache, 1, 0);
    took = write_during(none, -ENOSPC);
    CHECK(took >= 1500 * MS && took < 8000 * MS); /* once */
    for (unsigned i = 0; i < 5; i++)
        CHECK(write_during(none, -ENOSPC) < 1000 * MS);
    cache_doomed(rig.cache, -1, 0);
    teardown();
}

static void a_deletion_that_never_ends_is_given_up(void)
{
    struct step none[] = {{0}};
    uint64_t took;

    setup();
    cache_doomed(rig.cache, 0, 1);
    took = write_during(none, -ENOSPC);
    CHECK(took >= 1500 * MS && took < 8000 * MS);
    cache_doomed(rig.cache, 0, -1);
    teardown();
}

int main(void)
{
    RUN(a_deletion_is_waited_for);
    RUN(a_file_in_use_is_waited_for_when_that_is_news);
    RUN(the_one_that_gives_no_space_is_not_the_last);
    RUN(without_hope_it_is_told_at_once);
    RUN(a_file_in_use_for_long_costs_little);
    RUN(a_deletion_that_never_ends_is_given_up);
    return 0;
}
