/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_il FILE [SECONDS]: nanoseconds of data calls on FILE, the median and the least of several
 * rounds each, as one line of JSON. Run on tmpfs, on the mount, and on the mount with the library:
 * a ratio of two runs is a figure. DIRECT=1 opens with O_DIRECT.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES (16u << 20)
#define ROUNDS 7

static char *buf;
static char *buf2;
static double budget = 0.15;
static const char *path;
static int fd;

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* fn does one call, the i-th; the median over the rounds of its nanoseconds. */
static void measure(const char *name, void (*fn)(unsigned i), bool last)
{
    double ns[ROUNDS];
    unsigned i = 0;

    for (unsigned w = 0; w < 64; w++) {
        fn(i++);
    }
    for (int r = 0; r < ROUNDS; r++) {
        double begun = now(), spent = 0;
        unsigned n = 0;
        do {
            for (unsigned k = 0; k < 16; k++, n++) {
                fn(i++);
            }
            spent = now() - begun;
        } while (spent < budget);
        ns[r] = spent * 1e9 / n;
    }
    qsort(ns, ROUNDS, sizeof(ns[0]), compare);
    printf("\"%s\": [%.0f, %.0f]%s", name, ns[ROUNDS / 2], ns[0], last ? "}\n" : ", ");
}

static void must(bool done, const char *what)
{
    if (!done) {
        perror(what);
        exit(1);
    }
}

static void pread_4k(unsigned i)
{
    must(pread(fd, buf, 4096, (i * 2654435761u) % (FILE_BYTES / 4096) * 4096) == 4096, "pread");
}

static void read_4k(unsigned i)
{
    ssize_t n = read(fd, buf, 4096);

    must(n >= 0, "read");
    if (n < 4096) {
        lseek(fd, 0, SEEK_SET);
    }
}

static void pread_1m(unsigned i)
{
    must(pread(fd, buf, 1 << 20, i % (FILE_BYTES >> 20) << 20) == 1 << 20, "pread");
}

static void memcpy_1m(unsigned i)
{
    memcpy(buf, buf2 + (i % (FILE_BYTES >> 20) << 20), 1 << 20);
    __asm__ volatile("" : : "r"(buf) : "memory");
}

static void pwrite_4k(unsigned i)
{
    must(pwrite(fd, buf, 4096, (i * 2654435761u) % (FILE_BYTES / 4096) * 4096) == 4096, "pwrite");
}

static void write_4k(unsigned i)
{
    if (i % 4096 == 0) {
        lseek(fd, 0, SEEK_SET);
    }
    must(write(fd, buf, 4096) == 4096, "write");
}

static FILE *stream;

static void fread_4k(unsigned i)
{
    if (fread(buf, 1, 4096, stream) != 4096) {
        rewind(stream);
    }
}

int main(int argc, char **argv)
{
    int flags = getenv("DIRECT") ? O_DIRECT : 0;

    path = argc > 1 ? argv[1] : "bench";
    budget = argc > 2 ? atof(argv[2]) / ROUNDS : budget;
    buf = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    buf2 = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(buf != MAP_FAILED && buf2 != MAP_FAILED, "mmap");
    memset(buf, 1, FILE_BYTES);
    memset(buf2, 2, FILE_BYTES);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    must(fd >= 0, path);
    for (unsigned i = 0; i < FILE_BYTES >> 20; i++) {
        must(pwrite(fd, buf, 1 << 20, (off_t)i << 20) == 1 << 20, "pwrite");
    }
    must(fsync(fd) == 0, "fsync");
    close(fd);
    fd = open(path, O_RDWR | flags);
    must(fd >= 0, path);
    printf("{");
    measure("memcpy_1m", memcpy_1m, false);
    measure("pread_4k", pread_4k, false);
    measure("read_4k", read_4k, false);
    measure("pread_1m", pread_1m, false);
    stream = fopen(path, "r");
    must(stream != NULL, path);
    measure("fread_4k", fread_4k, false);
    fclose(stream);
    measure("pwrite_4k", pwrite_4k, false);
    lseek(fd, 0, SEEK_SET);
    measure("write_4k", write_4k, true);
    unlink(path);
    return 0;
}
