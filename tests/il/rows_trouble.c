/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of trouble with processes: streams and descriptors that are shared, limits, filters. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <utmp.h>
#include <wchar.h>

#include "rows.h"

extern char **environ;
static char buf[65536];

/* -- streams ----------------------------------------------------------------------------------- */
static void streams(void)
{
    fpos_t pos;
    char line[100];
    FILE *f;

    close(rows_file("f"));
    f = fopen("f", "r");
    SAY(fgetc(f));
    SAY(ungetc('X', f));
    SAY(ftell(f));
    SAY(fgets(line, 10, f) != NULL);
    SHOW(line, strlen(line));
    SAY(fgetpos(f, &pos));
    SAY(fseek(f, 3200, SEEK_SET));
    SAY(fgets(line, 100, f) != NULL);
    SHOW(line, strlen(line));
    SAY(lseek(fileno(f), 0, SEEK_CUR) >= 3232);
    SAY(fflush(f)); /* brings the descriptor's offset to the stream's */
    SAY(lseek(fileno(f), 0, SEEK_CUR));
    SAY(fsetpos(f, &pos));
    SAY(fgets(line, 100, f) != NULL);
    SHOW(line, strlen(line));
    SAY(fseek(f, -32, SEEK_END));
    SAY(fread(line, 1, 100, f));
    SAY(feof(f));
    SAY(fseek(f, 100, SEEK_CUR));
    SAY(fgetc(f));
    rewind(f);
    SAY(fread(line, 1, 32, f));
    int same = fileno(f);
    f = freopen("warm", "r", f);
    SAY(fileno(f) == same);
    SAY(fseek(f, 64, SEEK_SET));
    SAY(fread(line, 1, 32, f));
    SHOW(line, 32);
    SAY(pread(fileno(f), line, 32, 96));
    SHOW(line, 32);
    SAY(fclose(f));
    f = fdopen(open("f", O_RDWR), "a");
    SAY(fputs("by a stream", f));
    SAY(ftell(f));
    SAY(fclose(f));
    f = fopen("f", "r+");
    SAY(setvbuf(f, NULL, _IONBF, 0));
    SAY(fputs("unbuffered", f));
    SAY(fseek(f, 0, SEEK_CUR));
    SAY(fread(line, 1, 10, f));
    SHOW(line, 10);
    SAY(fclose(f));
    f = fopen("f", "a+");
    SAY(fread(line, 1, 10, f));
    SHOW(line, 10);
    SAY(fputs("end", f));
    SAY(fclose(f));
    SAY(rows_sum("f"));
    f = fmemopen(line, sizeof(line), "w+");
    SAY(fputs("memory", f));
    SAY(fclose(f));
    SHOW(line, 6);
}

static void wide(void)
{
    wchar_t text[100];
    FILE *f;

    close(rows_file("f"));
    f = fopen("f", "r");
    SAY(fwide(f, 1) > 0);
    SAY(fgetws(text, 100, f) != NULL);
    SAY(wcslen(text));
    SAY(ungetwc(L'z', f));
    SAY(fgetwc(f));
    SAY(fgetws(text, 100, f) != NULL);
    printf("%ls", text);
    SAY(fclose(f));
    f = fopen("f", "rm"); /* libc maps it */
    SAY(fread(buf, 1, 100, f));
    SAY(fseek(f, 32000, SEEK_SET));
    SAY(fread(buf, 1, 32, f));
    SHOW(buf, 32);
    SAY(fclose(f));
}

/* Streams shared with children: the offset that a flush has left is where they go on. */
static void stream_shared(void)
{
    char line[100];
    FILE *f;

    close(rows_file("f"));
    f = fopen("f", "r");
    SAY(fgets(line, 100, f) != NULL);
    SAY(fflush(f));
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fileno(f), 0);
        execlp("sh", "sh", "-c", "read a; echo \"$a\"; read a; echo \"$a\"", NULL);
        _exit(127);
    }
    SAY(rows_wait(pid));
    SAY(lseek(fileno(f), 0, SEEK_CUR));
    SAY(fclose(f));
    f = fopen("g", "w");
    fputs("parent first;", f);
    fflush(f);
    pid = fork();
    if (pid == 0) {
        fputs("child second;", f);
        exit(0);
    }
    SAY(rows_wait(pid));
    fputs("parent third;", f);
    SAY(fclose(f));
    SAY(rows_sum("g"));
    f = fopen("g", "r");
    SAY(fread(line, 1, 100, f));
    SHOW(line, 39);
}

