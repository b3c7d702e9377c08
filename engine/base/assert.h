/* SPDX-License-Identifier: Apache-2.0 */
/* An assertion that never compiles out (release builds set NDEBUG). For our own invariants only:
 * bad media and bad clients are error codes. */
#ifndef DFE_BASE_ASSERT_H
#define DFE_BASE_ASSERT_H

_Noreturn void base_panic(const char *file, int line, const char *what);

#define DFE_ASSERT(cond) ((cond) ? (void)0 : base_panic(__FILE__, __LINE__, #cond))

#define DFE_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#endif
