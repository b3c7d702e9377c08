/* SPDX-License-Identifier: Apache-2.0 */
/* Cases about files: data, offsets, maps, attributes, names. */
#include <ftw.h>
#include <fts.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <dirent.h>
#include <signal.h>
#include <utime.h>

#include "rows.h"

ssize_t __read(int fd, void *buf, size_t n);
ssize_t __write(int fd, const void *buf, size_t n);
ssize_t __pread64(int fd, void *buf, size_t n, off64_t off);
ssize_t __pwrite64(int fd, const void *buf, size_t n, off64_t off);
off_t __lseek(int fd, off_t off, int whence);
int __open(const char *path, int flags, ...);
int __open64(const char *path, int flags, ...);
int __close(int fd);
int __dup2(int fd, int to);
int __fcntl(int fd, int cmd, ...);
int __pipe(int fds[2]);
ssize_t __read_chk(int fd, void *buf, size_t n, size_t room);
ssize_t __pread_chk(int fd, void *buf, size_t n, off_t off, size_t room);
ssize_t __pread64_chk(int fd, void *buf, size_t n, off64_t off, size_t room);
size_t __fread_chk(void *buf, size_t room, size_t size, size_t n, FILE *stream);
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);
int __xstat(int version, const char *path, struct stat *st);
int __lxstat(int version, const char *path, struct stat *st);
int __fxstat(int version, int fd, struct stat *st);

static char buf[1 << 20];

static void data(void)
{
    int fd = rows_file("f");

    SAY(read(fd, buf, 32));
    SHOW(buf, 32);
    SAY(read(fd, buf, 0));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(pread(fd, buf, 64, 65536 - 32));
    SHOW(buf, 32);
    SAY(pread64(fd, buf, 64, 65536));
    SAY(pread(fd, buf, 64, 1 << 20));
    SAY(pread(fd, buf, 64, -1));
    SAY(pread(fd, buf, 64, INT64_MAX));
    SAY(pread(fd, NULL, 64, 0));
    SAY(pread(fd, buf, SIZE_MAX, 65500));
    SAY(write(fd, "hello, world\n", 13));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(pwrite(fd, "at ten", 6, 10));
    SAY(pwrite64(fd, "beyond", 6, 100000));
    SAY(lseek(fd, 0, SEEK_END));
    SAY(pread(fd, buf, 64, 0));
    SHOW(buf, 64);
    SAY(pread(fd, buf, 16, 99990));
    SAY(memcmp(buf, "\0\0\0\0\0\0\0\0\0\0beyond", 16));
    SAY(pwrite(fd, "x", 1, -5));
    SAY(write(fd, NULL, 5));
    SAY(write(fd, buf, 0));
    SAY(read(fd, buf, 100));
    SAY(lseek(fd, 0, SEEK_SET));
    SAY(read(fd, buf, sizeof(buf)));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(read(fd, buf, sizeof(buf)));
    struct stat st;
    SAY(fstat(fd, &st));
    SAY(st.st_size);
    SAY(close(fd));
    SAY(read(fd, buf, 1));
    fd = open("f", O_RDONLY);
    SAY(write(fd, "x", 1));
    SAY(pwrite(fd, "x", 1, 0));
    close(fd);
    fd = open("f", O_WRONLY);
    SAY(read(fd, buf, 1));
    SAY(pread(fd, buf, 1, 0));
    SAY(pwrite(fd, "w", 1, 0));
    close(fd);
    fd = open("f", O_RDWR | O_APPEND);
    SAY(write(fd, "appended", 8));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(pwrite(fd, "also", 4, 3));
    SAY(lseek(fd, 0, SEEK_END));
    SAY(pread(fd, buf, 12, 100006));
    SHOW(buf, 12);
    close(fd);
    fd = open("f", O_RDWR | O_SYNC);
    SAY(write(fd, "sync", 4));
    SAY(pread(fd, buf, 8, 0));
    SHOW(buf, 8);
    close(fd);
    fd = open("f", O_PATH);
    SAY(read(fd, buf, 4));
    SAY(pread(fd, buf, 4, 0));
    SAY(write(fd, "path", 4));
    close(fd);
}

