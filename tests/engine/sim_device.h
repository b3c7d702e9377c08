/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated device that misbehaves from a seed: backend `sim` of the queue layer (URI sim:NAME),
 * for tests. A device lives in memory, by name, from sim_create to sim_destroy, across opens.
 * Naming sim_device.c among a test's sources is enough to have the backend.
 *
 * The model is a disk with a volatile write cache:
 *
 *  - requests complete in queue_poll, in an order drawn from the seed; a write takes effect when it
 *    completes, and the whole device then reads it back;
 *  - a completed write is *volatile* until a FLUSH that was submitted after it completed has
 *    completed. A power loss takes, of each volatile write and of each write still in flight,
 *    by its own luck: all of it, none, or some of its 512-byte sectors. So later writes may survive
 *    where earlier ones do not (reordering), and blocks may be torn. Of overlapping survivors the
 *    later one wins, sector by sector, as on a disk that keeps the order of one sector;
 *  - nothing else changes by itself. What is to go wrong is said with sim_fault_add, sim_power_cut,
 *    sim_flip_bit and sim_scribble.
 *
 * The device also watches its user: a buffer that changes while its write is in flight aborts the
 * test.
 *
 * One seed and one thread give one run. With several threads each queue may be used by its own, and
 * results depend on their timing. The functions here take the device's lock: any thread may call.
 *
 * A crash test, in full:
 *
 *     sim_create("a", 64 << 20, seed);
 *     ... make a pool on sim:a, run the workload once; note n = sim_changes("a") at its end ...
 *     for each k in 0..n (or a random k):
 *         sim_destroy, sim_create again with the same seed, sim_power_cut("a", k), run the
 *         workload: change k does not complete, and all requests fail with -EIO from there;
 *         close everything; open sim:a again: power is back, what survived is there; check.
 *
 * or, without stopping the workload: sim_clone("a", "b", seed2) makes sim:b with what a power loss
 * at this instant would leave, as often as wanted; open sim:b and check it.
 */
#ifndef DFE_TEST_SIM_DEVICE_H
#define DFE_TEST_SIM_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "queue/queue.h"

#define SIM_SECTOR_BYTES 512u

/* A zeroed device, open to nobody. -EEXIST. Its pages cost memory once they are written.
 * (queue_dev_open with opts.create does the same with seed 1.) */
int sim_create(const char *name, uint64_t size_bytes, uint64_t seed);
/* -ENOENT, -EBUSY while it is open. */
int sim_destroy(const char *name);

/* Faults. Each rule is tried in the order added, for each request as it completes. */
struct sim_fault {
    unsigned ops;       /* 1 << enum queue_op, or'ed; 0: all */
    uint64_t skip;      /* so many matching requests pass first */
    uint64_t count;     /* then so many fail; 0: all of them from then on */
    uint64_t off, len;  /* matches requests that touch this range; len 0: the whole device.
                         * A FLUSH touches every range. */
    int err;            /* negative errno of the request, e.g. -EIO, -ENOSPC */
    bool partial;       /* a failing write still transfers some of its sectors (else none) */
};
void sim_fault_add(const char *name, const struct sim_fault *fault);
void sim_fault_clear(const char *name);

/* The device has at most so many queues at a time; another gets -ENOMEM. 0: as many as wanted. */
void sim_limit_queues(const char *name, unsigned most);

/* Transfers of more than one block are cut short with this probability, in 1/1000, after at least
 * one block; the queue layer must go on. */
void sim_short_transfers(const char *name, unsigned permille);

/* The power fails at the (after + 1)-th change (WRITE, FLUSH or DISCARD) that would complete from
 * now: it and everything else gets -EIO, until the device is closed and opened again. A flush that
 * is cut makes nothing durable for certain. */
void sim_power_cut(const char *name, uint64_t after);
bool sim_power_is_off(const char *name);

/* Changes that have completed since sim_create. */
uint64_t sim_changes(const char *name);
/* Requests of one kind that have completed, with or without success. */
uint64_t sim_count(const char *name, enum queue_op op);
/* Bytes of completed writes that no flush has covered. */
uint64_t sim_volatile_bytes(const char *name);

/* A new device with what would survive a power loss at this instant, drawn from `seed`. The
 * original goes on undisturbed. It has no faults. */
int sim_clone(const char *name, const char *new_name, uint64_t seed);

/* Damage of the medium, at once and durable: one bit; or random bytes over a range. */
void sim_flip_bit(const char *name, uint64_t byte_off, unsigned bit);
void sim_scribble(const char *name, uint64_t off, uint64_t len);

/* Looks at what a read would give now, and at what is durable for certain. */
void sim_peek(const char *name, uint64_t off, void *buf, uint64_t len);
void sim_peek_durable(const char *name, uint64_t off, void *buf, uint64_t len);

#endif
