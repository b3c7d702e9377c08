/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, creating and locking a regular file or block device. */
#include "queue/queue_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/log.h"

#define ZEROS_BYTES (1u << 20)

/* A killed process is gone before the kernel has ended its I/O, which holds the device (seen with
 * io_uring). So long is waited for whoever holds it. */
#define BUSY_STEP_US 20000u
#define BUSY_STEPS 100u

static int refuse_errno(const struct queue_dev *dev, int err, const char *what)
{
    if (err == ENOENT)
        return base_refuse(-ENOENT, "device %s: does not exist", dev->uri);
    if (err == EEXIST)
        return base_refuse(-EEXIST, "device %s: exists already, it is left as it is", dev->uri);
    if (err == EBUSY || err == EWOULDBLOCK)
        return base_refuse(-EBUSY, "device %s: in use (another process or a mount holds it)",
                           dev->uri);
    if (err == EACCES || err == EPERM)
        return base_refuse(-err, "device %s: no permission to %s it", dev->uri, what);
    return base_refuse(-err, "device %s: cannot %s it: %s", dev->uri, what, strerror(err));
}

/* For file systems without fallocate: space is there only once it is written. */
static int write_zeros(int fd, uint64_t bytes)
{
    char *zeros = calloc(1, ZEROS_BYTES);
    int rc = 0;

    if (!zeros)
        return -ENOMEM;
    for (uint64_t at = 0; at < bytes;) {
        size_t n = bytes - at < ZEROS_BYTES ? bytes - at : ZEROS_BYTES;
        ssize_t got = pwrite(fd, zeros, n, (off_t)at);
        if (got > 0) {
            at += (uint64_t)got;
        } else if (got == 0 || errno != EINTR) {
            rc = got == 0 ? -ENOSPC : -errno;
            break;
        }
    }
    free(zeros);
    return rc;
}

static int allocate(int fd, uint64_t bytes)
{
    struct statvfs fs;
    int rc;

    /* Asked first: fallocate finds out by taking all there is, which others feel. */
    if (fstatvfs(fd, &fs) == 0 && fs.f_blocks > 0 && bytes / fs.f_frsize > fs.f_bfree)
        return -ENOSPC;
    do {
        rc = fallocate(fd, 0, 0, (off_t)bytes) < 0 ? -errno : 0;
    } while (rc == -EINTR);
    if (rc == -EOPNOTSUPP)
        rc = write_zeros(fd, bytes);
    if (rc == 0 && fsync(fd) < 0)
        rc = -errno;
    return rc;
}

/* The name is durable too when this returns 0. */
static int sync_folder(const char *path)
{
    int rc = 0, fd;
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");

    if (!folder)
        return -ENOMEM;
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        rc = -errno;
    if (fd >= 0)
        close(fd);
    free(folder);
    return rc;
}

static int create(const struct queue_dev *dev, const char *path, uint64_t bytes)
{
    int rc, fd;

    if (bytes == 0)
        return base_refuse(-EINVAL, "device %s: no size given to create it with", dev->uri);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0600);
    if (fd < 0)
        return errno == ENOENT
                   ? base_refuse(-ENOENT, "device %s: its folder does not exist", dev->uri)
                   : refuse_errno(dev, errno, "create");
    rc = flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : allocate(fd, bytes);
    if (rc == 0)
        rc = sync_folder(path);
    if (rc == 0)
        return fd;
    unlink(path);
    close(fd);
    if (rc == -ENOSPC || rc == -EDQUOT || rc == -EFBIG)
        return base_refuse(rc, "device %s: no room for %llu bytes; nothing was created (%s)",
                           dev->uri, (unsigned long long)bytes, strerror(-rc));
    return refuse_errno(dev, -rc, "create");
}

