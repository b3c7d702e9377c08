/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and writes through the session.
 *
 * B1 A call is done here as a whole or not at all: what the engine refuses goes to the kernel with
 *    the arguments as they were. Only what was moved before an error is reported as a short count.
 * B2 An implicit offset is reserved in the kernel before the bytes move (lseek by the count), so
 *    that other threads and signal handlers find it moved, and corrected by a relative lseek
 *    when fewer moved. A read may overshoot the end of the file meanwhile, so several threads
 *    take turns for it (il_word_take).
 * B3 Only private descriptions have their implicit offset moved by us: opened by this process, and
 *    no fork, exec or message has given them to another since.
 */
#include "il/il.h"

#include "dfe_types.h"

#include <pthread.h>
#include <sys/single_threaded.h>
#include <sys/stat.h>

#define USER_END 0x7fffffff0000ull
#define FSIZE_EVERY 256u /* writes between looks at RLIMIT_FSIZE, which others may set */
#define PUSH_PIECES 4u

static int64_t total_of(const struct iovec *iov, int n)
{
    uint64_t sum = 0;

    if (n <= 0 || n > 1024) {
        return 0;
    }
    for (int i = 0; i < n; i++) {
        uint64_t at = (uintptr_t)iov[i].iov_base, len = iov[i].iov_len;
        if (len && (at < 65536 || len > IL_MOST_BYTES || at + len > USER_END)) {
            return 0; /* EFAULT, EINVAL: the kernel's to say */
        }
        sum += len;
    }
    return sum > IL_MOST_BYTES ? 0 : (int64_t)sum;
}

static bool is_private(const struct il_file *file)
{
    return file->epoch &&
           file->epoch == (atomic_load_explicit(&il->epoch, memory_order_relaxed) & 0x7fffffffu);
}

/* Common to all data calls: may this one be done here? 0, with the thread inside the guard; -1: it
 * is no file of a mount; or the reason. */
static int begin(enum il_call call, int fd, int mode, int64_t bytes, bool implicit,
                 struct il_file *file)
{
    int why = il_fd_file(fd, file);

    if (why) {
        return why;
    }
    if (!file->epoch && !il_fd_still(fd, file)) {
        return IL_unknown;
    }
    pthread_testcancel();
    if (!il_enter()) {
        why = (int)il_enter_reason();
        return why == IL_lost ? -1 : why; /* lost: disabled, nothing counts any more */
    }
    why = il_dev_use(call, file, fd, (uint64_t)bytes);
    if (!why && (file->oflags & O_ACCMODE) != O_RDWR && (int)(file->oflags & O_ACCMODE) != mode) {
        why = IL_access;
    }
    if (!why && !bytes) {
        why = IL_arguments;
    }
    if (!why && implicit && !is_private(file)) {
        why = IL_shared;
    }
    if (why == -1) {
        il_fd_other(fd);
    }
    if (why) {
        il_leave();
    }
    return why;
}

/* After a refusal: shows the descriptor, where rights were the reason. Whether to repeat. */
static bool prove(const struct il_file *file, int fd, int64_t err)
{
    struct il_dev *dev = &il->dev[file->dev];

    return (err == -EACCES || err == -EPERM) && dev->client &&
           client_prove(dev->client, dev->handle, file->ino, fd, (int)file->oflags) == 0;
}

/* What an error means for later calls. Returns the reason for this one. */
static enum il_reason after_error(const struct il_file *file, int64_t err)
{
    if (err == -EACCES || err == -EPERM) {
        il_fd_reason(file, IL_rights);
        return IL_rights;
    }
    if (err == -EOWNERDEAD) {
        il_dev_lost(&il->dev[file->dev]);
        return IL_lost;
    }
    return IL_engine;
}

/* -- reading ----------------------------------------------------------------------------------- */

