/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs of tests/il share: a line for each call, its result and its errno. */
#ifndef DFE_TESTS_IL_ROWS_H
#define DFE_TESTS_IL_ROWS_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Results are printed; what is no result (an address, an inode number) is turned into one first. */
#define SAY(expr) \
    do { \
        errno = 0; \
        long said_ = (long)(expr); \
        printf("%s = %ld %s\n", #expr, said_, said_ < 0 ? strerrorname_np(errno) : "-"); \
        fflush(stdout); \
    } while (0)

#define SHOW(buf, n) \
    do { \
        printf("%s: %.*s\n", #buf, (int)(n), (const char *)(buf)); \
        fflush(stdout); \
    } while (0)

/* A file of 64 KiB: line i is "line NNNNN ...\n" of 32 bytes. Open read-write, at offset 0. */
int rows_file(const char *name);
/* Enough calls on fd that the process attaches, where it can. */
void rows_warm(int fd);
/* A sum over the file's bytes; says how many there are. */
unsigned long rows_sum(const char *name);
/* Waits for pid; its exit status, or -1. */
int rows_wait(pid_t pid);

typedef void (*rows_case)(void);
extern const struct rows_entry {
    const char *name;
    rows_case run;
} rows_files[], rows_processes[], rows_trouble[], rows_mixed[];

#endif
