/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed memfds: written here, read elsewhere. */
#include "base/window.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define SEALS (F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

void *window_map(int fd, size_t bytes, void *at)
{
    void *there, *here = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (!at || here == MAP_FAILED)
        return here;
    /* What can fail, the reservation of hugepages above all, has not. */
    there = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    munmap(here, bytes);
    return there;
}

int window_make(const char *name, size_t bytes, unsigned pages, void *at, void **mem)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int rc = 0;
    int fd;

    if (pages == WINDOW_HUGE)
        flags |= MFD_HUGETLB | MFD_HUGE_2MB;
    fd = memfd_create(name, flags);
    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)bytes) < 0) {
        rc = -errno;
        goto out;
    }
    *mem = window_map(fd, bytes, at);
    if (*mem == MAP_FAILED) {
        rc = -errno;
        goto out;
    }
    if (fcntl(fd, F_ADD_SEALS, SEALS) == 0) /* only now: our mapping must come first */
        return fd;
    rc = -errno;
    if (!at) /* else the next mapping of the caller's addresses replaces it */
        munmap(*mem, bytes);
out:
    close(fd);
    return rc;
}

int window_share(int fd)
{
    char path[32];
    int copy;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    copy = open(path, O_RDONLY | O_CLOEXEC);
    if (copy < 0)
        copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return copy < 0 ? -errno : copy;
}
