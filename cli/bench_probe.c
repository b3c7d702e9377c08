/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `dfusepy bench` has to measure in C: a call costs tens of nanoseconds. One line of JSON.
 *
 *     bench_probe calls FILE MS [direct]   nanoseconds of data calls on FILE, MS milliseconds each
 *     bench_probe first FOLDER COUNT       of the first write to a file whose pages the kernel has
 *     bench_probe ring SOCKET COUNT        of null requests, other processors idle, then busy
 *
 * The first two know nothing of dfusepy: they are preloaded or not.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/client.h"

#define BLOCK 4096u
#define HOT_BYTES (1u << 20) /* of the calls of a block: what processors cache */
#define FILE_BYTES (16u << 20)
#define BATCH 16u /* calls between two looks at the clock; of streams as many as fill a buffer */
#define STREAM_BATCH 256u
#define WARM 16u /* batches: the whole file, of blocks its hot part */
#define MOST 100000u
#define ATTACH_CALLS 64u /* more than the library waits for */

static uint8_t *buf, *memory; /* FILE_BYTES each */
static int fd;
static FILE *stream;

static void must(bool done, const char *what)
{
    if (!done) {
        perror(what);
        exit(1);
    }
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *found, unsigned n)
{
    qsort(found, n, sizeof(*found), compare);
    return found[n / 2];
}

/* -- data calls ---------------------------------------------------------------------------------
 */

/* A block of the hot part, each as often as any other, in no order. */
static off_t some_block(unsigned i)
{
    return (off_t)((i * 2654435761u) % (HOT_BYTES / BLOCK) * BLOCK);
}

static void pread_4k(unsigned i)
{
    must(pread(fd, buf, BLOCK, some_block(i)) == BLOCK, "pread");
}

static void pwrite_4k(unsigned i)
{
    must(pwrite(fd, buf, BLOCK, some_block(i)) == BLOCK, "pwrite");
}

static void read_4k(unsigned i)
{
    if (i % (HOT_BYTES / BLOCK) == 0)
        must(lseek(fd, 0, SEEK_SET) == 0, "lseek");
    must(read(fd, buf, BLOCK) == BLOCK, "read");
}

static void fread_4k(unsigned i)
{
    if (i % (FILE_BYTES / BLOCK) == 0)
        rewind(stream);
    must(fread(buf, 1, BLOCK, stream) == BLOCK, "fread");
}

static void pread_1m(unsigned i)
{
    off_t off = i % (FILE_BYTES >> 20) << 20;

    must(pread(fd, buf, 1u << 20, off) == 1 << 20, "pread");
}

static void memcpy_1m(unsigned i)
{
    memcpy(buf, memory + (i % (FILE_BYTES >> 20) << 20), 1u << 20);
    __asm__ volatile("" : : "r"(buf) : "memory"); /* it is used */
}

/* The median of batches, each too short to be interrupted often. */
static double measure(void (*call)(unsigned i), unsigned batch, unsigned ms)
{
    static double found[MOST];
    uint64_t begun, t;
    unsigned n = 0, i = 0;

    while (i < WARM * batch) /* what is to be hot becomes hot; programs attach */
        call(i++);
    for (begun = t = now_ns(); n < MOST && t - begun < ms * 1000000ull; n++) {
        for (unsigned k = 0; k < batch; k++)
            call(i++);
        uint64_t end = now_ns();
        found[n] = (double)(end - t) / batch;
        t = end;
    }
    return median(found, n);
}

static int calls(const char *path, unsigned ms, bool direct)
{
    static const struct {
        const char *name;
        void (*call)(unsigned i);
        unsigned batch;
    } all[] = {
        {"pread_4k", pread_4k, BATCH},        {"read_4k", read_4k, BATCH},
        {"fread_4k", fread_4k, STREAM_BATCH}, {"pread_1m", pread_1m, 1},
        {"memcpy_1m", memcpy_1m, 1},          {"pwrite_4k", pwrite_4k, BATCH},
    };
    const unsigned n = sizeof(all) / sizeof(*all);

    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    must(fd >= 0, path);
    for (unsigned i = 0; i < FILE_BYTES >> 20; i++)
        must(pwrite(fd, memory, 1u << 20, (off_t)i << 20) == 1 << 20, "pwrite");
    must(fsync(fd) == 0 && close(fd) == 0, "fsync");
    fd = open(path, O_RDWR | (direct ? O_DIRECT : 0));
    must(fd >= 0, path);
    stream = fopen(path, "r");
    must(stream != NULL, path);
    for (unsigned i = 0; i < n; i++)
        printf("%s\"%s\": %.1f", i ? ", " : "{", all[i].name,
               measure(all[i].call, all[i].batch, ms));
    printf("}\n");
    fclose(stream);
    must(close(fd) == 0 && unlink(path) == 0, path);
    return 0;
}