/* A count, or the first error where nothing was read. */
static int64_t read_all(const struct il_file *file, int fd, const struct iovec *iov, int n,
                        uint64_t off)
{
    int64_t sum = 0;
    bool proved = false;

    for (int i = 0; i < n; i++) {
        size_t done = 0;
        while (done < iov[i].iov_len) {
            ssize_t got = il_read_piece(file, off, (char *)iov[i].iov_base + done,
                                        iov[i].iov_len - done);
            if (got < 0 && !proved && prove(file, fd, got)) {
                proved = true;
                continue;
            }
            if (got < 0) {
                return sum ? sum : got;
            }
            if (got == 0) {
                return sum;
            }
            done += (size_t)got;
            off += (uint64_t)got;
            sum += got;
        }
    }
    return sum;
}

/* At the kernel's offset. Returns the count or an error, with the offset as it was. */
static int64_t read_at_offset(const struct il_file *file, int fd, const struct iovec *iov, int n,
                              int64_t want)
{
    struct il_word word;
    int64_t got;

    il_word_take(&word, file->serial);
    int64_t after = il_sys(SYS_lseek, fd, want, SEEK_CUR, 0);
    if (after < want) {
        got = after < 0 ? after : -EINVAL;
        goto out;
    }
    got = read_all(file, fd, iov, n, (uint64_t)(after - want));
    if (got < want) {
        il_sys(SYS_lseek, fd, (got < 0 ? 0 : got) - want, SEEK_CUR, 0);
    }
out:
    il_word_give(&word);
    return got;
}

bool il_read(enum il_call call, int fd, const struct iovec *iov, int n, off64_t off, ssize_t *ret)
{
    struct il_file file;

    if (il_fd_is_other(fd)) {
        return false;
    }
    int64_t want = total_of(iov, n);
    bool implicit = off == IL_AT_OFFSET;
    if (!implicit && (off < 0 || off > INT64_MAX - want)) {
        want = 0;
    }
    int why = begin(call, fd, O_RDONLY, want, implicit, &file);
    if (!why) {
        int saved = errno;
        int64_t got = implicit ? read_at_offset(&file, fd, iov, n, want)
                               : read_all(&file, fd, iov, n, (uint64_t)off);
        if (got < 0) {
            why = (int)after_error(&file, got);
        } else {
            il_count(call, IL_BYPASSED, 1, (uint64_t)got);
        }
        il_leave();
        errno = saved;
        *ret = got;
    }
    if (why > 0) {
        il_count(call, (enum il_reason)why, 1, (uint64_t)want);
    }
    return !why;
}

/* -- writing ----------------------------------------------------------------------------------- */
static uint64_t file_limit(void)
{
    uint64_t limit = atomic_load_explicit(&il->fsize, memory_order_relaxed);

    if (!limit || atomic_fetch_add_explicit(&il->fsize_age, 1, memory_order_relaxed) %
                          FSIZE_EVERY == 0) {
        struct rlimit now = {0};
        il_sys(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, &now);
        limit = now.rlim_cur ? now.rlim_cur : 1;
        atomic_store_explicit(&il->fsize, limit, memory_order_relaxed);
    }
    return limit;
}

/* One message: the next at most `most` bytes of iov from byte `skip`. The count, or an error. */
static int64_t write_piece(const struct il_file *file, const struct iovec *iov, int n,
                           uint64_t skip, size_t most, uint64_t off, unsigned flags,
                           uint64_t *where)
{
    struct il_dev *dev = &il->dev[file->dev];
    struct iovec push[PUSH_PIECES];
    struct client_call call = {
        .sqe = {.op = PROTO_WRITE, .handle = dev->handle, .ino = file->ino, .off = off,
                .flags = flags},
        .push = push,
    };
    size_t sum = 0;

    for (int i = 0; i < n && sum < most && call.n_push < PUSH_PIECES; i++) {
        if (skip >= iov[i].iov_len) {
            skip -= iov[i].iov_len;
            continue;
        }
        size_t len = iov[i].iov_len - skip;
        if (len > most - sum) {
            len = most - sum;
        }
        push[call.n_push++] = (struct iovec){(char *)iov[i].iov_base + skip, len};
        sum += len;
        skip = 0;
    }
    call.sqe.len = (uint32_t)sum;
    int64_t ret = il_ask(dev, &call);
    if (ret > (int64_t)sum) {
        ret = -EPROTO;
    }
    *where = call.cqe.value;
    return ret;
}

