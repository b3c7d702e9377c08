/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power losses: a random workload on the simulated device loses power at a random change; what
 * opens afterwards must be the state of one commit, no older than the last that was synced, and
 * whole. Then the workload goes on on what is left.
 */
#include "obj_shadow.h"

#include "base/clock.h"
#include "sim_device.h"

static unsigned cuts, commits_lost;

static void quiet(int level, const char *text, void *arg)
{
    (void)level, (void)text, (void)arg;
}

/* Works until the power fails. */
static void work(struct rig *r, struct shadow_log *log, uint64_t *seed, unsigned most)
{
    for (unsigned i = 0; i < most; i++) {
        int rc = shadow_step(r, log, seed);
        if (rc == 0)
            rc = shadow_admin(r, log, seed);
        if (rc < 0) {
            CHECK(sim_power_is_off(r->device + 4));
            return;
        }
    }
}

static uint64_t recovered_epoch(struct rig *r)
{
    struct obj_pool_info info;

    obj_pool_query(r->pool, &info);
    if (info.damage[0])
        fprintf(stderr, "damage: %s\n", info.damage);
    CHECK(info.damage[0] == '\0');
    return info.epoch;
}

/* Power also fails during the opening now and then. */
static void open_again(struct rig *r, uint64_t *seed)
{
    for (unsigned tries = 0;; tries++) {
        bool cut = tries < 3 && test_rand(seed) % 3 == 0;
        int rc;
        if (cut)
            sim_power_cut(r->device + 4, test_rand(seed) % 12);
        rc = rig_try_open(r, test_rand(seed) % 2 ? 48 << 10 : 0);
        if (rc == 0 && !sim_power_is_off(r->device + 4)) {
            sim_fault_clear(r->device + 4);
            sim_power_cut(r->device + 4, UINT64_MAX / 2);
            if (!sim_power_is_off(r->device + 4))
                return;
        }
        if (rc == 0)
            rig_shut(r);
        CHECK(cut);
    }
}

static void one_seed(uint64_t seed)
{
    struct shadow_log log;
    struct rig r;

    fprintf(stderr, "   workload %llu\n", (unsigned long long)seed);
    shadow_log_init(&log);
    CHECK_EQ(sim_create("crash", 64 << 20, seed), 0);
    rig_make(&r, "crash", "sim:crash", 64);
    for (unsigned round = 0; round < 6; round++) {
        uint64_t epoch;
        sim_power_cut("crash", test_rand(&seed) % (round == 0 ? 40 : 400));
        work(&r, &log, &seed, 120);
        if (!sim_power_is_off("crash"))
            sim_power_cut("crash", 0);
        obj_sync(r.pool); /* meets the cut, whatever there is left to write */
        rig_shut(&r);
        open_again(&r, &seed);
        epoch = recovered_epoch(&r);
        if (epoch < log.synced)
            fprintf(stderr, "epoch %llu is there, %llu was synced\n", (unsigned long long)epoch,
                    (unsigned long long)log.synced);
        CHECK(epoch >= log.synced);
        cuts++;
        commits_lost += log.n > 0 && log.v[log.n - 1].epoch > epoch;
        shadow_log_cut(&log, epoch);
        shadow_verify(r.cont, shadow_at(&log, UINT64_MAX));
        shadow_verify_snapshots(&r, &log);
        CHECK_EQ(rig_check(&r), 0);
    }
    CHECK_EQ(rig_shut(&r), 0);
    CHECK_EQ(obj_pool_destroy(r.path, false), 0);
    CHECK_EQ(sim_destroy("crash"), 0);
    shadow_log_free(&log);
}

int main(int argc, char **argv)
{
    uint64_t seed = test_seed(), until;
    const char *secs = getenv("DFE_CRASH_SECONDS");

    base_log_set(quiet, NULL);
    until = base_mono_ns() + (secs ? strtoull(secs, NULL, 10) : 20) * 1000000000ull;
    do
        one_seed(seed++);
    while (base_mono_ns() < until);
    fprintf(stderr, "%u power losses, %u of them took commits\n", cuts, commits_lost);
    return 0;
}