static void alias(void)
{
    int fd = rows_file("f"), fds[2];

    SAY(__read(fd, buf, 32));
    SHOW(buf, 32);
    SAY(__pread64(fd, buf, 16, 64));
    SHOW(buf, 16);
    SAY(__write(fd, "under", 5));
    SAY(__pwrite64(fd, "scores", 6, 0));
    SAY(__lseek(fd, 0, SEEK_CUR));
    SAY(__close(fd));
    fd = __open("f", O_RDONLY);
    SAY(read(fd, buf, 6));
    SHOW(buf, 6);
    SAY(__dup2(fd, 20));
    SAY(__fcntl(20, F_GETFL) & O_ACCMODE);
    SAY(__fcntl(fd, F_DUPFD, 30));
    SAY(lseek(30, 0, SEEK_CUR));
    close(fd);
    fd = __open64("new", O_RDWR | O_CREAT | O_EXCL, 0600);
    SAY(fd >= 0);
    SAY(__pipe(fds));
    SAY(write(fds[1], "p", 1));
    SAY(read(fds[0], buf, 5));
}

static void chk(void)
{
    int fd = rows_file("f");

    SAY(__read_chk(fd, buf, 32, sizeof(buf)));
    SHOW(buf, 32);
    SAY(__pread_chk(fd, buf, 32, 32, sizeof(buf)));
    SHOW(buf, 32);
    SAY(__pread64_chk(fd, buf, 32, 64, sizeof(buf)));
    SHOW(buf, 32);
    SAY(lseek(fd, 0, SEEK_CUR));
    close(fd);
    fd = __open_2("f", O_RDWR);
    SAY(write(fd, "1", 1));
    close(fd);
    fd = __open64_2("f", O_RDWR);
    SAY(write(fd, "22", 2));
    close(fd);
    fd = __openat_2(AT_FDCWD, "f", O_RDONLY);
    SAY(read(fd, buf, 4));
    SHOW(buf, 4);
    close(fd);
    fd = __openat64_2(AT_FDCWD, "f", O_RDONLY);
    SAY(read(fd, buf, 4));
    close(fd);
    SAY(__open_2("absent", O_RDONLY));
}

static void vector(void)
{
    int fd = rows_file("f");
    char a[10], b[20], c[2];
    struct iovec in[3] = {{a, 10}, {b, 20}, {c, 2}};
    struct iovec out[3] = {{"one ", 4}, {"two ", 4}, {"three ", 6}};
    struct iovec many[12];

    for (int i = 0; i < 12; i++) {
        many[i] = (struct iovec){"piece;", 6};
    }
    SAY(readv(fd, in, 3));
    SHOW(a, 10);
    SHOW(b, 20);
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(preadv(fd, in, 3, 320));
    SHOW(a, 10);
    SAY(preadv64(fd, in, 3, 65536 - 15));
    SAY(preadv2(fd, in, 2, 640, 0));
    SHOW(a, 10);
    SAY(preadv64v2(fd, in, 2, -1, 0));
    SHOW(a, 10);
    SAY(preadv2(fd, in, 2, 0, 0x40000000));
    SAY(readv(fd, in, -1));
    SAY(readv(fd, in, 0));
    SAY(preadv(fd, in, 3, -7));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(writev(fd, out, 3));
    SAY(writev(fd, many, 12));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(pwritev(fd, out, 3, 1000));
    SAY(pwritev(fd, many, 12, 2000));
    SAY(pwritev64(fd, out, 2, 70000));
    SAY(pwritev2(fd, out, 1, 0, 0));
    SAY(pwritev2(fd, out, 1, 40, RWF_DSYNC));
    SAY(pwritev64v2(fd, out, 1, -1, 0));
    SAY(pwritev64v2(fd, out, 1, 0, 0x40000000));
    SAY(lseek(fd, 0, SEEK_END));
    SAY(pread(fd, buf, 70020, 0));
    unsigned long sum = 5381;
    for (int i = 0; i < 70020; i++) {
        sum = (sum * 33 + (unsigned char)buf[i]) & 0xffffffff;
    }
    SAY(sum);
}