/* All of it, in as many messages as it takes; in append mode in one. *end: where it ends. */
static int64_t write_all(const struct il_file *file, int fd, const struct iovec *iov, int n,
                         int64_t want, uint64_t off, uint64_t *end)
{
    size_t most = IL_PUSH_BYTES;
    unsigned flags = file->oflags & O_APPEND ? DFE_APPEND : 0;
    bool proved = false;
    int64_t sum = 0;

    while (sum < want) {
        uint64_t where = 0;
        int64_t ret = write_piece(file, iov, n, (uint64_t)sum, most, off + (uint64_t)sum, flags,
                                  &where);
        if (ret < 0 && !proved && prove(file, fd, ret)) {
            proved = true;
            continue;
        }
        if (ret <= 0) {
            return sum || !ret ? sum : ret;
        }
        sum += ret;
        *end = flags ? where + (uint64_t)ret : off + (uint64_t)sum;
        if (flags) {
            break; /* a short append is a short write */
        }
    }
    return sum;
}

/* At the kernel's offset. What the engine refuses the kernel writes where it was reserved. */
static int64_t write_at_offset(const struct il_file *file, int fd, const struct iovec *iov, int n,
                               int64_t want, int64_t *refused)
{
    uint64_t end;
    int64_t after = il_sys(SYS_lseek, fd, want, SEEK_CUR, 0);

    if (after < want) {
        *refused = -EINVAL;
        return -EINVAL;
    }
    int64_t off = after - want;
    int64_t ret = write_all(file, fd, iov, n, want, (uint64_t)off, &end);
    if (ret < 0) {
        *refused = ret;
        ret = sys_call(SYS_pwritev, fd, (long)iov, n, off, 0, 0);
    }
    if (ret < want) {
        il_sys(SYS_lseek, fd, (ret < 0 ? 0 : ret) - want, SEEK_CUR, 0);
    }
    return ret;
}

/* Reasons that concern writes alone. */
static int may_write(const struct il_file *file, int n, int64_t want, bool implicit, off64_t off)
{
    bool append = file->oflags & O_APPEND;
    uint64_t limit = file_limit();

    if (file->oflags & O_DSYNC) { /* O_SYNC includes the bit */
        return IL_flags;
    }
    if (append &&
        ((uint64_t)want > IL_PUSH_BYTES || n > (int)PUSH_PIECES)) {
        return IL_large;
    }
    if (limit != RLIM_INFINITY && (append || implicit || (uint64_t)(off + want) > limit)) {
        return IL_limit;
    }
    return 0;
}

/* Done under the guard: a count, or a negative errno that is the program's; or *why. */
static int64_t write_now(const struct il_file *file, int fd, const struct iovec *iov, int n,
                         off64_t off, int64_t want, int *why)
{
    bool implicit = off == IL_AT_OFFSET;
    uint64_t end = 0;
    int64_t refused = 0, ret;

    if (implicit && !(file->oflags & O_APPEND)) {
        ret = write_at_offset(file, fd, iov, n, want, &refused);
        if (refused) {
            *why = (int)after_error(file, refused);
            return ret; /* the kernel's answer, but for an offset that cannot be */
        }
        return ret;
    }
    ret = write_all(file, fd, iov, n, want, (uint64_t)off, &end);
    if (ret < 0) {
        *why = (int)after_error(file, ret);
        /* An append that may have been done must not be done twice. */
        return ret == -EOWNERDEAD && file->oflags & O_APPEND ? -EIO : -EAGAIN;
    }
    if (implicit) {
        il_sys(SYS_lseek, fd, (long)end, SEEK_SET, 0);
    }
    return ret;
}

