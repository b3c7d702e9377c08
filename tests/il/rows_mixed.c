/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of trouble with files: bypassing calls mixed with the kernel's other roads to them. */
#include <linux/aio_abi.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "rows.h"

static char buf[4 << 20];

/* -- the kernel's other roads to the same file ------------------------------------------------- */
static void flags(void)
{
    int fd = rows_file("f");
    struct iovec v = {buf, 32}, w = {"with flags", 10};

    SAY(preadv2(fd, &v, 1, 32, RWF_HIPRI));
    SAY(pwritev2(fd, &w, 1, 0, RWF_APPEND));
    SAY(lseek(fd, 0, SEEK_END));
    SAY(pwritev2(fd, &w, 1, 5, RWF_SYNC));
    SAY(pread(fd, buf, 16, 0));
    SHOW(buf, 16);
    ssize_t n = preadv2(fd, &v, 1, 65536, RWF_NOWAIT);
    SAY(n == 10 || n == -1);
    close(fd);
    fd = open("f", O_RDWR | O_APPEND);
    SAY(pwrite(fd, "at the end", 10, 5));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(pwritev(fd, &w, 1, 0));
    SAY(lseek(fd, 7, SEEK_SET));
    SAY(write(fd, "too", 3));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(fcntl(fd, F_SETFL, 0));
    SAY(pwrite(fd, "at seven", 8, 7));
    SAY(rows_sum("f"));
}

static void holes(void)
{
    int fd = rows_file("f");

    SAY(lseek(fd, 200000, SEEK_SET));
    SAY(write(fd, "beyond", 6));
    SAY(pread(fd, buf, 10, 150000));
    SAY(memcmp(buf, "\0\0\0\0\0\0\0\0\0\0", 10));
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 8192) < 0) {
        memset(buf, 0, 8192); /* not every file system has it */
        pwrite(fd, buf, 8192, 4096);
    }
    SAY(pread(fd, buf, 16, 4090));
    SAY(memcmp(buf + 6, "\0\0\0\0\0\0\0\0\0\0", 10));
    SAY(pwrite(fd, "in the hole", 11, 6000));
    SAY(ftruncate(fd, 6005));
    SAY(pread(fd, buf, 20, 6000));
    SAY(ftruncate(fd, 300000));
    SAY(pread(fd, buf, 20, 6000));
    SAY(memcmp(buf, "in th\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20));
    int log = open("f", O_WRONLY | O_APPEND);
    SAY(write(log, "appended", 8));
    SAY(lseek(fd, 0, SEEK_END));
    SAY(lseek(fd, 300000, SEEK_DATA));
    SAY(lseek(fd, 300000, SEEK_HOLE));
    SAY(lseek(fd, 300008, SEEK_DATA));
    SAY(lseek(fd, 0, SEEK_DATA));
    SAY(pwrite(fd, "far", 3, 5000000000));
    SAY(pread(fd, buf, 10, 4999999998));
    SAY(lseek(fd, 0, SEEK_END));
    SAY(ftruncate(fd, 0));
    SAY(read(fd, buf, 10));
}

static void long_ones(void)
{
    int fd = open("big", O_RDWR | O_CREAT, 0644);
    struct iovec v[64];

    for (size_t i = 0; i < sizeof(buf); i++) {
        buf[i] = (char)(i * 2654435761u >> 13);
    }
    for (int i = 0; i < 64; i++) {
        v[i] = (struct iovec){buf + i * 60000, i % 7 ? (size_t)i * 137 : 0};
    }
    SAY(write(fd, buf, sizeof(buf)));
    SAY(writev(fd, v, 64));
    SAY(pwrite(fd, buf + 1, 3000001, 999999));
    SAY(pwritev(fd, v, 64, 4095));
    SAY(lseek(fd, 12345, SEEK_SET));
    SAY(readv(fd, v, 64));
    SAY(lseek(fd, 0, SEEK_CUR));
    close(fd);
    SAY(rows_sum("big"));
    fd = open("big", O_WRONLY | O_APPEND);
    SAY(write(fd, buf, 3 << 20));
    SAY(writev(fd, v, 64));
    SAY(lseek(fd, 0, SEEK_CUR));
    close(fd);
    SAY(rows_sum("big"));
    SAY(truncate("big", 0));
}

/* Bytes come from, and go to, maps of files of the same mount. */
static void through_maps(void)
{
    int from = rows_file("f"), to = open("g", O_RDWR | O_CREAT | O_TRUNC, 0644);
    char *map = mmap(NULL, 65536, PROT_READ, MAP_PRIVATE, from, 0), *own;

    SAY(write(to, map, 65536));
    SAY(rows_sum("g"));
    own = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE, to, 0);
    SAY(pread(from, own + 100, 32, 64));
    SHOW(own + 100, 32);
    SAY(pread(to, own, 65536, 0));
    SAY(memcmp(own, map, 65536));
    SAY(pwrite(to, own, 65536, 32));
    SAY(rows_sum("g"));
    map = mmap(NULL, 65536, PROT_READ, MAP_SHARED, to, 0);
    SAY(pwrite(to, "seen in the map", 15, 5000));
    SHOW(map + 5000, 15);
    SAY(ftruncate(to, 70000));
    SAY(write(to, "past the map", 12));
}