static void seek(void)
{
    int fd = rows_file("f");

    SAY(lseek(fd, 10, SEEK_SET));
    SAY(lseek64(fd, 5, SEEK_CUR));
    SAY(lseek(fd, -1, SEEK_SET));
    SAY(lseek(fd, 0, 99));
    SAY(lseek(fd, -10, SEEK_END));
    SAY(read(fd, buf, 100));
    SAY(ftruncate(fd, 8 << 20));
    SAY(pwrite(fd, "data", 4, 4 << 20));
    SAY(fsync(fd));
    SAY(lseek(fd, 0, SEEK_DATA));
    SAY(lseek(fd, 0, SEEK_HOLE) >= 65536);
    off_t at = lseek(fd, 1 << 20, SEEK_DATA);
    SAY(at == 1 << 20 || (at > 3 << 20 && at <= 4 << 20));
    SAY(lseek(fd, 0, SEEK_CUR) == at);
    SAY(lseek(fd, 8 << 20, SEEK_DATA));
    SAY(lseek(fd, 8 << 20, SEEK_HOLE));
    SAY(lseek(fd, -4, SEEK_DATA));
    SAY(lseek(-1, 0, SEEK_SET));
}

static void sync_case(void)
{
    int fd = rows_file("f");

    SAY(fsync(fd));
    SAY(fdatasync(fd));
    SAY(syncfs(fd));
    SAY(sync_file_range(fd, 0, 4096, SYNC_FILE_RANGE_WRITE));
    sync();
    SAY(fsync(-1));
}

static void truncate_case(void)
{
    int fd = rows_file("f");
    struct stat st;

    SAY(pwrite(fd, "0123456789", 10, 0));
    SAY(ftruncate(fd, 5));
    SAY(pread(fd, buf, 10, 0));
    SAY(ftruncate64(fd, 20));
    SAY(pread(fd, buf, 30, 0));
    SAY(memcmp(buf, "01234\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20));
    SAY(truncate("f", 3));
    SAY(pwrite(fd, "zz", 2, 6));
    SAY(truncate64("f", 7));
    SAY(read(fd, buf, 30));
    SAY(fstat(fd, &st));
    SAY(st.st_size);
    SAY(ftruncate(fd, -1));
}

static void allocate(void)
{
    int fd = rows_file("f");
    struct stat st;

    SAY(fallocate(fd, 0, 0, 128 << 10) == 0 || errno == EOPNOTSUPP);
    SAY(fallocate64(fd, FALLOC_FL_KEEP_SIZE, 0, 4096) == 0 || errno == EOPNOTSUPP);
    SAY(posix_fallocate(fd, 0, 200000));
    SAY(posix_fallocate64(fd, 0, 200001));
    SAY(fstat(fd, &st));
    SAY(st.st_size);
    SAY(pread(fd, buf, 10, 199995));
}

static void advise(void)
{
    int fd = rows_file("f");

    SAY(posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL));
    SAY(posix_fadvise64(fd, 0, 0, POSIX_FADV_DONTNEED));
    SAY(readahead(fd, 0, 65536));
    SAY(pread(fd, buf, 32, 0));
    SHOW(buf, 32);
}

static void copy(void)
{
    int fd = rows_file("f"), to = open("g", O_RDWR | O_CREAT, 0644), fds[2], more[2];
    off_t in = 0;
    struct iovec v = {"vm", 2};

    SAY(pwrite(fd, "fresh", 5, 0));
    SAY(copy_file_range(fd, NULL, to, NULL, 1000, 0));
    SAY(lseek(to, 0, SEEK_CUR));
    SAY(pread(to, buf, 32, 0));
    SHOW(buf, 32);
    SAY(sendfile(to, fd, &in, 100));
    SAY(sendfile64(to, fd, &in, 100));
    SAY(in);
    SAY(pipe(fds) | pipe(more));
    SAY(splice(fd, NULL, fds[1], NULL, 32, 0));
    SAY(tee(fds[0], more[1], 32, 0));
    SAY(vmsplice(fds[1], &v, 1, 0));
    SAY(read(fds[0], buf, 100));
    SHOW(buf, 34);
    SAY(lseek(to, 0, SEEK_END));
}

static void map(void)
{
    int fd = rows_file("f"), again = open("f", O_RDWR);
    char *shared = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *own = mmap64(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 4096);

    SAY(shared == MAP_FAILED || own == MAP_FAILED);
    memcpy(shared + 100, "by map", 6);
    SAY(pread(fd, buf, 6, 100));
    SHOW(buf, 6);
    SAY(pread(again, buf, 6, 100));
    SHOW(buf, 6);
    SAY(pwrite(again, "by write", 8, 200));
    SHOW(shared + 200, 8);
    SAY(pwrite(again, "own", 3, 4096));
    SHOW(own, 3);
    SAY(msync(shared, 65536, MS_SYNC));
    shared = mremap(shared, 65536, 32768, MREMAP_MAYMOVE);
    SAY(shared == MAP_FAILED);
    memcpy(shared + 300, "later", 5);
    SAY(munmap(shared, 32768));
    SAY(pread(again, buf, 5, 300));
    SHOW(buf, 5);
    SAY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, -1, 0) == MAP_FAILED);
    SAY(mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
    SAY(errno);
}

