/* SPDX-License-Identifier: Apache-2.0 */
/* Random transactions, snapshots, checkpoints and openings against a shadow. */
#include "obj_shadow.h"

#include "base/clock.h"

static int destroy_one(const struct obj_snap_info *s, void *arg)
{
    snprintf(arg, 64, "%s", s->name);
    return 1;
}

static void destroy_snapshots(struct rig *r)
{
    char name[64];

    while (obj_snap_list(r->cont, destroy_one, name) == 1)
        CHECK_EQ(obj_snap_destroy(r->cont, name), 0);
}

static void punch_all(struct rig *r)
{
    struct obj_tx *tx;

    CHECK_EQ(obj_tx_begin(r->cont, rig_oid(0), &tx), 0);
    for (unsigned o = 0; o < SHADOW_OBJS; o++)
        CHECK_EQ(obj_tx_punch_object(tx, OBJ_HOME, rig_oid(o)), 0);
    CHECK_EQ(obj_tx_commit(tx, 0, NULL), 0);
}

/* Everything deleted, all blocks must come back, by continuations too. */
static void empty_is_free(struct rig *r, uint64_t free_blocks)
{
    const struct shadow none = {0};
    uint64_t until = base_mono_ns() + 20000000000ull;

    destroy_snapshots(r);
    punch_all(r);
    shadow_verify(r->cont, &none);
    while (rig_free_blocks(r) != free_blocks && base_mono_ns() < until)
        usleep(20000);
    CHECK_EQ(rig_free_blocks(r), free_blocks);
    CHECK_EQ(rig_check(r), 0);
}

static void run(uint64_t seed, unsigned steps, uint64_t overlay_bytes)
{
    struct shadow_log log;
    struct rig r;
    uint64_t free_blocks;

    shadow_log_init(&log);
    rig_make(&r, "random", NULL, 128);
    free_blocks = rig_free_blocks(&r);
    for (unsigned i = 0; i < steps; i++) {
        CHECK_EQ(shadow_step(&r, &log, &seed), 0);
        CHECK_EQ(shadow_admin(&r, &log, &seed), 0);
        if (i % 5 == 4)
            shadow_verify(r.cont, shadow_at(&log, UINT64_MAX));
        if (i % 20 == 19)
            shadow_verify_snapshots(&r, &log);
        if (i % 50 == 49) {
            CHECK_EQ(rig_check(&r), 0);
            CHECK_EQ(rig_shut(&r), 0);
            rig_open(&r, overlay_bytes);
        }
    }
    empty_is_free(&r, free_blocks);
    rig_destroy(&r);
    shadow_log_free(&log);
}

int main(void)
{
    uint64_t seed = test_seed();

    run(seed, 150, 0);
    run(seed + 1, 150, 64 << 10);
    return 0;
}