/* -- the first bypassing write -------------------------------------------------------------------
 */

/* A file whose pages the kernel has: written and read past whatever is preloaded. */
static void make_known(const char *path)
{
    int known = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);

    must(known >= 0, path);
    must(syscall(SYS_pwrite64, known, memory, 1u << 16, 0) == 1 << 16, "pwrite");
    must(syscall(SYS_fsync, known) == 0, "fsync");
    must(syscall(SYS_pread64, known, buf, 1u << 16, 0) == 1 << 16, "pread");
    close(known);
}

static int first(const char *folder, unsigned count)
{
    double *found = calloc(count, sizeof(*found));
    char path[4096];

    must(found && chdir(folder) == 0, folder);
    make_known("warm");
    fd = open("warm", O_RDWR);
    for (unsigned i = 0; i < ATTACH_CALLS; i++) {
        must(pread(fd, buf, BLOCK, 0) == BLOCK, "pread");
        must(pwrite(fd, buf, BLOCK, 0) == BLOCK, "pwrite");
    }
    for (unsigned i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "known-%u", i);
        make_known(path);
        int known = open(path, O_RDWR);
        uint64_t t = now_ns();
        must(pwrite(known, buf, BLOCK, 0) == BLOCK, "pwrite");
        found[i] = (double)(now_ns() - t);
        close(known);
        unlink(path);
    }
    printf("{\"first_write\": %.1f}\n", median(found, count));
    close(fd);
    unlink("warm");
    free(found);
    return 0;
}

/* -- the ring ------------------------------------------------------------------------------------
 */

/* A process that does nothing but turn, on one processor; it ends with us. */
static pid_t hog(int cpu)
{
    pid_t pid = fork();

    if (pid == 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        sched_setaffinity(0, sizeof(set), &set);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile uint64_t n = 0;;)
            n++;
    }
    must(pid > 0, "fork");
    return pid;
}

/* On all processors but the first that we may use. */
static unsigned start_hogs(pid_t *hogs)
{
    cpu_set_t set;
    unsigned seen = 0, n = 0;

    must(sched_getaffinity(0, sizeof(set), &set) == 0, "sched_getaffinity");
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set) && seen++ > 0)
            hogs[n++] = hog(cpu);
    return n;
}

static void requests(struct client *client, const char *name, unsigned count, bool last)
{
    double *found = calloc(count, sizeof(*found)), sum = 0;

    must(found != NULL, "calloc");
    for (unsigned i = 0; i < count; i++) {
        struct client_call call = {.sqe = {.op = PROTO_NOP}};
        uint64_t t = now_ns();
        must(client_do(client, &call) == 0, "a null request");
        found[i] = (double)(now_ns() - t);
        sum += found[i];
    }
    printf("\"%s\": {\"p50\": %.1f, \"mean\": %.1f}%s", name, median(found, count), sum / count,
           last ? "}\n" : ", ");
    free(found);
}

static int ring(const char *path, unsigned count)
{
    struct client_opts opts = {.size = sizeof(opts), .path = path, .role = PROTO_ROLE_API};
    pid_t hogs[CPU_SETSIZE];
    struct client *client;

    if (client_open(&opts, &client) < 0) {
        fprintf(stderr, "bench_probe: no session on %s\n", path);
        return 1;
    }
    printf("{");
    requests(client, "idle", count, false);
    unsigned n = start_hogs(hogs);
    requests(client, "busy", count, true);
    for (unsigned i = 0; i < n; i++) {
        kill(hogs[i], SIGKILL);
        waitpid(hogs[i], NULL, 0);
    }
    client_close(client);
    return 0;
}

int main(int argc, char **argv)
{
    unsigned number = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 0;
    const char *what = argc > 3 ? argv[1] : "";

    buf = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(buf != MAP_FAILED && memory != MAP_FAILED, "mmap");
    memset(buf, 1, FILE_BYTES);
    memset(memory, 2, FILE_BYTES);
    if (!strcmp(what, "calls") && number)
        return calls(argv[2], number, argc > 4);
    if (!strcmp(what, "first") && number)
        return first(argv[2], number);
    if (!strcmp(what, "ring") && number)
        return ring(argv[2], number);
    fprintf(stderr, "usage: bench_probe calls|first|ring PATH NUMBER [direct]\n");
    return 2;
}
