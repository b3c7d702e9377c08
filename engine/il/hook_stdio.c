/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks of streams and directories: libc opens, reads and closes inside itself, past all hooks, so
 * entries are cleared here; and a stream that reads from a mount gets a buffer of 1 MiB.
 */
#include "il/il.h"

#include <string.h>

/* "r" without "+": a larger buffer of a writer would lose more when it is killed. */
static bool only_reads(const char *mode)
{
    return mode[0] == 'r' && !strchr(mode, '+');
}

/* The buffer is the kernel's pages, touched as they are used: no allocator is called. */
static void enlarge(FILE *stream)
{
    struct il_file file;
    int fd = fileno(stream);

    if (il_fd_is_other(fd) || il_fd_file(fd, &file) < 0 || !il_enter()) {
        return;
    }
    bool wanted = il_dev_is_mount(file.dev, fd);
    il_leave();
    for (unsigned i = 0; wanted && i < IL_STREAMS; i++) {
        FILE *none = NULL;
        if (!atomic_compare_exchange_strong(&il->stream[i].stream, &none, stream)) {
            continue;
        }
        long at = sys_call(SYS_mmap, 0, IL_STREAM_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        il->stream[i].buf = at < 0 ? NULL : (void *)at;
        if (at < 0 || setvbuf(stream, (char *)at, _IOFBF, IL_STREAM_BYTES)) {
            if (at >= 0) {
                il_sys(SYS_munmap, at, IL_STREAM_BYTES, 0, 0);
            }
            atomic_store(&il->stream[i].stream, NULL);
        }
        return;
    }
}

/* The buffer of a stream that is about to go. */
static void *buffer_of(FILE *stream)
{
    for (unsigned i = 0; i < IL_STREAMS && il_ready(); i++) {
        if (atomic_load(&il->stream[i].stream) == stream) {
            void *buf = il->stream[i].buf;
            atomic_store(&il->stream[i].stream, NULL);
            return buf;
        }
    }
    return NULL;
}

static FILE *opened(FILE *stream, const char *mode)
{
    int saved = errno;

    if (stream) {
        il_fd_opened(fileno(stream));
        if (mode && only_reads(mode)) {
            enlarge(stream);
        }
        errno = saved;
    }
    return stream;
}

IL_EXPORT FILE *fopen(const char *restrict path, const char *restrict mode)
{
    return opened(IL_REAL(fopen)(path, mode), mode);
}

IL_EXPORT FILE *fopen64(const char *restrict path, const char *restrict mode)
{
    return opened(IL_REAL(fopen64)(path, mode), mode);
}

IL_EXPORT FILE *fdopen(int fd, const char *mode)
{
    FILE *stream = IL_REAL(fdopen)(fd, mode);

    if (stream && only_reads(mode)) {
        int saved = errno;
        enlarge(stream);
        errno = saved;
    }
    return stream;
}

IL_EXPORT FILE *freopen(const char *restrict path, const char *restrict mode,
                        FILE *restrict stream)
{
    il_fd_clear(fileno(stream));
    return opened(IL_REAL(freopen)(path, mode, stream), NULL);
}

IL_EXPORT FILE *freopen64(const char *restrict path, const char *restrict mode,
                          FILE *restrict stream)
{
    il_fd_clear(fileno(stream));
    return opened(IL_REAL(freopen64)(path, mode, stream), NULL);
}

IL_EXPORT int fclose(FILE *stream)
{
    int saved = errno;

    il_fd_clear(fileno(stream));
    errno = saved; /* a stream without a descriptor is no error */
    void *buf = buffer_of(stream);
    int ret = IL_REAL(fclose)(stream);
    if (buf) {
        il_sys(SYS_munmap, buf, IL_STREAM_BYTES, 0, 0);
    }
    return ret;
}

IL_EXPORT int fcloseall(void)
{
    il_fd_clear_range(0, IL_FDS);
    return IL_REAL(fcloseall)();
}

IL_EXPORT FILE *tmpfile(void)
{
    return opened(IL_REAL(tmpfile)(), NULL);
}

IL_EXPORT FILE *tmpfile64(void)
{
    return opened(IL_REAL(tmpfile64)(), NULL);
}

IL_EXPORT FILE *popen(const char *command, const char *mode)
{
    il_share_all();
    FILE *stream = IL_REAL(popen)(command, mode);
    if (stream) {
        il_fd_other(fileno(stream));
    }
    return stream;
}

IL_EXPORT int pclose(FILE *stream)
{
    il_fd_clear(fileno(stream));
    return IL_REAL(pclose)(stream);
}

IL_EXPORT DIR *opendir(const char *path)
{
    DIR *dir = IL_REAL(opendir)(path);

    if (dir) {
        il_fd_other(dirfd(dir));
    }
    return dir;
}

IL_EXPORT int closedir(DIR *dir)
{
    il_fd_clear(dirfd(dir)); /* -1 where there is none */
    return IL_REAL(closedir)(dir);
}