static void open_case(void)
{
    int fd = open("a", O_RDWR | O_CREAT | O_EXCL, 0640);
    struct stat st;

    SAY(fd);
    SAY(write(fd, "abc", 3));
    close(fd);
    SAY(open("a", O_RDWR | O_CREAT | O_EXCL, 0640));
    SAY(open64("absent", O_RDONLY));
    SAY(fd = openat(AT_FDCWD, "a", O_RDONLY));
    SAY(read(fd, buf, 10));
    close(fd);
    SAY(fd = openat64(AT_FDCWD, "b", O_RDWR | O_CREAT, 0604));
    close(fd);
    SAY(stat("b", &st) == 0 ? (int)(st.st_mode & 0777) : -1);
    SAY(fd = creat("c", 0622));
    close(fd);
    SAY(fd = creat64("d", 0600));
    close(fd);
    SAY(fd = open(".", O_RDONLY | O_DIRECTORY));
    SAY(read(fd, buf, 10));
    close(fd);
    fd = open(".", O_RDWR | O_TMPFILE, 0600);
    if (fd >= 0) { /* not every file system has it */
        if (write(fd, "unnamed", 7) != 7 || pread(fd, buf, 10, 0) != 7) {
            puts("an unnamed file is wrong");
        }
        close(fd);
    }
    SAY(fd = open("a", O_RDONLY));
    SAY(unlink("a"));
    SAY(read(fd, buf, 10));
    SAY(fd = open("b", O_WRONLY | O_TRUNC));
}

static void handle(void)
{
    struct {
        struct file_handle head;
        char bytes[128];
    } h;
    int id, fd = rows_file("f");

    close(fd);
    memset(&h, 0, sizeof(h));
    h.head.handle_bytes = 128;
    if (name_to_handle_at(AT_FDCWD, "f", &h.head, &id, 0) == 0) {
        int dir = open(".", O_RDONLY | O_DIRECTORY);
        fd = open_by_handle_at(dir, &h.head, O_RDONLY);
        SAY(fd >= 0 ? 0 : -1);
        SAY(read(fd, buf, 32));
    }
}