/* -- processes --------------------------------------------------------------------------------- */
static void appenders(void)
{
    int shared = open("log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    long counts[6] = {0};
    pid_t pids[6];
    char line[17] = "";

    for (long i = 0; i < 6; i++) {
        fflush(stdout);
        pids[i] = fork();
        if (pids[i] == 0) {
            int fd = i % 2 ? shared : open("log", O_WRONLY | O_APPEND);
            snprintf(line, sizeof(line), "process %07ld\n", i);
            for (int k = 0; k < 200; k++) {
                if (write(fd, line, 16) != 16) {
                    _exit(1);
                }
            }
            _exit(0);
        }
    }
    for (int i = 0; i < 6; i++) {
        SAY(rows_wait(pids[i]));
    }
    int fd = open("log", O_RDONLY);
    while (read(fd, line, 16) == 16) {
        long who = atol(line + 8);
        if (memcmp(line, "process ", 8) || who < 0 || who > 5) {
            puts("a line is torn");
            break;
        }
        counts[who]++;
    }
    for (int i = 0; i < 6; i++) {
        SAY(counts[i]);
    }
    SAY(pwrite(shared, "to the end", 10, 0));
    SAY(lseek(shared, 0, SEEK_END));
}

static volatile int stop;

static void *works(void *arg)
{
    int fd = open("warm", O_RDWR);
    char line[32];
    long wrong = 0;

    for (int i = 0; !stop; i = (i + 1) % 2048) {
        wrong += pread(fd, line, 32, i * 32) != 32 || atoi(line + 5) != i;
        wrong += pwrite(fd, line, 32, i * 32) != 32;
    }
    close(fd);
    return (void *)wrong;
}

/* Forks at any moment of other threads' calls: children begin afresh, at once, and work. */
static void fork_in_threads(void)
{
    pthread_t t[3];
    void *wrong;
    int fd = rows_file("f"), bad = 0;

    for (int i = 0; i < 3; i++) {
        pthread_create(&t[i], NULL, works, NULL);
    }
    for (int i = 0; i < 25; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            int own = open("f", O_RDWR);
            char line[32];
            for (int k = 0; k < 100; k++) {
                if (pread(own, line, 32, k * 32) != 32 || atoi(line + 5) != k ||
                    pread(fd, line, 32, k * 32) != 32 || atoi(line + 5) != k) {
                    _exit(1);
                }
            }
            _exit(write(own, "line 00000", 10) == 10 ? 0 : 2);
        }
        bad += rows_wait(pid) != 0;
    }
    stop = 1;
    SAY(bad);
    for (int i = 0; i < 3; i++) {
        pthread_join(t[i], &wrong);
        SAY((long)wrong);
    }
    SAY(rows_sum("warm"));
}

static void *execs(void *arg)
{
    execl("/bin/sh", "sh", "-c", "cat f | wc -c; exit 9", NULL);
    return NULL;
}

static void exec_in_thread(void)
{
    pid_t pid;

    close(rows_file("f"));
    pid = fork();
    if (pid == 0) {
        pthread_t t[2];
        pthread_create(&t[0], NULL, works, NULL);
        usleep(20000);
        pthread_create(&t[1], NULL, execs, NULL);
        pthread_join(t[1], NULL);
        _exit(127);
    }
    SAY(rows_wait(pid));
}

static void vforked(void)
{
    int fd = rows_file("f"), log = open("log", O_RDWR | O_CREAT | O_APPEND, 0644);
    char *argv[] = {"sh", "-c", "echo from the shell >&1; exit 6", NULL};

    SAY(read(fd, buf, 32));
    SAY(write(log, "parent\n", 7));
    pid_t pid = vfork();
    if (pid == 0) { /* as libraries do, though the standard forbids it */
        char line[32];
        ssize_t got = read(fd, line, 32);
        write(log, "child\n", 6);
        pwrite(fd, got == 32 ? line : "short", 5, 64);
        close(fd);
        dup2(log, 1);
        close(log);
        execve("/bin/sh", argv, environ);
        _exit(127);
    }
    SAY(rows_wait(pid));
    SAY(read(fd, buf, 32));
    SHOW(buf, 32);
    SAY(write(log, "parent again\n", 13));
    SAY(lseek(log, 0, SEEK_CUR));
    SAY(pread(log, buf, 100, 0));
    SHOW(buf, 45);
}

