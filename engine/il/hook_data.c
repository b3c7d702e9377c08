/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the data calls. */
#include "il/il.h"

#include <stdarg.h>

#define READ_AT(call, fd, buf, n, off) \
    il_read(IL_CALL_##call, (fd), &(struct iovec){(void *)(buf), (n)}, 1, (off), &ret)
#define WRITE_AT(call, fd, buf, n, off) \
    il_write(IL_CALL_##call, (fd), &(struct iovec){(void *)(buf), (n)}, 1, (off), &ret)

/* A negative offset is an error to the calls that take one; IL_AT_OFFSET is negative as well. */
#define GIVEN(off) ((off) < 0 ? INT64_MIN : (off))

IL_EXPORT ssize_t read(int fd, void *buf, size_t n)
{
    ssize_t ret;
    return READ_AT(read, fd, buf, n, IL_AT_OFFSET) ? ret : IL_REAL(read)(fd, buf, n);
}

IL_EXPORT ssize_t __read(int fd, void *buf, size_t n)
{
    return read(fd, buf, n);
}

/* The checked forms end the process where the buffer is too small: libc's business. */
IL_EXPORT ssize_t __read_chk(int fd, void *buf, size_t n, size_t room)
{
    ssize_t ret;
    return n <= room && READ_AT(read, fd, buf, n, IL_AT_OFFSET)
               ? ret
               : IL_REAL(__read_chk)(fd, buf, n, room);
}

IL_EXPORT ssize_t pread(int fd, void *buf, size_t n, off_t off)
{
    ssize_t ret;
    return READ_AT(pread, fd, buf, n, GIVEN(off)) ? ret : IL_REAL(pread)(fd, buf, n, off);
}

IL_EXPORT ssize_t pread64(int fd, void *buf, size_t n, off64_t off)
{
    return pread(fd, buf, n, off);
}

IL_EXPORT ssize_t __pread64(int fd, void *buf, size_t n, off64_t off)
{
    return pread(fd, buf, n, off);
}

IL_EXPORT ssize_t __pread_chk(int fd, void *buf, size_t n, off_t off, size_t room)
{
    ssize_t ret;
    return n <= room && READ_AT(pread, fd, buf, n, GIVEN(off))
               ? ret
               : IL_REAL(__pread_chk)(fd, buf, n, off, room);
}

IL_EXPORT ssize_t __pread64_chk(int fd, void *buf, size_t n, off64_t off, size_t room)
{
    return __pread_chk(fd, buf, n, off, room);
}

IL_EXPORT ssize_t readv(int fd, const struct iovec *iov, int n)
{
    ssize_t ret;
    return il_read(IL_CALL_readv, fd, iov, n, IL_AT_OFFSET, &ret) ? ret
                                                                  : IL_REAL(readv)(fd, iov, n);
}

IL_EXPORT ssize_t preadv(int fd, const struct iovec *iov, int n, off_t off)
{
    ssize_t ret;
    return il_read(IL_CALL_preadv, fd, iov, n, GIVEN(off), &ret)
               ? ret
               : IL_REAL(preadv)(fd, iov, n, off);
}

IL_EXPORT ssize_t preadv64(int fd, const struct iovec *iov, int n, off64_t off)
{
    return preadv(fd, iov, n, off);
}

/* Offset -1 means the kernel's. */
IL_EXPORT ssize_t preadv2(int fd, const struct iovec *iov, int n, off_t off, int flags)
{
    ssize_t ret;

    if (flags) {
        if (!il_fd_is_other(fd)) {
            il_left(IL_CALL_preadv, fd, IL_rwf);
        }
        return IL_REAL(preadv2)(fd, iov, n, off, flags);
    }
    return il_read(IL_CALL_preadv, fd, iov, n, off == -1 ? IL_AT_OFFSET : GIVEN(off), &ret)
               ? ret
               : IL_REAL(preadv2)(fd, iov, n, off, 0);
}

IL_EXPORT ssize_t preadv64v2(int fd, const struct iovec *iov, int n, off64_t off, int flags)
{
    return preadv2(fd, iov, n, off, flags);
}

IL_EXPORT ssize_t write(int fd, const void *buf, size_t n)
{
    ssize_t ret;
    return WRITE_AT(write, fd, buf, n, IL_AT_OFFSET) ? ret : IL_REAL(write)(fd, buf, n);
}

IL_EXPORT ssize_t __write(int fd, const void *buf, size_t n)
{
    return write(fd, buf, n);
}

IL_EXPORT ssize_t pwrite(int fd, const void *buf, size_t n, off_t off)
{
    ssize_t ret;
    return WRITE_AT(pwrite, fd, buf, n, GIVEN(off)) ? ret : IL_REAL(pwrite)(fd, buf, n, off);
}

IL_EXPORT ssize_t pwrite64(int fd, const void *buf, size_t n, off64_t off)
{
    return pwrite(fd, buf, n, off);
}

IL_EXPORT ssize_t __pwrite64(int fd, const void *buf, size_t n, off64_t off)
{
    return pwrite(fd, buf, n, off);
}

IL_EXPORT ssize_t writev(int fd, const struct iovec *iov, int n)
{
    ssize_t ret;
    return il_write(IL_CALL_writev, fd, iov, n, IL_AT_OFFSET, &ret) ? ret
                                                                    : IL_REAL(writev)(fd, iov, n);
}

IL_EXPORT ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t off)
{
    ssize_t ret;
    return il_write(IL_CALL_pwritev, fd, iov, n, GIVEN(off), &ret)
               ? ret
               : IL_REAL(pwritev)(fd, iov, n, off);
}

IL_EXPORT ssize_t pwritev64(int fd, const struct iovec *iov, int n, off64_t off)
{
    return pwritev(fd, iov, n, off);
}

IL_EXPORT ssize_t pwritev2(int fd, const struct iovec *iov, int n, off_t off, int flags)
{
    ssize_t ret;

    if (flags) {
        if (!il_fd_is_other(fd)) {
            il_left(IL_CALL_pwritev, fd, IL_rwf);
        }
        return IL_REAL(pwritev2)(fd, iov, n, off, flags);
    }
    return il_write(IL_CALL_pwritev, fd, iov, n, off == -1 ? IL_AT_OFFSET : GIVEN(off), &ret)
               ? ret
               : IL_REAL(pwritev2)(fd, iov, n, off, 0);
}

IL_EXPORT ssize_t pwritev64v2(int fd, const struct iovec *iov, int n, off64_t off, int flags)
{
    return pwritev2(fd, iov, n, off, flags);
}

IL_EXPORT off_t lseek(int fd, off_t off, int whence)
{
    off64_t ret;
    return il_seek(fd, off, whence, &ret) ? ret : IL_REAL(lseek)(fd, off, whence);
}

IL_EXPORT off64_t lseek64(int fd, off64_t off, int whence)
{
    return lseek(fd, off, whence);
}

IL_EXPORT off_t __lseek(int fd, off_t off, int whence)
{
    return lseek(fd, off, whence);
}

/* No allocator's lock is ours to wait for: two loads where nothing is to do. */
static void map_seen(void *at, int prot, int flags, int fd)
{
    if (at != MAP_FAILED && fd >= 0 && (flags & MAP_TYPE) != MAP_PRIVATE && !il_fd_is_other(fd)) {
        il_mapped_add(fd, prot & PROT_WRITE);
    }
}

IL_EXPORT void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t off)
{
    if (fd >= 0 && !(flags & MAP_ANONYMOUS)) {
        il_refresh(fd); /* a page beyond the size that the kernel knows is a SIGBUS */
    }
    void *ret = (void *)sys_call(SYS_mmap, (long)at, (long)len, prot, flags, fd, off);

    if ((unsigned long)ret > -4096ul) {
        errno = (int)-(long)ret;
        return MAP_FAILED;
    }
    map_seen(ret, prot, flags, fd);
    return ret;
}

IL_EXPORT void *mmap64(void *at, size_t len, int prot, int flags, int fd, off64_t off)
{
    return mmap(at, len, prot, flags, fd, off);
}

/* -- moved by the kernel ----------------------------------------------------------------------- */
IL_EXPORT ssize_t copy_file_range(int in, off64_t *in_off, int out, off64_t *out_off, size_t n,
                                  unsigned flags)
{
    il_refresh(in);
    il_refresh(out);
    return IL_REAL(copy_file_range)(in, in_off, out, out_off, n, flags);
}

IL_EXPORT ssize_t sendfile(int out, int in, off_t *off, size_t n)
{
    il_refresh(in);
    return IL_REAL(sendfile)(out, in, off, n);
}

IL_EXPORT ssize_t sendfile64(int out, int in, off64_t *off, size_t n)
{
    return sendfile(out, in, off, n);
}

IL_EXPORT ssize_t splice(int in, off64_t *in_off, int out, off64_t *out_off, size_t n,
                         unsigned flags)
{
    il_refresh(in);
    return IL_REAL(splice)(in, in_off, out, out_off, n, flags);
}