static void temporary(void)
{
    char name[] = "tXXXXXX", suffixed[] = "tXXXXXX.c";
    int fd;

#define AGAIN(call, n) \
    strcpy(n, sizeof(n) == 8 ? "tXXXXXX" : "tXXXXXX.c"); \
    fd = call; \
    SAY(fd >= 0); \
    SAY(write(fd, "temporary", 9)); \
    SAY(pread(fd, buf, 20, 0)); \
    close(fd)

    AGAIN(mkstemp(name), name);
    AGAIN(mkstemp64(name), name);
    AGAIN(mkostemp(name, O_APPEND), name);
    AGAIN(mkostemp64(name, 0), name);
    AGAIN(mkstemps(suffixed, 2), suffixed);
    AGAIN(mkstemps64(suffixed, 2), suffixed);
    AGAIN(mkostemps(suffixed, 2, 0), suffixed);
    AGAIN(mkostemps64(suffixed, 2, 0), suffixed);
}

static void directory(void)
{
    struct dirent *e;
    struct dirent64 *e64;
    struct dirent **list;
    int n = 0;
    char where[4096];
    glob_t found;

    mkdir("sub", 0755);
    close(open("sub/x", O_WRONLY | O_CREAT, 0644));
    DIR *dir = opendir("sub");
    while ((e = readdir(dir))) {
        n++;
    }
    SAY(n);
    rewinddir(dir);
    long at = telldir(dir);
    e64 = readdir64(dir);
    SAY(e64 != NULL);
    seekdir(dir, at);
    SAY(read(dirfd(dir), buf, 4));
    SAY(closedir(dir));
    dir = fdopendir(open("sub", O_RDONLY | O_DIRECTORY));
    SAY(getdents64(dirfd(dir), buf, 4096) > 0);
    SAY(fchdir(dirfd(dir)));
    SAY(getcwd(where, sizeof(where)) && !strcmp(strrchr(where, '/'), "/sub"));
    SAY(chdir(".."));
    closedir(dir);
    n = scandir("sub", &list, NULL, alphasort);
    SAY(n);
    SAY(glob("sub/*", 0, NULL, &found));
    SAY(found.gl_pathc);
    char *roots[] = {"sub", NULL};
    FTS *fts = fts_open(roots, FTS_PHYSICAL, NULL);
    n = 0;
    while (fts_read(fts)) {
        n++;
    }
    fts_close(fts);
    SAY(n);
}

static int visit(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    return 0;
}

static int visit_plain(const char *path, const struct stat *st, int type)
{
    return 0;
}

static void walks(void)
{
    directory();
    SAY(nftw("sub", visit, 4, FTW_PHYS));
    SAY(ftw("sub", visit_plain, 4));
}

static void control(void)
{
    int fd = rows_file("f"), n;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};

    SAY(fcntl(fd, F_GETFL) & O_ACCMODE);
    SAY(fcntl64(fd, F_GETFD));
    SAY(fcntl(fd, F_SETFL, O_APPEND));
    SAY(pwrite(fd, "end", 3, 0));
    SAY(lseek(fd, 0, SEEK_END));
    SAY(fcntl(fd, F_SETFL, 0));
    SAY(pwrite(fd, "start", 5, 0));
    SAY(lseek(fd, 0, SEEK_END));
    SAY(fcntl(fd, F_SETLK, &lock));
    SAY(flock(fd, LOCK_EX));
    SAY(lockf(fd, F_TEST, 10));
    SAY(ioctl(fd, FIOCLEX));
    SAY(fcntl(fd, F_GETFD));
    SAY(ioctl(fd, TCGETS, buf));
    SAY(ioctl(fd, FIONREAD, &n) == 0 || errno == ENOTTY);
    SAY(isatty(fd));
    SAY(fcntl(fd, F_DUPFD_CLOEXEC, 50));
    SAY(read(50, buf, 5));
    SAY(fcntl(-1, F_GETFL));
}

