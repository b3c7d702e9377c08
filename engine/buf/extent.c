/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of arena extents: hugepages, transparent hugepages or ordinary pages; sealed memfds of
 * them where others are to read it. */
#include "buf/extent.h"

#include <errno.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/window.h"

#define EXTENT DFE_ARENA_EXTENT_BYTES

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

void *extent_reserve(uint64_t len_bytes)
{
    /* One extent more, so that the start can be aligned; the ends are given back. */
    char *at = mmap(NULL, len_bytes + EXTENT, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    size_t before = (EXTENT - (uintptr_t)at % EXTENT) % EXTENT;
    if (before)
        munmap(at, before);
    munmap(at + before + len_bytes, EXTENT - before);
    return at + before;
}

void extent_unreserve(void *base, uint64_t len_bytes)
{
    munmap(base, len_bytes);
}

/* Mapping takes the pages from the host's pool or fails: no SIGBUS later. */
static int map_huge(void *base)
{
    int rc = 0;
    int fd = memfd_create("dfusepy-arena", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);

    if (fd < 0)
        return -errno;
    if (ftruncate(fd, EXTENT) < 0 || window_map(fd, EXTENT, base) == MAP_FAILED)
        rc = -errno;
    close(fd);
    return rc;
}

/* The reservation itself, which is ordinary memory that nobody may touch yet. */
static int map_pages(void *base)
{
    return mprotect(base, EXTENT, PROT_READ | PROT_WRITE) < 0 ? -errno : 0;
}

/* madvise succeeds even where the administrator has turned the feature off. */
static bool thp_enabled(const char *path, const char *const *words)
{
    char text[96] = "";
    FILE *f = fopen(path, "re");
    bool enabled = false;

    if (!f)
        return false;
    if (!fgets(text, sizeof(text), f))
        text[0] = '\0';
    fclose(f);
    for (; *words && !enabled; words++)
        enabled = strstr(text, *words);
    return enabled;
}

static bool anonymous_thp(void)
{
    static const char *const words[] = {"[always]", "[madvise]", NULL};

    return thp_enabled("/sys/kernel/mm/transparent_hugepage/enabled", words);
}

static bool shared_thp(void)
{
    static const char *const words[] = {"[always]", "[within_size]", "[advise]", "[force]", NULL};

    return thp_enabled("/sys/kernel/mm/transparent_hugepage/shmem_enabled", words);
}

/* Shared memory comes in small pages by default even where anonymous memory may have large ones: a
 * setting that nobody thought of, not a wish. There we ask for it once the pages are there: 10 ms
 * an extent, half of which its first use would have cost anyway; streams write 1.6 times faster. */
static bool make_thp(void *base)
{
    if (shared_thp())
        return madvise(base, EXTENT, MADV_HUGEPAGE) == 0;
    return anonymous_thp() && madvise(base, EXTENT, MADV_POPULATE_WRITE) == 0 &&
           madvise(base, EXTENT, MADV_COLLAPSE) == 0;
}

static int map_window(void *base, enum buf_kind best, enum buf_kind *kind)
{
    void *at;
    int fd = -1;

    *kind = BUF_HUGE;
    if (best == BUF_HUGE)
        fd = window_make("dfusepy-arena", EXTENT, WINDOW_HUGE, base, &at);
    if (fd >= 0)
        return fd;
    *kind = BUF_PAGES;
    fd = window_make("dfusepy-arena", EXTENT, WINDOW_PAGES, base, &at);
    if (fd >= 0 && best <= BUF_THP && make_thp(base))
        *kind = BUF_THP;
    return fd;
}

int extent_map(void *base, enum buf_kind best, bool window, enum buf_kind *kind, int *fd)
{
    *fd = window ? map_window(base, best, kind) : -1;
    if (*fd >= 0)
        return 0;
    *fd = -1;
    if (best == BUF_HUGE && map_huge(base) == 0) {
        *kind = BUF_HUGE;
        return 0;
    }
    if (map_pages(base) < 0)
        return -ENOMEM;
    *kind = BUF_PAGES;
    if (best <= BUF_THP && anonymous_thp() && madvise(base, EXTENT, MADV_HUGEPAGE) == 0)
        *kind = BUF_THP;
    return 0;
}

void extent_unmap(void *base)
{
    void *at = mmap(base, EXTENT, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (at == MAP_FAILED)
        base_log(BASE_LOG_WARN, "arena: an extent could not be given back: %s", strerror(errno));
}
