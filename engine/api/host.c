/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process may use, and from it the arena's default bound. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "base/limits.h"

/* Enough for a laptop's working set; who has a larger machine says how much the cache may take. */
#define ARENA_DEFAULT_MAX_BYTES (4ull << 30)

/* The number in a control-group file; UINT64_MAX where there is none ("max", no file). */
static uint64_t read_limit(const char *path)
{
    FILE *f = fopen(path, "re");
    unsigned long long value;
    uint64_t limit = UINT64_MAX;

    if (!f)
        return limit;
    if (fscanf(f, "%llu", &value) == 1)
        limit = value;
    fclose(f);
    return limit;
}

/* The least limit of a group and the groups above it. dir is cut from its end. */
static uint64_t group_limit(const char *mount, char *dir, const char *file)
{
    char path[1024];
    uint64_t least = UINT64_MAX;

    for (;;) {
        char *slash = strrchr(dir, '/');
        uint64_t limit;

        if (snprintf(path, sizeof(path), "%s%s/%s", mount, dir, file) < (int)sizeof(path)) {
            limit = read_limit(path);
            if (limit < least)
                least = limit;
        }
        if (!slash)
            return least;
        *slash = '\0';
    }
}

/* Both versions of control groups: a line is ID:CONTROLLERS:DIR, version 2 has "0::DIR". */
static uint64_t cgroup_limit(void)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[1024];
    uint64_t least = UINT64_MAX;

    if (!f)
        return least;
    while (fgets(line, sizeof(line), f)) {
        char *controllers = strchr(line, ':');
        char *dir = controllers ? strchr(controllers + 1, ':') : NULL;
        uint64_t limit = UINT64_MAX;

        if (!dir)
            continue;
        *dir++ = '\0';
        dir[strcspn(dir, "\n")] = '\0';
        if (controllers[1] == '\0')
            limit = group_limit("/sys/fs/cgroup", dir, "memory.max");
        else if (strstr(controllers, "memory"))
            limit = group_limit("/sys/fs/cgroup/memory", dir, "memory.limit_in_bytes");
        if (limit < least)
            least = limit;
    }
    fclose(f);
    return least;
}

uint64_t api_arena_default(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t memory = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    uint64_t group = cgroup_limit();
    uint64_t bound = (group < memory ? group : memory) / 4;

    if (bound > ARENA_DEFAULT_MAX_BYTES)
        bound = ARENA_DEFAULT_MAX_BYTES;
    bound -= bound % DFE_ARENA_EXTENT_BYTES;
    return bound < DFE_ARENA_EXTENT_BYTES ? DFE_ARENA_EXTENT_BYTES : bound;
}