static void stdio(void)
{
    FILE *f;
    char *line = NULL;
    size_t room = 0;

    close(rows_file("f"));
    f = fopen("f", "r");
    SAY(fread(buf, 1, 100, f));
    SAY(__fread_chk(buf, sizeof(buf), 1, 100, f));
    SAY(fgets(buf, 100, f) != NULL);
    SHOW(buf, strlen(buf));
    SAY(getline(&line, &room, f));
    SAY(fseek(f, 32000, SEEK_SET));
    SAY(getline(&line, &room, f));
    SHOW(line, strlen(line));
    SAY(ftell(f));
    SAY(fclose(f));
    f = fopen64("f", "r+");
    SAY(fwrite("written", 1, 7, f));
    SAY(fflush(f));
    f = freopen("f", "r", f);
    SAY(fread(buf, 1, 7, f));
    SHOW(buf, 7);
    f = freopen64("g", "w", f);
    SAY(fputs("to g", f));
    SAY(fclose(f));
    f = fdopen(open("g", O_RDONLY), "r");
    SAY(setvbuf(f, NULL, _IOFBF, 4096));
    SAY(fread(buf, 1, 100, f));
    SAY(fclose(f));
    f = tmpfile();
    SAY(fputs("temporary", f));
    rewind(f);
    SAY(fread(buf, 1, 100, f));
    SAY(fclose(f));
    f = tmpfile64();
    SAY(fclose(f));
    SAY(fopen("absent", "r") == NULL);
    SAY(errno);
}

static void closeall(void)
{
    FILE *f = fopen("f", "w");

    fputs("flushed by fcloseall", f);
    fcloseall();
    int fd = open("f", O_RDONLY);
    ssize_t n = read(fd, buf, 100); /* standard output is closed, too: the status tells */
    _exit(n == 20 && !memcmp(buf, "flushed by fcloseall", 20) ? 42 : 1);
}

static void attributes(void)
{
    int fd = rows_file("f");
    struct stat st;
    struct stat64 st64;
    struct statx stx;

    SAY(pwrite(fd, "longer", 6, 70000));
    SAY(fstat(fd, &st));
    SAY(st.st_size);
    SAY(pwrite(fd, "longer", 6, 80000));
    SAY(stat("f", &st));
    SAY(st.st_size);
    SAY(lstat("f", &st));
    SAY(stat64("f", &st64) | lstat64("f", &st64) | fstat64(fd, &st64));
    SAY(st64.st_size);
    SAY(fstatat(AT_FDCWD, "f", &st, 0) | fstatat64(AT_FDCWD, "f", &st64, 0));
    SAY(statx(AT_FDCWD, "f", 0, STATX_BASIC_STATS, &stx));
    SAY(stx.stx_size);
    SAY(access("f", R_OK) | faccessat(AT_FDCWD, "f", W_OK, 0) | euidaccess("f", R_OK));
    SAY(access("absent", F_OK));
}

static void old(void)
{
    int fd = rows_file("f");
    struct stat st;

    SAY(__xstat(1, "f", &st));
    SAY(__lxstat(1, "f", &st));
    SAY(__fxstat(1, fd, &st));
    SAY(st.st_size);
}

static void names(void)
{
    char dir[] = "dXXXXXX";

    close(rows_file("f"));
    SAY(symlink("f", "s") | symlinkat("f", AT_FDCWD, "s2"));
    SAY(readlink("s", buf, 100));
    SAY(readlinkat(AT_FDCWD, "s2", buf, 100));
    SAY(realpath("s", buf) != NULL);
    SAY(link("f", "l") | linkat(AT_FDCWD, "f", AT_FDCWD, "l2", 0));
    SAY(rename("l", "m") | renameat(AT_FDCWD, "l2", AT_FDCWD, "m2"));
    SAY(renameat2(AT_FDCWD, "m", AT_FDCWD, "m2", 1));
    SAY(unlink("m") | unlinkat(AT_FDCWD, "s2", 0) | remove("s"));
    SAY(mkdir("d", 0700) | mkdirat(AT_FDCWD, "d2", 0700) | rmdir("d"));
    SAY(mkdtemp(dir) != NULL);
    SAY(mkfifo("p", 0600) | mknod("q", S_IFIFO | 0600, 0) |
        mknodat(AT_FDCWD, "r", S_IFREG | 0600, 0));
    SAY(unlink("absent"));
}

