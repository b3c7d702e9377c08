/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzer's body, for libFuzzer and for fuzz_main.c. */
#ifndef DFE_TEST_FUZZ_DISPATCH_H
#define DFE_TEST_FUZZ_DISPATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* hostile: push areas change while they are read (a data race on purpose). */
void fuzz_one(const uint8_t *data, size_t len, bool hostile);
void fuzz_end(void);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#endif
