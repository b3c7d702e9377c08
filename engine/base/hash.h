/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash-1-3: a keyed hash that an adversary who picks names cannot make collide. */
#ifndef DFE_BASE_HASH_H
#define DFE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t base_siphash(const uint8_t key[16], const void *data, size_t len_bytes);

#endif
