/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C by the CPU's instructions, or by tables where it has none; chosen at the first call. */
#include "base/crc32c.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/words.h"

#define POLY_REFLECTED 0x82F63B78u

typedef uint32_t (*crc_fn)(uint32_t crc, const void *data, size_t len_bytes);

/* Slicing by eight: tables[k][b] is the sum of byte b followed by k zero bytes. */
static uint32_t tables[8][256];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void tables_make(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (POLY_REFLECTED & -(crc & 1));
        tables[0][b] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t b = 0; b < 256; b++)
            tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 0xff];
}

uint32_t base_crc32c_portable(uint32_t crc, const void *data, size_t len_bytes)
{
    const uint8_t *p = data;

    pthread_once(&tables_once, tables_make);
    crc = ~crc;
    for (; len_bytes >= 8; p += 8, len_bytes -= 8) {
        uint64_t w = get_le64(p) ^ crc;
        crc = 0;
        for (int k = 0; k < 8; k++)
            crc ^= tables[7 - k][(w >> (8 * k)) & 0xff];
    }
    for (; len_bytes; p++, len_bytes--)
        crc = (crc >> 8) ^ tables[0][(crc ^ *p) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)

#include <immintrin.h>

/*
 * The crc32 instruction takes 3 cycles but one may start in each: three lanes of the buffer are
 * summed side by side and joined. Moving a lane's sum over n bytes is a multiplication by x^(8n)
 * mod P; pclmul leaves one x and crc32 over the 64-bit product adds x^32, so the constants are
 * x^(8n - 33) mod P, bit-reflected. A 4 KiB block is one round of long lanes and 16 bytes.
 */
#define LONG_LANE_BYTES 1360
#define LONG_SHIFT_1 0x3f70cc6fu  /* n = 1360 */
#define LONG_SHIFT_2 0x5aa1f3cfu  /* n = 2720 */
#define SHORT_LANE_BYTES 168
#define SHORT_SHIFT_1 0x1b3d8f29u /* n = 168 */
#define SHORT_SHIFT_2 0xa60ce07bu /* n = 336 */

#define CRC_TARGET __attribute__((target("sse4.2,pclmul")))

CRC_TARGET static inline uint64_t product(uint64_t crc, uint32_t shift)
{
    __m128i p = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc),
                                     _mm_cvtsi64_si128((long long)shift), 0);
    return (uint64_t)_mm_cvtsi128_si64(p);
}

CRC_TARGET static inline uint64_t three_lanes(uint64_t crc, const uint8_t *p, size_t lane_bytes,
                                              uint32_t shift_1, uint32_t shift_2)
{
    uint64_t b = 0, c = 0;

    for (size_t i = 0; i < lane_bytes; i += 8) {
        crc = _mm_crc32_u64(crc, get_le64(p + i));
        b = _mm_crc32_u64(b, get_le64(p + lane_bytes + i));
        c = _mm_crc32_u64(c, get_le64(p + 2 * lane_bytes + i));
    }
    return c ^ _mm_crc32_u64(0, product(crc, shift_2) ^ product(b, shift_1));
}

CRC_TARGET static uint32_t crc_hardware(uint32_t start, const void *data, size_t len_bytes)
{
    const uint8_t *p = data;
    uint64_t crc = (uint32_t)~start;

    while (len_bytes >= 3 * LONG_LANE_BYTES) {
        crc = three_lanes(crc, p, LONG_LANE_BYTES, LONG_SHIFT_1, LONG_SHIFT_2);
        p += 3 * LONG_LANE_BYTES;
        len_bytes -= 3 * LONG_LANE_BYTES;
    }
    while (len_bytes >= 3 * SHORT_LANE_BYTES) {
        crc = three_lanes(crc, p, SHORT_LANE_BYTES, SHORT_SHIFT_1, SHORT_SHIFT_2);
        p += 3 * SHORT_LANE_BYTES;
        len_bytes -= 3 * SHORT_LANE_BYTES;
    }
    for (; len_bytes >= 8; p += 8, len_bytes -= 8)
        crc = _mm_crc32_u64(crc, get_le64(p));
    for (; len_bytes; p++, len_bytes--)
        crc = _mm_crc32_u8((uint32_t)crc, *p);
    return ~(uint32_t)crc;
}

static crc_fn choose(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")
               ? crc_hardware
               : base_crc32c_portable;
}

#elif defined(__ARM_FEATURE_CRC32)

#include <arm_acle.h>

static uint32_t crc_hardware(uint32_t crc, const void *data, size_t len_bytes)
{
    const uint8_t *p = data;

    crc = ~crc;
    for (; len_bytes >= 8; p += 8, len_bytes -= 8)
        crc = __crc32cd(crc, get_le64(p));
    for (; len_bytes; p++, len_bytes--)
        crc = __crc32cb(crc, *p);
    return ~crc;
}

static crc_fn choose(void)
{
    return crc_hardware;
}

#else

static crc_fn choose(void)
{
    return base_crc32c_portable;
}

#endif

uint32_t base_crc32c(uint32_t crc, const void *data, size_t len_bytes)
{
    /* Relaxed: every thread that chooses stores the same value. */
    static _Atomic(crc_fn) chosen;
    crc_fn fn = atomic_load_explicit(&chosen, memory_order_relaxed);

    if (!fn) {
        fn = choose();
        atomic_store_explicit(&chosen, fn, memory_order_relaxed);
    }
    return fn(crc, data, len_bytes);
}
