/* SPDX-License-Identifier: Apache-2.0 */
/* Looks up libc's functions behind the hooks. */
#include "il/real.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>

static ssize_t answer(long ret)
{
    if (ret < 0) {
        errno = (int)-ret;
        return -1;
    }
    return ret;
}

static ssize_t bare_read(int fd, void *buf, size_t n)
{
    return answer(il_sys(SYS_read, fd, buf, n, 0));
}

static ssize_t bare_write(int fd, const void *buf, size_t n)
{
    return answer(il_sys(SYS_write, fd, buf, n, 0));
}

static int bare_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = va_arg(args, mode_t); /* garbage where it does not count */
    va_end(args);
    return (int)answer(il_sys(SYS_openat, AT_FDCWD, path, flags, mode));
}

static int bare_close(int fd)
{
    return (int)answer(il_sys(SYS_close, fd, 0, 0, 0));
}

struct il_real il_real = {
    .read_ = bare_read,
    .write_ = bare_write,
    .open_ = bare_open,
    .open64_ = bare_open,
    .close_ = bare_close,
};

static long absent(void)
{
    errno = ENOSYS;
    return -1;
}

static const struct {
    const char *name;
    size_t at;
} places[] = {
#define HOOK(name, test, what) {#name, offsetof(struct il_real, name##_)},
#define LEFT(name, test, why)
#include "il/symbols.def"
};

#define N_PLACES (sizeof(places) / sizeof(places[0]))

/* The table is written word by word with plain pointers: whoever calls meanwhile finds the old
 * value or the new one, and both work. */
void il_resolve(void)
{
    static _Atomic int begun;
    int saved = errno;

    if (atomic_exchange(&begun, 1)) {
        return;
    }
    for (size_t i = 0; i < N_PLACES; i++) {
        void **place = (void **)((char *)&il_real + places[i].at);
        if (!*place) {
            __atomic_store_n(place, (void *)absent, __ATOMIC_RELEASE);
        }
    }
    for (size_t i = 0; i < N_PLACES; i++) {
        void *found = dlsym(RTLD_NEXT, places[i].name);
        if (found) {
            void **place = (void **)((char *)&il_real + places[i].at);
            __atomic_store_n(place, found, __ATOMIC_RELEASE);
        }
    }
    errno = saved;
}