static void modes(void)
{
    int fd = rows_file("f");
    struct utimbuf ub = {1000000, 2000000};
    struct timeval tv[2] = {{3000000, 0}, {4000000, 0}};
    struct timespec ts[2] = {{5000000, 0}, {6000000, 7}};
    struct stat st;

    SAY(chmod("f", 0600) | fchmod(fd, 0640) | fchmodat(AT_FDCWD, "f", 0644, 0));
    SAY(chown("f", -1, -1) | fchown(fd, -1, -1) | lchown("f", -1, -1) |
        fchownat(AT_FDCWD, "f", -1, -1, 0));
    SAY(utime("f", &ub) | utimes("f", tv) | futimes(fd, tv));
    SAY(utimensat(AT_FDCWD, "f", ts, 0) | futimens(fd, ts));
    SAY(stat("f", &st));
    SAY(st.st_mtime);
    SAY(fchmod(fd, 04755));
    SAY(pwrite(fd, "x", 1, 0));
    SAY(fstat(fd, &st));
    SAY(st.st_mtime > 6000000);
    SAY(close(open("f", O_RDONLY)));
}

static void space(void)
{
    int fd = rows_file("f");
    struct statfs sf;
    struct statvfs sv;

    SAY(statfs("f", &sf) | fstatfs(fd, &sf) | statvfs("f", &sv) | fstatvfs(fd, &sv));
}

static void xattrs(void)
{
    int fd = rows_file("f");

    SAY(setxattr("f", "user.a", "1", 1, 0) | lsetxattr("f", "user.b", "22", 2, 0) |
        fsetxattr(fd, "user.c", "333", 3, 0));
    SAY(getxattr("f", "user.a", buf, 10));
    SAY(lgetxattr("f", "user.b", buf, 10));
    SAY(fgetxattr(fd, "user.c", buf, 10));
    SAY(fgetxattr(fd, "user.absent", buf, 10));
    SAY(listxattr("f", buf, 1000) == llistxattr("f", buf, 1000));
    SAY(flistxattr(fd, buf, 1000) >= 27);
    SAY(removexattr("f", "user.a") | lremovexattr("f", "user.b") | fremovexattr(fd, "user.c"));
}

static void limits(void)
{
    int fd = rows_file("f");
    struct rlimit limit = {100000, RLIM_INFINITY}, was;
    struct rlimit64 limit64 = {100000, RLIM64_INFINITY};

    signal(SIGXFSZ, SIG_IGN);
    SAY(setrlimit(RLIMIT_FSIZE, &limit));
    SAY(pwrite(fd, buf, 100, 99950));
    SAY(pwrite(fd, buf, 100, 100000));
    SAY(pwrite(fd, buf, 100, 99000));
    SAY(lseek(fd, 99990, SEEK_SET));
    SAY(write(fd, buf, 100));
    SAY(write(fd, buf, 100));
    limit.rlim_cur = RLIM_INFINITY;
    SAY(prlimit(0, RLIMIT_FSIZE, &limit, &was));
    SAY(was.rlim_cur);
    SAY(pwrite(fd, buf, 100, 100000));
    SAY(setrlimit64(RLIMIT_FSIZE, &limit64));
    SAY(pwrite(fd, buf, 100, 200000));
    limit64.rlim_cur = RLIM64_INFINITY;
    SAY(prlimit64(0, RLIMIT_FSIZE, &limit64, NULL));
    SAY(pwrite(fd, buf, 100, 200000));
}

const struct rows_entry rows_files[] = {
    {"data", data},
    {"alias", alias},
    {"chk", chk},
    {"vector", vector},
    {"seek", seek},
    {"sync", sync_case},
    {"truncate", truncate_case},
    {"allocate", allocate},
    {"advise", advise},
    {"copy", copy},
    {"map", map},
    {"open", open_case},
    {"handle", handle},
    {"temporary", temporary},
    {"directory", walks},
    {"control", control},
    {"stdio", stdio},
    {"closeall", closeall},
    {"attributes", attributes},
    {"old", old},
    {"names", names},
    {"modes", modes},
    {"space", space},
    {"xattrs", xattrs},
    {"limits", limits},
    {NULL, NULL},
};
