/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for the session's client, which is compiled with these in place of malloc: a data call may
 * attach from inside a signal handler that interrupted the program's allocator, or from inside the
 * allocator itself. Few and long-lived pieces, so each is a mapping of its own.
 */
#include "il/il.h"

#include <string.h>

void *il_calloc(size_t n, size_t size);
void *il_malloc(size_t size);
char *il_strdup(const char *text);
void il_free(void *at);

#define HEAD 64u /* the mapping's length, and alignment */

void *il_malloc(size_t size)
{
    size_t whole = (size + HEAD + 4095) & ~(size_t)4095;
    long at = size > SIZE_MAX / 2 ? -ENOMEM
                                  : sys_call(SYS_mmap, 0, (long)whole, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at < 0) {
        return NULL;
    }
    *(size_t *)at = whole;
    return (char *)at + HEAD;
}

void *il_calloc(size_t n, size_t size)
{
    size_t sum;

    return __builtin_mul_overflow(n, size, &sum) ? NULL : il_malloc(sum); /* mappings are zero */
}

char *il_strdup(const char *text)
{
    size_t len = strlen(text) + 1;
    char *copy = il_malloc(len);

    return copy ? memcpy(copy, text, len) : NULL;
}

void il_free(void *at)
{
    if (at) {
        char *base = (char *)at - HEAD;
        il_sys(SYS_munmap, base, *(size_t *)base, 0, 0);
    }
}