static void moved(void)
{
    int fd = rows_file("f"), to = open("g", O_RDWR | O_CREAT, 0644), fds[2], pair[2];
    off_t off = 65530, out = 3;

    SAY(pipe(fds));
    SAY(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    SAY(pwrite(fd, "longer by a bypass", 18, 65536));
    SAY(sendfile(pair[0], fd, &off, 100));
    SAY(read(pair[1], buf, 100));
    SHOW(buf + 6, 18);
    SAY(write(fds[1], "from a pipe", 11));
    SAY(splice(fds[0], NULL, to, &out, 11, 0));
    SAY(pread(to, buf, 20, 0));
    SHOW(buf + 3, 11);
    SAY(pwrite(to, "again", 5, 14));
    out = 14;
    SAY(splice(to, &out, fds[1], NULL, 100, 0));
    SAY(read(fds[0], buf, 100));
    SHOW(buf, 5);
    off = 0, out = 0;
    SAY(copy_file_range(fd, &off, to, &out, 70000, 0));
    SAY(pwrite(to, "over", 4, 65550));
    SAY(rows_sum("g"));
    SAY(lseek(fd, 0, SEEK_SET));
    SAY(read(fd, buf, 32));
    SAY(sendfile(to, fd, NULL, 32));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(write(fd, "here", 4));
    SAY(lseek(to, 0, SEEK_CUR));
    SAY(rows_sum("f") + rows_sum("g"));
}

/* Kernel's asynchronous I/O between bypassing calls. */
static void asynchronous(void)
{
    int fd = rows_file("f");
    aio_context_t ctx = 0;
    struct iocb cb = {.aio_fildes = (unsigned)fd, .aio_lio_opcode = IOCB_CMD_PWRITE,
                      .aio_buf = (uintptr_t)"asynchronous", .aio_nbytes = 12, .aio_offset = 100};
    struct iocb *list[] = {&cb};
    struct io_event event;

    SAY(pwrite(fd, "a bypass before", 15, 96));
    SAY(syscall(SYS_io_setup, 4, &ctx));
    SAY(syscall(SYS_io_submit, ctx, 1, list));
    SAY(syscall(SYS_io_getevents, ctx, 1, 1, &event, NULL));
    SAY(event.res);
    SAY(pread(fd, buf, 32, 96));
    SHOW(buf, 32);
    SAY(pwrite(fd, "a bypass after ", 15, 104));
    cb.aio_lio_opcode = IOCB_CMD_PREAD;
    cb.aio_buf = (uintptr_t)buf;
    cb.aio_nbytes = 32;
    cb.aio_offset = 96;
    SAY(syscall(SYS_io_submit, ctx, 1, list));
    SAY(syscall(SYS_io_getevents, ctx, 1, 1, &event, NULL));
    SAY(event.res);
    SHOW(buf, 32);
    SAY(syscall(SYS_io_destroy, ctx));
}

/* -- names and numbers ------------------------------------------------------------------------- */
static void reopened(void)
{
    char path[64];
    int fd = rows_file("f"), again;

    SAY(read(fd, buf, 32));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    again = open(path, O_RDWR);
    SAY(read(again, buf, 32));
    SHOW(buf, 10);
    SAY(write(again, "by the second", 13));
    SAY(read(fd, buf, 32));
    SHOW(buf, 32);
    close(again);
    again = openat(AT_FDCWD, path, O_WRONLY | O_APPEND);
    SAY(write(again, "end", 3));
    SAY(lseek(fd, 0, SEEK_END));
    close(again);
    SAY(open(path, O_RDONLY | O_TRUNC) >= 0);
    SAY(pread(fd, buf, 10, 0));
    SAY(rename("f", "g"));
    SAY(pwrite(fd, "renamed", 7, 0));
    close(rows_file("f"));
    SAY(rename("f", "g"));
    SAY(pread(fd, buf, 10, 0));
    SHOW(buf, 7);
    SAY(pwrite(fd, "unlinked", 8, 0));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    again = open(path, O_RDWR);
    SAY(pread(again, buf, 10, 0));
    SHOW(buf, 8);
    SAY(unlink("g"));
    SAY(pwrite(again, "still", 5, 3));
    SAY(pread(fd, buf, 10, 0));
    SHOW(buf, 8);
    again = open("g", O_RDWR | O_CREAT | O_EXCL, 0644);
    SAY(pread(again, buf, 10, 0));
    int path_fd = open("warm", O_PATH);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", path_fd);
    SAY(pread(path_fd, buf, 10, 0));
    fd = open(path, O_RDONLY);
    SAY(read(fd, buf, 32));
    SHOW(buf, 10);
}

/* A system call that no library sees. */
static long bare(long number, long a, long b)
{
#if defined(__x86_64__)
    long ret;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(number), "D"(a), "S"(b), "d"(0L)
                     : "rcx", "r11", "memory");
    return ret;
#else
    return syscall(number, a, b, 0);
#endif
}