bool il_write(enum il_call call, int fd, const struct iovec *iov, int n, off64_t off, ssize_t *ret)
{
    struct il_file file = {0};
    struct stat st;

    if (il_fd_is_other(fd)) {
        return false;
    }
    int64_t want = total_of(iov, n), got = -EAGAIN;
    bool implicit = off == IL_AT_OFFSET;
    if (!implicit && (off < 0 || off > INT64_MAX - want)) {
        want = 0;
    }
    int why = begin(call, fd, O_WRONLY, want, implicit, &file);
    if (!why) {
        int saved = errno;
        why = may_write(&file, n, want, implicit, off);
        if (!why) {
            got = write_now(&file, fd, iov, n, off, want, &why);
        }
        if (!why) {
            il_count(call, IL_BYPASSED, 1, (uint64_t)got);
        }
        il_leave();
        errno = saved;
    }
    if (why > 0) {
        il_count(call, (enum il_reason)why, 1, (uint64_t)want);
    }
    if (why && (got == -EAGAIN || got == -EINVAL)) {
        if (file.oflags & O_APPEND) {
            il_sys(SYS_fstat, fd, &st, 0, 0); /* the offset will be the end that the kernel knows */
        }
        return false;
    }
    *ret = got;
    if (got < 0) {
        errno = (int)-got;
        *ret = -1;
    }
    return true;
}

/* -- seeking ----------------------------------------------------------------------------------- */

/* SEEK_DATA and SEEK_HOLE: the mount's kernel knows no holes. -EAGAIN: the kernel is to answer. */
static int64_t seek_next(const struct il_file *file, int fd, off64_t off, int whence)
{
    struct il_dev *dev = &il->dev[file->dev];
    struct client_call call = {
        .sqe = {.op = PROTO_NEXT, .handle = dev->handle, .ino = file->ino, .off = (uint64_t)off,
                .arg = whence == SEEK_HOLE},
        .reply_cap = 256,
    };
    int64_t ret = il_ask(dev, &call);

    if (ret == -ENXIO) {
        return ret;
    }
    if (ret < 0) {
        after_error(file, ret == -EACCES ? -EIO : ret);
        return -EAGAIN;
    }
    ret = il_sys(SYS_lseek, fd, (long)call.cqe.value, SEEK_SET, 0);
    return ret < 0 ? -EAGAIN : ret;
}

bool il_seek(int fd, off64_t off, int whence, off64_t *ret)
{
    struct il_file file;
    struct il_word word;
    int64_t got;

    if (il_fd_is_other(fd)) {
        return false;
    }
    if (whence == SEEK_DATA || whence == SEEK_HOLE) {
        int why = off < 0 ? -1 : begin(IL_CALL_lseek, fd, O_RDONLY, 1, false, &file);
        if (why) {
            if (why > 0) {
                il_count(IL_CALL_lseek, (enum il_reason)why, 1, 0);
            }
            return false;
        }
        int saved = errno;
        got = seek_next(&file, fd, off, whence);
        il_count(IL_CALL_lseek, got == -EAGAIN ? IL_engine : IL_BYPASSED, 1, 0);
        il_leave();
        errno = saved;
        if (got == -EAGAIN) {
            return false;
        }
    } else {
        /* In between another thread's reservation and its correction it has to wait. */
        if (__libc_single_threaded || il_fd_file(fd, &file) || !is_private(&file) ||
            il_self.busy) {
            return false;
        }
        il_word_take(&word, file.serial);
        got = il_sys(SYS_lseek, fd, off, whence, 0);
        il_word_give(&word);
    }
    *ret = got;
    if (got < 0) {
        errno = (int)-got;
        *ret = -1;
    }
    return true;
}

void il_refresh(int fd)
{
    struct il_file file;
    struct stat st;

    if (!il_fd_is_other(fd) && il_fd_file(fd, &file) >= 0) {
        il_sys(SYS_fstat, fd, &st, 0, 0);
    }
}

void il_left(enum il_call call, int fd, enum il_reason reason)
{
    struct il_file file;

    if (il_fd_file(fd, &file) >= 0 && atomic_load(&il->dev[file.dev].state) == IL_DEV_MOUNT) {
        il_count(call, reason, 1, 0);
    }
}
