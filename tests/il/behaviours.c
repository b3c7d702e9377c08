/* SPDX-License-Identifier: Apache-2.0 */
/* behaviours CASE: what no comparison of answers shows. Exits 0, or says what was wrong. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define CHECK(cond) \
    do { \
        if (!(cond)) { \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #cond, errno); \
            exit(1); \
        } \
    } while (0)

#define LINES 4096

static int fd, log_fd;
static volatile sig_atomic_t handled;
static sigjmp_buf jump;

static void fill(void)
{
    char line[33], byte;

    fd = open("lines", O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    for (int i = 0; i < LINES; i++) {
        snprintf(line, sizeof(line), "line %05d ....................\n", i);
        CHECK(write(fd, line, 32) == 32);
    }
    for (int i = 0; i < 100; i++) {
        CHECK(pread(fd, &byte, 1, i) == 1);
    }
}

static void check_line(int i)
{
    char line[32];

    CHECK(pread(fd, line, 32, i * 32) == 32);
    CHECK(atoi(line + 5) == i);
}

static void every_200us(void (*handler)(int))
{
    struct sigaction act = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, 200}, {0, 200}};

    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void no_timer(void)
{
    struct itimerval none = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &none, NULL);
}

static void note(int number)
{
    int saved = errno;
    char line[32];

    CHECK(write(log_fd, "handled\n", 8) == 8);
    CHECK(pread(fd, line, 32, 7 * 32) == 32 && atoi(line + 5) == 7);
    handled++;
    errno = saved;
}

/* Handlers make data calls in the middle of others; both write to one description. */
static void signals(void)
{
    char text[8];
    long mine = 0, theirs = 0, written = 0;
    time_t end = time(NULL) + 10; /* where a handler takes longer than its period */

    fill();
    log_fd = open("log", O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (int i = 0; i < 50; i++) {
        CHECK(pwrite(log_fd, "x", 1, 0) == 1);
    }
    every_200us(note);
    while (written < 20000 && time(NULL) < end) {
        check_line(written++ % LINES);
        CHECK(write(log_fd, "written\n", 8) == 8);
    }
    no_timer();
    CHECK(lseek(log_fd, 0, SEEK_SET) == 0);
    while (read(log_fd, text, 8) == 8) {
        mine += !memcmp(text, "written\n", 8);
        theirs += !memcmp(text, "handled\n", 8);
    }
    CHECK(mine == written);
    CHECK(theirs == handled);
}

static void leave(int number)
{
    handled++;
    siglongjmp(jump, 1);
}

static void *fresh_thread(void *arg)
{
    for (int i = 0; i < LINES; i++) {
        check_line(i);
    }
    return NULL;
}

/* Handlers that never return leave the thread able to go on, and do others no harm. */
static void longjmps(void)
{
    volatile int left = 200;
    pthread_t thread;
    char line[32];

    fill();
    every_200us(leave);
    if (sigsetjmp(jump, 1)) {
        left--;
    }
    while (left > 0) {
        check_line(left % LINES);
        CHECK(pwrite(fd, "line 00000", 10, 0) == 10);
    }
    no_timer();
    for (int i = 0; i < LINES; i++) {
        check_line(i);
    }
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    CHECK(read(fd, line, 32) == 32 && read(fd, line, 32) == 32 && atoi(line + 5) == 1);
    pthread_create(&thread, NULL, fresh_thread, NULL);
    pthread_join(thread, NULL);
}

/* The library's descriptors are high and close-on-exec, and survive who closes all. */
static void own(void)
{
    int high = 0;
    struct dirent *e;

    fill();
    DIR *dir = opendir("/proc/self/fd");
    while ((e = readdir(dir))) {
        int number = atoi(e->d_name);
        if (number > 255) {
            high++;
            CHECK(fcntl(number, F_GETFD) & FD_CLOEXEC);
        }
    }
    closedir(dir);
    for (int i = 3; i < 65536; i++) {
        if (i != fd) {
            close(i);
        }
    }
    check_line(5);
    printf("%d\n", high);
    CHECK(open("lines", O_RDONLY) == (fd == 3 ? 4 : 3));
}

/* A number that libc closed and opened again by itself is another file. */
static void stale(void)
{
    char text[16];
    FILE *pipe;

    fill();
    for (int i = 0; i < 50; i++) {
        FILE *f = fopen("lines", "r");
        int number = fileno(f);
        CHECK(read(number, text, 16) == 16);
        CHECK(fclose(f) == 0);
        DIR *dir = opendir(".");
        CHECK(dirfd(dir) == number);
        CHECK(pread(number, text, 16, 0) == -1 && errno == EISDIR);
        closedir(dir);
        pipe = popen("echo piped", "r");
        CHECK(fileno(pipe) == number);
        CHECK(read(number, text, 16) == 6 && !memcmp(text, "piped", 5));
        pclose(pipe);
    }
}

/* errno is the program's where nothing fails. */
static void errnos(void)
{
    char text[16];

    fill();
    errno = 77;
    CHECK(read(fd, text, 16) >= 0 && pread(fd, text, 16, 1000) == 16);
    CHECK(pwrite(fd, text, 16, 1000) == 16 && lseek(fd, 0, SEEK_SET) == 0);
    CHECK(write(fd, text, 16) == 16);
    FILE *f = fopen("lines", "r");
    CHECK(f && fread(text, 1, 16, f) == 16);
    CHECK(errno == 77);
    fclose(f);
}

static void *append(void *arg)
{
    int mine = open("log", O_WRONLY | O_APPEND);
    char line[17];

    snprintf(line, sizeof(line), "thread %08ld\n", (long)arg);
    for (int i = 0; i < 500; i++) {
        CHECK(write(mine, line, 16) == 16);
    }
    return NULL;
}

/* Appends of many descriptions neither overlap nor get lost. */
static void appends(void)
{
    pthread_t threads[4];
    long counts[4] = {0};
    char line[17] = "";

    fill();
    close(open("log", O_WRONLY | O_CREAT | O_TRUNC, 0644));
    for (long i = 0; i < 4; i++) {
        pthread_create(&threads[i], NULL, append, (void *)i);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    log_fd = open("log", O_RDONLY);
    while (read(log_fd, line, 16) == 16) {
        long who = atol(line + 7);
        CHECK(!memcmp(line, "thread ", 7) && who >= 0 && who < 4);
        counts[who]++;
    }
    for (int i = 0; i < 4; i++) {
        CHECK(counts[i] == 500);
    }
}

/* Attaches, then waits to be looked at and killed. */
static void wait_here(void)
{
    fill();
    check_line(3);
    puts("ready");
    fflush(stdout);
    pause();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"signals", signals}, {"longjmps", longjmps}, {"own", own},         {"stale", stale},
        {"errnos", errnos},   {"appends", appends},   {"wait", wait_here},
    };

    for (size_t i = 0; argc == 2 && i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (!strcmp(argv[1], cases[i].name)) {
            cases[i].run();
            return 0;
        }
    }
    return 2;
}
