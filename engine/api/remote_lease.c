/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases that this process has got for one file system: where bytes of a file were in the engine's
 * memory. All are hints: who reads by one finds out whether it still is right (client_lease_read).
 *
 * A table of sets of WAYS leases, by inode and 64 KiB of the file; a lease of a longer run is in
 * the set of each 64 KiB of it. A run may be as short as a block, so that a set serves several.
 */
#include <pthread.h>
#include <stdlib.h>

#include "api/remote.h"

#define SETS                                                                                       \
    512u /* with 4 ways 160 KiB a file system, most of it never touched by small programs */
#define WAYS 4u
#define UNIT_SHIFT 16
#define LOCKS 16u

struct set {
    uint32_t next; /* way to use next */
    uint64_t epoch[WAYS];
    struct proto_lease lease[WAYS];
};

struct remote_leases {
    pthread_mutex_t lock[LOCKS]; /* of the sets whose number ends in it */
    struct set set[SETS];
};

struct remote_leases *leases_open(void)
{
    struct remote_leases *leases = calloc(1, sizeof(*leases));

    for (unsigned i = 0; leases && i < LOCKS; i++)
        pthread_mutex_init(&leases->lock[i], NULL);
    return leases;
}

void leases_close(struct remote_leases *leases)
{
    free(leases);
}

static unsigned number(uint64_t ino, uint64_t unit)
{
    uint64_t h = (ino * 0x9e3779b97f4a7c15ull + unit) * 0xff51afd7ed558ccdull;

    return (unsigned)(h >> 40) % SETS;
}

static bool covers(const struct proto_lease *lease, uint64_t ino, uint64_t off)
{
    return lease->ino == ino && off >= lease->file_off && off - lease->file_off < lease->len;
}

bool leases_find(struct remote_leases *leases, uint64_t epoch, uint64_t ino, uint64_t off,
                 struct proto_lease *out)
{
    unsigned n = number(ino, off >> UNIT_SHIFT);
    struct set *set = &leases->set[n];
    bool found = false;

    pthread_mutex_lock(&leases->lock[n % LOCKS]);
    for (unsigned i = 0; i < WAYS && !found; i++)
        if (set->epoch[i] == epoch && covers(&set->lease[i], ino, off)) {
            *out = set->lease[i];
            found = true;
        }
    pthread_mutex_unlock(&leases->lock[n % LOCKS]);
    return found;
}

/* In the place of one of the same run, else of the oldest. */
static void put(struct remote_leases *leases, uint64_t epoch, const struct proto_lease *lease,
                uint64_t unit)
{
    unsigned n = number(lease->ino, unit), way = 0;
    struct set *set = &leases->set[n];

    pthread_mutex_lock(&leases->lock[n % LOCKS]);
    while (way < WAYS && !covers(&set->lease[way], lease->ino, lease->file_off))
        way++;
    if (way == WAYS)
        way = set->next++ % WAYS;
    set->epoch[way] = epoch;
    set->lease[way] = *lease;
    pthread_mutex_unlock(&leases->lock[n % LOCKS]);
}

void leases_add(struct remote_leases *leases, uint64_t epoch, const struct proto_lease *lease)
{
    uint64_t first = lease->file_off >> UNIT_SHIFT, last;

    if (lease->len == 0)
        return;
    last = (lease->file_off + lease->len - 1) >> UNIT_SHIFT;
    for (uint64_t unit = first; unit <= last && unit - first < SETS; unit++)
        put(leases, epoch, lease, unit);
}
