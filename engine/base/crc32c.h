/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C (Castagnoli). Start with crc = 0; chain by passing the previous result. Any thread. */
#ifndef DFE_BASE_CRC32C_H
#define DFE_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t base_crc32c(uint32_t crc, const void *data, size_t len_bytes);

/* The same sum by tables alone: for hosts without CRC instructions, and the tests' reference. */
uint32_t base_crc32c_portable(uint32_t crc, const void *data, size_t len_bytes);

#endif