static void spawned(void)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t mask;
    char *argv[] = {"sh", "-c", "cat <&7; echo end; pwd | grep -o 'sub$'; exit 8", NULL};
    int fd = rows_file("f"), out = open("out", O_RDWR | O_CREAT, 0644);
    pid_t pid;

    mkdir("sub", 0755);
    SAY(ftruncate(fd, 64));
    SAY(write(out, "begin\n", 6));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out, 1);
    posix_spawn_file_actions_addopen(&actions, 7, "f", O_RDONLY, 0);
    posix_spawn_file_actions_addclose(&actions, fd);
    posix_spawn_file_actions_addchdir_np(&actions, "sub");
    posix_spawnattr_init(&attr);
    sigemptyset(&mask);
    posix_spawnattr_setsigmask(&attr, &mask);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP |
                                        POSIX_SPAWN_RESETIDS);
    int rc = posix_spawn(&pid, "/bin/sh", &actions, &attr, argv, (char *[]){NULL});
    SAY(rc);
    SAY(rows_wait(pid));
    SAY(write(out, "again\n", 6));
    SAY(pread(out, buf, 200, 0));
    SHOW(buf, 90);
}

static volatile sig_atomic_t forks, in_child;
static volatile pid_t children[50];

static void forks_here(int number)
{
    int saved = errno;

    if (forks < 50 && !in_child) {
        pid_t pid = fork();
        in_child = pid == 0;
        children[forks] = pid;
        forks += 1;
    }
    errno = saved;
}

/* Handlers fork in the middle of calls, which go on in both processes. */
static void fork_in_handler(void)
{
    struct sigaction act = {.sa_handler = forks_here, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, 5000}, {0, 5000}}, none = {{0, 0}, {0, 0}};
    int fd = rows_file("f"), wrong = 0;
    struct stat st;
    char line[33];

    SAY(fstat(fd, &st)); /* the mount's kernel goes by the size that it knows */
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    for (int i = 0; forks < 50 && !in_child; i = (i + 1) % 2048) {
        snprintf(line, sizeof(line), "line %05d ....................\n", i);
        if (i % 7 == 0) {
            wrong += pwrite(fd, line, 32, i * 32) != 32;
        } else {
            wrong += pread(fd, line, 32, i * 32) != 32 || atoi(line + 5) != i;
        }
    }
    if (in_child) {
        for (int i = 0; i < 100; i++) {
            wrong += pread(fd, line, 32, i * 32) != 32 || atoi(line + 5) != i;
        }
        _exit(wrong != 0);
    }
    setitimer(ITIMER_REAL, &none, NULL);
    for (int i = 0; i < 50; i++) {
        wrong += rows_wait(children[i]) != 0;
    }
    SAY(wrong);
}

static int on_small_stack(void *arg)
{
    char *argv[] = {"true", NULL}, *envp[] = {NULL};
    char line[32];

    for (int i = 0; i < 100; i++) {
        if (pread(*(int *)arg, line, 32, i * 32) != 32 || atoi(line + 5) != i) {
            _exit(1);
        }
    }
    execve("/bin/true", argv, envp);
    return 2;
}

static void small_stacks(void)
{
    static char stack[16384] __attribute__((aligned(16)));
    int fd = rows_file("f");

    for (int i = 0; i < 2; i++) {
        int how = i ? SIGCHLD : CLONE_VM | CLONE_VFORK | SIGCHLD;
        SAY(rows_wait(clone(on_small_stack, stack + sizeof(stack), how, &fd)));
    }
}

static void terminal(void)
{
    int fd = rows_file("f"), master, slave, saved = dup(1);
    ssize_t n;

    SAY(openpty(&master, &slave, NULL, NULL, NULL));
    setsid();
    dup2(fd, 1);
    pwrite(1, "file", 4, 0);
    int ret = login_tty(slave); /* takes the numbers 0 to 2, inside libc */
    n = write(1, "to the terminal\n", 16);
    dup2(saved, 1);
    SAY(ret);
    SAY(n);
    SAY(read(master, buf, 100));
    SHOW(buf, 15);
    SAY(pread(fd, buf, 10, 0));
    SHOW(buf, 10);
}

/* Descriptors handed to another process, which works with them at the same time. */
static void handed(void)
{
    int fd = rows_file("f"), pair[2];
    struct iovec v = {"x", 1};
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte;
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control,
                       .msg_controllen = sizeof(control)};

    SAY(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    SAY(read(fd, buf, 32));
    pid_t pid = fork();
    if (pid == 0) {
        struct iovec mine = {&byte, 1};
        int got;
        close(fd);
        m.msg_iov = &mine;
        if (recvmsg(pair[1], &m, 0) != 1) {
            _exit(1);
        }
        memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(got));
        rows_warm(got);
        for (int i = 0; i < 500; i++) {
            if (write(got, "child's ........................", 32) != 32) {
                _exit(2);
            }
        }
        _exit(0);
    }
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    SAY(sendmsg(pair[0], &m, 0));
    int bad = 0, mine = 0, theirs = 0;
    for (int i = 0; i < 500; i++) {
        bad += write(fd, "parent's .......................", 32) != 32;
    }
    SAY(bad);
    SAY(rows_wait(pid));
    SAY(lseek(fd, 0, SEEK_CUR));
    for (int i = 1; i <= 1000; i++) {
        pread(fd, buf, 32, i * 32);
        mine += !memcmp(buf, "parent's", 8);
        theirs += !memcmp(buf, "child's ", 8);
    }
    SAY(mine);
    SAY(theirs);
}