/* Kind and size; -EINVAL for what is neither a file nor a block device. */
static int measure(struct queue_dev *dev, int fd)
{
    struct stat st;
    uint64_t bytes;

    if (fstat(fd, &st) < 0)
        return refuse_errno(dev, errno, "examine");
    if (S_ISREG(st.st_mode)) {
        bytes = (uint64_t)st.st_size;
    } else if (!S_ISBLK(st.st_mode)) {
        return base_refuse(-EINVAL, "device %s: neither a regular file nor a block device",
                           dev->uri);
    } else if (ioctl(fd, BLKGETSIZE64, &bytes) < 0) {
        return refuse_errno(dev, errno, "measure");
    }
    if (bytes < QUEUE_ALIGN_BYTES)
        return base_refuse(-EINVAL, "device %s: is smaller than one block", dev->uri);
    dev->info.size_bytes = bytes;
    return 0;
}

/* A locked descriptor or a negative errno. */
static int open_locked(const char *path, int flags, const char **what)
{
    bool reads = (flags & O_ACCMODE) == O_RDONLY;

    for (unsigned step = 0;; step++) {
        int fd = open(path, flags), err = errno;
        *what = "open";
        if (fd >= 0) {
            if (flock(fd, (reads ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0)
                return fd;
            err = errno;
            *what = "lock";
            close(fd);
        }
        if ((err != EBUSY && err != EWOULDBLOCK) || step == BUSY_STEPS)
            return -err;
        usleep(BUSY_STEP_US);
    }
}

static int open_existing(struct queue_dev *dev, const char *path)
{
    /* O_NONBLOCK: a FIFO must not hang us before we see what it is. */
    int flags = (dev->read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    const char *what;
    struct stat st;
    int fd;

    /* O_EXCL without O_CREAT: -EBUSY if the block device is mounted or claimed. Readers share, and
     * meet our own writers in flock. */
    if (!dev->read_only && stat(path, &st) == 0 && S_ISBLK(st.st_mode))
        flags |= O_EXCL;
    fd = open_locked(path, flags, &what);
    if (fd < 0)
        return refuse_errno(dev, -fd, what);
    fcntl(fd, F_SETFL, flags & ~O_NONBLOCK); /* io_uring would answer -EAGAIN instead of waiting */
    return fd;
}

/* Whether the device takes O_DIRECT with our alignment is found by reading its second block: some
 * file systems accept the flag and refuse the transfer. Any other error is the medium's affair. */
static bool try_direct(int fd, uint64_t size_bytes)
{
    int flags = fcntl(fd, F_GETFL);
    uint64_t off = size_bytes >= 2 * QUEUE_ALIGN_BYTES ? QUEUE_ALIGN_BYTES : 0;
    void *block = aligned_alloc(QUEUE_ALIGN_BYTES, QUEUE_ALIGN_BYTES);
    bool direct = false;

    if (block && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0) {
        direct = pread(fd, block, QUEUE_ALIGN_BYTES, (off_t)off) >= 0 || errno != EINVAL;
        if (!direct)
            fcntl(fd, F_SETFL, flags);
    }
    free(block);
    return direct;
}

int queue_file_open(struct queue_dev *dev, const char *path, const struct queue_dev_opts *opts)
{
    int rc, fd;

    if (!*path)
        return base_refuse(-EINVAL, "device %s: no path given", dev->uri);
    fd = opts->create ? create(dev, path, opts->create_bytes) : open_existing(dev, path);
    if (fd < 0)
        return fd;
    rc = measure(dev, fd);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    dev->info.direct = !opts->no_direct && try_direct(fd, dev->info.size_bytes);
    return fd;
}

int64_t queue_file_perform(int fd, const struct queue_req *req)
{
    struct queue_rest r = queue_rest(req);
    ssize_t n = 0;

    do {
        switch (req->op) {
        case QUEUE_READ:
            n = pread(fd, r.buf, r.len, (off_t)r.off);
            break;
        case QUEUE_WRITE:
            n = pwrite(fd, r.buf, r.len, (off_t)r.off);
            break;
        case QUEUE_FLUSH:
            n = fdatasync(fd);
            break;
        case QUEUE_DISCARD:
            n = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)r.off,
                          (off_t)r.len);
            if (n < 0 && errno == EOPNOTSUPP)
                n = 0; /* advice that this device does not take */
            break;
        }
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}
