/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process runs out of memory or descriptors for a moment: calls that need the device say so,
 * nothing is lost, the pool goes on by itself when there is some again.
 */
#include "obj_rig.h"

#include "base/clock.h"
#include "obj/obj_int.h"
#include "sim_device.h"

#define MIB (1ull << 20)
#define MOST 8u /* queues of the device */

static struct rig rig;
static struct queue *taken[MOST];
static unsigned n_taken;

static void quiet(int level, const char *text, void *arg)
{
    (void)level, (void)text, (void)arg;
}

/* Nobody gets a queue. */
static void scarce(void)
{
    struct queue *q;

    sim_limit_queues("scarce", MOST);
    for (n_taken = 0; queue_borrow(rig.pool->dev, &q) == 0;)
        taken[n_taken++] = q;
    CHECK(n_taken > 0);
}

static void plenty(void)
{
    while (n_taken > 0)
        queue_return(rig.pool->dev, taken[--n_taken]);
    sim_limit_queues("scarce", 0);
}

static struct obj_pool_info query(void)
{
    struct obj_pool_info info;

    obj_pool_query(rig.pool, &info);
    return info;
}

static void whole(void)
{
    CHECK(!query().read_only);
    CHECK(query().damage[0] == '\0');
}

static void make(uint32_t interval_ms)
{
    struct obj_pool_open_opts o = {.size = sizeof(o), .commit_interval_ms = interval_ms};

    CHECK_EQ(sim_create("scarce", 64 * MIB, 1), 0);
    rig_make(&rig, "scarce", "sim:scarce", 64);
    CHECK_EQ(rig_shut(&rig), 0);
    o.path = rig.path;
    CHECK_EQ(obj_pool_open(&o, &rig.pool), 0);
    CHECK_EQ(obj_cont_open(rig.pool, "c", NULL, &rig.cont), 0);
}

static void shut_and_verify(const char *value)
{
    rig_reopen(&rig);
    CHECK(strcmp(rig_get(rig.cont, 1, "k"), value) == 0);
    CHECK_EQ(rig_check(&rig), 0);
    rig_destroy(&rig);
    CHECK_EQ(sim_destroy("scarce"), 0);
}

/* Syncs and checkpoints that somebody waits for. */
static void told(void)
{
    make(10000);
    scarce();
    CHECK_EQ(rig_put(&rig, 1, "k", "1"), 0);
    CHECK_EQ(obj_sync(rig.pool), -ENOMEM);
    CHECK_EQ(obj_checkpoint(rig.pool), -ENOMEM);
    whole();
    CHECK_EQ(rig_put(&rig, 1, "k", "2"), 0);
    CHECK(query().durable_epoch < query().epoch);
    plenty();
    CHECK_EQ(obj_sync(rig.pool), 0);
    CHECK(query().durable_epoch == query().epoch);
    CHECK_EQ(obj_checkpoint(rig.pool), 0);
    whole();
    shut_and_verify("2");
}

/* The threads, which nobody tells anything: they go on when they can. */
static void by_itself(void)
{
    uint64_t until;

    make(5);
    scarce();
    CHECK_EQ(rig_put(&rig, 1, "k", "3"), 0);
    pthread_mutex_lock(&rig.pool->lock);
    checkpoint_kick(rig.pool);
    pthread_mutex_unlock(&rig.pool->lock);
    usleep(50000);
    whole();
    CHECK(query().durable_epoch < query().epoch);
    plenty();
    until = base_mono_ns() + 10000000000ull;
    while (query().durable_epoch < query().epoch || query().overlay_keys > 0) {
        CHECK(base_mono_ns() < until);
        usleep(5000);
    }
    whole();
    shut_and_verify("3");
}

/* More than the journal's memory takes: a commit that must wait for a write gets the error. */
static void without_room(void)
{
    static char value[60001];
    unsigned n = 0;
    int rc;

    memset(value, 'x', sizeof(value) - 1);
    make(5);
    scarce();
    do {
        CHECK(n++ < 10000);
        rc = rig_put(&rig, n, "k", value);
    } while (rc == 0);
    CHECK_EQ(rc, -ENOMEM);
    whole();
    plenty();
    CHECK_EQ(rig_put(&rig, n, "k", value), 0);
    CHECK_EQ(obj_sync(rig.pool), 0);
    whole();
    shut_and_verify(value);
}

/* The kernel's own -ENOMEM to a flush is no such thing: it may have lost something. */
static void failed_flush(void)
{
    struct sim_fault fault = {.ops = 1u << QUEUE_FLUSH, .count = 1, .err = -ENOMEM};

    make(10000);
    sim_fault_add("scarce", &fault);
    CHECK_EQ(rig_put(&rig, 1, "k", "4"), 0);
    CHECK_EQ(obj_sync(rig.pool), -EIO);
    CHECK(query().read_only);
    CHECK_EQ(rig_shut(&rig), -EIO);
    CHECK_EQ(obj_pool_destroy(rig.path, true), 0);
    CHECK_EQ(sim_destroy("scarce"), 0);
}

int main(void)
{
    base_log_set(quiet, NULL);
    RUN(told);
    RUN(by_itself);
    RUN(without_room);
    RUN(failed_flush);
    return 0;
}