/* -- limits and filters ------------------------------------------------------------------------ */
static volatile sig_atomic_t exceeded;

static void count(int number)
{
    exceeded++;
}

static void file_size(void)
{
    struct rlimit limit = {70000, RLIM_INFINITY};
    struct iovec v[2] = {{buf, 50}, {buf, 100}};
    struct sigaction act = {.sa_handler = count};
    int fd = rows_file("f"), log = open("f", O_WRONLY | O_APPEND);

    sigaction(SIGXFSZ, &act, NULL);
    SAY(setrlimit(RLIMIT_FSIZE, &limit));
    SAY(pwrite(fd, buf, 100, 69950));
    SAY(exceeded);
    SAY(pwrite(fd, buf, 100, 70000));
    SAY(exceeded);
    SAY(write(log, buf, 10));
    SAY(exceeded);
    SAY(lseek(fd, 69900, SEEK_SET));
    SAY(writev(fd, v, 2));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(writev(fd, v, 2));
    SAY(exceeded);
    SAY(pwrite(fd, "below", 5, 0));
    SAY(ftruncate(fd, 100000));
    SAY(exceeded);
    SAY(ftruncate(fd, 69990));
    SAY(write(log, buf, 100));
    SAY(write(log, buf, 100));
    SAY(exceeded);
    SAY(lseek(fd, 0, SEEK_END));
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGXFSZ, SIG_DFL);
        int own = open("f", O_RDWR);
        rows_warm(own);
        pwrite(own, buf, 1, 70000);
        _exit(0);
    }
    SAY(rows_wait(pid));
}

static void few_descriptors(void)
{
    struct rlimit limit = {24, 24};
    pid_t pid = fork();

    if (pid == 0) {
        setrlimit(RLIMIT_NOFILE, &limit);
        int fd = rows_file("f");
        rows_warm(fd);
        SAY(pread(fd, buf, 32, 64));
        SHOW(buf, 32);
        SAY(write(fd, "few", 3));
        for (int i = 0; i < 40; i++) {
            if (open("f", O_RDONLY) < 0) {
                SAY(errno == EMFILE);
                break;
            }
        }
        SAY(pread(fd, buf, 32, 0));
        SHOW(buf, 32);
        fflush(stdout);
        _exit(0);
    }
    SAY(rows_wait(pid));
}

/* A filter that ends whoever opens sockets and such, as file(1) and others have. */
static int confine(bool raw)
{
    static const struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_recvfrom, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    static const struct sock_fprog program = {6, (struct sock_filter *)code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) {
        return -1;
    }
    return raw ? (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)
               : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void sandbox(void)
{
    for (int i = 0; i < 4; i++) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            int fd = rows_file("f");
            if (i % 2) {
                rows_warm(fd);
            }
            SAY(confine(i / 2));
            rows_warm(fd);
            SAY(pread(fd, buf, 32, 64));
            SHOW(buf, 32);
            SAY(write(fd, "confined", 8));
            pid = fork();
            if (pid == 0) {
                rows_warm(fd);
                _exit(pread(fd, buf, 8, 0) == 8 && !memcmp(buf, "confined", 8) ? 5 : 1);
            }
            SAY(rows_wait(pid));
            exit(0);
        }
        SAY(rows_wait(pid));
    }
    pid_t pid = fork();
    if (pid == 0) {
        int fd = rows_file("f");
        rows_warm(fd);
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
        bool right = read(fd, buf, 32) == 32 && write(fd, "strict", 6) == 6;
        syscall(SYS_exit, right ? 3 : 4);
    }
    SAY(rows_wait(pid));
}

const struct rows_entry rows_trouble[] = {
    {"streams", streams},
    {"wide", wide},
    {"stream_shared", stream_shared},
    {"appenders", appenders},
    {"fork_in_threads", fork_in_threads},
    {"exec_in_thread", exec_in_thread},
    {"vforked", vforked},
    {"spawned", spawned},
    {"fork_in_handler", fork_in_handler},
    {"small_stacks", small_stacks},
    {"terminal", terminal},
    {"handed", handed},
    {"file_size", file_size},
    {"few_descriptors", few_descriptors},
    {"sandbox", sandbox},
    {NULL, NULL},
};
