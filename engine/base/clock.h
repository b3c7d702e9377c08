/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks, in nanoseconds. */
#ifndef DFE_BASE_CLOCK_H
#define DFE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t base_mono_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

/* Wall clock: nanoseconds since the epoch, signed as Linux keeps times. The coarse clock, which the
 * kernel stamps files with: a finer one would run up to a tick ahead of the times that the kernel
 * itself sends (touch), and make a file older by touching it. */
static inline int64_t base_real_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME_COARSE, &ts);
    return (int64_t)ts.tv_sec * 1000000000ll + (int64_t)ts.tv_nsec;
}

#endif