/* A number that is opened and closed behind libc's back: by the runtimes of some languages. */
static void behind(void)
{
    int fd = rows_file("f"), other = rows_file("g"), same;

    SAY(pwrite(other, "the other file", 14, 0));
    SAY(pwrite(fd, "the first file", 14, 0));
    close(fd);
    for (int i = 0; i < 3; i++) {
        same = (int)bare(SYS_dup, other, 0);
        SAY(same == fd);
        SAY(pread(same, buf, 14, 0));
        SHOW(buf, 14);
        SAY(pwrite(same, "the other", 9, 0));
        bare(SYS_close, same, 0);
        int warm = open("warm", O_RDONLY), high = fcntl(warm, F_DUPFD, 60);
        close(warm);
        same = (int)bare(SYS_dup, high, 0);
        SAY(same == fd);
        SAY(pread(same, buf, 14, 32));
        SHOW(buf, 10);
        SAY(pwrite(same, "x", 1, 0));
        bare(SYS_close, same, 0);
        close(high);
    }
    SAY(rows_sum("g"));
}

static void standard(void)
{
    int saved = dup(1), fd;

    fflush(stdout);
    fd = open("out", O_RDWR | O_CREAT | O_TRUNC, 0644);
    dup2(fd, 1);
    close(fd);
    printf("by printf\n");
    fflush(stdout);
    rows_warm(1);
    write(1, "by write\n", 9);
    system("echo by a shell");
    puts("by puts");
    fflush(stdout);
    ssize_t n = pread(1, buf, 100, 0);
    dup2(saved, 1);
    SAY(n);
    SHOW(buf, n);
    close(0);
    fd = open("out", O_RDONLY);
    SAY(fd);
    SAY(getchar());
    SAY(system("cat"));
}

static void locks(void)
{
    int fd = rows_file("f"), other = open("f", O_RDWR);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 100};

    SAY(fcntl(fd, F_OFD_SETLK, &lock));
    SAY(fcntl(other, F_OFD_SETLK, &lock));
    SAY(pwrite(other, "advisory", 8, 0));
    close(fd);
    SAY(fcntl(other, F_OFD_SETLK, &lock));
    fd = open("f", O_RDWR);
    SAY(flock(fd, LOCK_EX | LOCK_NB));
    pid_t pid = fork();
    if (pid == 0) {
        int own = open("f", O_RDWR);
        _exit(flock(own, LOCK_EX | LOCK_NB) < 0 ? errno : 0);
    }
    SAY(rows_wait(pid));
    SAY(flock(fd, LOCK_UN));
    lock.l_type = F_RDLCK;
    SAY(fcntl(fd, F_SETLK, &lock));
    close(open("f", O_RDONLY)); /* drops the process's locks */
    SAY(fcntl(fd, F_GETLK, &lock));
}

static void direct(void)
{
    int fd = rows_file("f");
    char *page = aligned_alloc(4096, 8192);

    close(fd);
    fd = open("f", O_RDWR | O_DIRECT);
    SAY(fd >= 0);
    SAY(pread(fd, page, 4096, 4096));
    SHOW(page, 32);
    memset(page, 'D', 4096);
    SAY(pwrite(fd, page, 4096, 4096));
    int plain = open("f", O_RDWR);
    SAY(pread(plain, buf, 16, 4090));
    SHOW(buf, 16);
    SAY(pwrite(plain, "plain", 5, 4100));
    SAY(lseek(fd, 4096, SEEK_SET));
    SAY(read(fd, page, 4096));
    SHOW(page, 16);
    SAY(write(fd, page, 4096));
    SAY(lseek(fd, 0, SEEK_CUR));
    close(fd);
    fd = open("new", O_RDWR | O_DSYNC | O_CREAT, 0400); /* read-only by its mode */
    SAY(write(fd, "durable", 7));
    close(fd);
    fd = open("ro", O_RDWR | O_CREAT | O_EXCL, 0444);
    rows_warm(fd);
    SAY(write(fd, "git's way", 9));
    SAY(pread(fd, buf, 20, 0));
    SHOW(buf, 9);
}

const struct rows_entry rows_mixed[] = {
    {"flags", flags},
    {"holes", holes},
    {"long_ones", long_ones},
    {"through_maps", through_maps},
    {"moved", moved},
    {"asynchronous", asynchronous},
    {"reopened", reopened},
    {"behind", behind},
    {"standard", standard},
    {"locks", locks},
    {"direct", direct},
    {NULL, NULL},
};
