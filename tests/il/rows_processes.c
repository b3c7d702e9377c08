/* SPDX-License-Identifier: Apache-2.0 */
/* Cases about descriptors and processes: creation, sharing, exec, rights, raw system calls. */
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <linux/close_range.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/fsuid.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include "rows.h"

pid_t _Fork(void);
pid_t __vfork(void);
int capset(void *head, const void *data);
int capget(void *head, void *data);

extern char **environ;
static char buf[65536];

/* A descriptor that was a file of the mount and now is something else must not read the file. */
static void reused(int fd, bool readable)
{
    int file = open("f", O_RDONLY);
    char byte;

    pread(file, &byte, 1, 0);
    dup2(fd, file);
    SAY(pread(file, buf, 4, 0));
    if (readable) {
        SAY(read(file, buf, 4) >= 0 || errno == EAGAIN || errno == EINVAL);
    }
    close(file);
    close(fd);
}

static void objects(void)
{
    sigset_t set;
    int fds[2];

    close(rows_file("f"));
    sigemptyset(&set);
    reused(memfd_create("m", 0), true);
    reused(eventfd(0, EFD_NONBLOCK), true);
    reused(epoll_create(1), false);
    reused(epoll_create1(0), false);
    reused(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), true);
    reused(signalfd(-1, &set, SFD_NONBLOCK), true);
    reused(inotify_init(), false);
    reused(inotify_init1(IN_NONBLOCK), true);
    reused(fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK, O_RDONLY), false);
    int self = pidfd_open(getpid(), 0);
    int file = open("f", O_RDONLY);
    SAY(lseek(file, 64, SEEK_SET));
    int got = pidfd_getfd(self, file, 0);
    SAY(read(got, buf, 32));
    SHOW(buf, 32);
    SAY(lseek(file, 0, SEEK_CUR));
    close(got);
    close(file);
    reused(self, false);
    reused(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK), true);
    int shm = shm_open("/dfusepy-rows", O_RDWR | O_CREAT, 0600);
    SAY(shm_unlink("/dfusepy-rows"));
    reused(shm, true);
    SAY(pipe(fds));
    SAY(write(fds[1], "piped", 5));
    SAY(read(fds[0], buf, 10));
    SHOW(buf, 5);
    SAY(pipe2(fds, O_NONBLOCK | O_CLOEXEC));
    SAY(read(fds[0], buf, 10));
}

static long send_fd(int sock, int fd, bool many)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec v = {"x", 1};
    struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control.bytes,
                                    .msg_controllen = sizeof(control.bytes)}};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m.msg_hdr);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    return many ? sendmmsg(sock, &m, 1, 0) : sendmsg(sock, &m.msg_hdr, 0);
}

static int receive_fd(int sock, bool many)
{
    char bytes[CMSG_SPACE(sizeof(int))], byte;
    struct iovec v = {&byte, 1};
    struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = bytes,
                                    .msg_controllen = sizeof(bytes)}};
    int fd = -1;

    if ((many ? recvmmsg(sock, &m, 1, 0, NULL) : recvmsg(sock, &m.msg_hdr, 0)) == 1) {
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m.msg_hdr)), sizeof(fd));
    }
    return fd;
}

static void sockets(void)
{
    int fd = rows_file("f"), pair[2], s = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr addr = {.sa_family = AF_UNIX};

    SAY(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    for (int many = 0; many < 2; many++) {
        SAY(send_fd(pair[0], fd, many));
        int got = receive_fd(pair[1], many);
        SAY(got >= 0);
        SAY(read(got, buf, 32));
        SAY(read(fd, buf, 32));
        SHOW(buf, 32);
        SAY(lseek(got, 0, SEEK_CUR));
        SAY(pwrite(got, "by the receiver", 15, 0));
        SAY(pread(fd, buf, 15, 0));
        SHOW(buf, 15);
        close(got);
    }
    SAY(bind(s, &addr, sizeof(sa_family_t)));
    SAY(listen(s, 4));
    struct sockaddr_storage name;
    socklen_t len = sizeof(name);
    getsockname(s, (struct sockaddr *)&name, &len);
    for (int i = 0; i < 2; i++) {
        int c = socket(AF_UNIX, SOCK_STREAM, 0);
        SAY(connect(c, (struct sockaddr *)&name, len));
        int a = i ? accept4(s, NULL, NULL, SOCK_CLOEXEC) : accept(s, NULL, NULL);
        SAY(write(c, "socket", 6));
        SAY(read(a, buf, 10));
        reused(a, false);
        close(c);
    }
}

static void descriptors(void)
{
    int fd = rows_file("f");

    SAY(dup(fd));
    SAY(read(fd, buf, 32));
    SAY(read(fd + 1, buf, 32));
    SHOW(buf, 32);
    SAY(dup2(fd, 20));
    SAY(write(20, "twenty", 6));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(dup3(fd, 21, O_CLOEXEC));
    SAY(read(21, buf, 26));
    SAY(dup3(fd, fd, 0));
    SAY(dup2(fd, fd) == fd);
    SAY(close(fd));
    SAY(read(20, buf, 32));
    SHOW(buf, 32);
    SAY(close(fd));
    SAY(close_range(21, 21, 0));
    SAY(read(21, buf, 1));
    SAY(close_range(20, 20, CLOSE_RANGE_CLOEXEC));
    SAY(read(20, buf, 1));
    SAY(close_range(5, 3, 0));
    SAY(dup2(20, 950));
    SAY(read(950, buf, 32));
    closefrom(3);
    SAY(read(20, buf, 1));
    SAY(read(950, buf, 1));
    SAY(fd = open("f", O_RDONLY));
    rows_warm(fd);
    SAY(read(fd, buf, 32));
    for (int i = 3; i < 1024; i++) {
        close(i);
    }
    SAY(read(fd, buf, 32));
    SAY(fd = open("f", O_RDONLY));
    SAY(read(fd, buf, 32));
    SHOW(buf, 32);
}

static void child_reads(int fd)
{
    char mine[32];

    if (read(fd, mine, 32) != 32 || memcmp(mine, "line ", 5)) {
        _exit(1);
    }
    _exit(pread(fd, mine, 32, 64) == 32 && !memcmp(mine, "line 00002", 10) ? 7 : 2);
}

static void fork_case(void)
{
    int fd = rows_file("f");

    SAY(read(fd, buf, 32));
    for (int i = 0; i < 2; i++) {
        pid_t pid = i ? _Fork() : fork();
        if (pid == 0) {
            child_reads(fd);
        }
        SAY(rows_wait(pid));
        SAY(read(fd, buf, 32));
        SHOW(buf, 32);
        SAY(lseek(fd, 0, SEEK_CUR));
    }
    pid_t pid = fork();
    if (pid == 0) {
        int own = open("f", O_RDWR);
        rows_warm(own);
        _exit(pwrite(own, "by the child", 12, 0) == 12 ? 0 : 1);
    }
    SAY(rows_wait(pid));
    SAY(pread(fd, buf, 12, 0));
    SHOW(buf, 12);
}

static void vfork_case(void)
{
    int fd = rows_file("f");

    SAY(read(fd, buf, 32));
    for (int i = 0; i < 2; i++) {
        pid_t pid = i ? __vfork() : vfork();
        if (pid == 0) {
            dup2(fd, 30);
            close(fd);
            char *argv[] = {"sh", "-c", "read line <&30; echo \"$line\"; exit 3", NULL};
            execv("/bin/sh", argv);
            _exit(127);
        }
        SAY(rows_wait(pid));
        SAY(pread(fd, buf, 32, 32));
        SHOW(buf, 32);
        SAY(read(30, buf, 1));
    }
}

static int in_clone(void *arg)
{
    child_reads(*(int *)arg);
    return 0;
}

static void clone_case(void)
{
    static char stack[65536] __attribute__((aligned(16)));
    int fd = rows_file("f");

    SAY(read(fd, buf, 32));
    pid_t pid = clone(in_clone, stack + sizeof(stack), SIGCHLD, &fd);
    SAY(rows_wait(pid));
    SAY(read(fd, buf, 32));
    SHOW(buf, 32);
    pid = clone(in_clone, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, &fd);
    SAY(rows_wait(pid));
    SAY(read(fd, buf, 32));
    SHOW(buf, 32);
}

/* Each kind of exec in a child: the next program prints its environment, ours left out. */
static void exec(void)
{
    char *argv[] = {"env", "-u", "LD_PRELOAD", "-u", "DFUSEPY_IL_REPORT", NULL};
    char *envp[] = {"A=1", "B=2", NULL};
    char *none[] = {NULL};

    for (int i = 0; i < 11; i++) {
        SAY(i);
        pid_t pid = fork();
        if (pid == 0) {
            clearenv();
            setenv("PATH", "/usr/bin:/bin", 1);
            int fd = open("/usr/bin/env", O_RDONLY | O_CLOEXEC);
            switch (i) {
            case 0: execve("/usr/bin/env", argv, envp); break;
            case 1: execv("/usr/bin/env", argv); break;
            case 2: execvp("env", argv); break;
            case 3: execvpe("env", argv, envp); break;
            case 4: execl("/usr/bin/env", "env", "-u", "LD_PRELOAD", NULL); break;
            case 5: execle("/usr/bin/env", "env", "-u", "LD_PRELOAD", NULL, envp); break;
            case 6: execlp("env", "env", "-u", "LD_PRELOAD", NULL); break;
            case 7: fexecve(fd, argv, envp); break;
            case 8: execveat(AT_FDCWD, "/usr/bin/env", argv, envp, 0); break;
            case 9: execve("/usr/bin/env", argv, none); break;
            case 10: execve("/absent", argv, envp); break;
            }
            _exit(errno);
        }
        SAY(rows_wait(pid));
    }
    SAY(execve("/absent", argv, envp));
}

static void spawn(void)
{
    char *argv[] = {"sh", "-c", "read line; echo \"$line $A\"; exit 4", NULL};
    char *envp[] = {"A=1", NULL};
    posix_spawn_file_actions_t actions;
    int fd = rows_file("f");
    pid_t pid;

    SAY(read(fd, buf, 32));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    for (int by_name = 0; by_name < 2; by_name++) {
        int rc = by_name ? posix_spawnp(&pid, "sh", &actions, NULL, argv, environ)
                         : posix_spawn(&pid, "/bin/sh", &actions, NULL, argv, envp);
        int status = rc == 0 ? rows_wait(pid) : -1; /* the child has its say first */
        SAY(rc);
        SAY(status);
    }
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(read(fd, buf, 32));
    SHOW(buf, 32);
    SAY(posix_spawn(&pid, "/absent", NULL, NULL, argv, envp));
}

static void shell(void)
{
    int fd = rows_file("f");

    fcntl(fd, F_SETFD, 0);
    dup2(fd, 9);
    SAY(read(9, buf, 32));
    SAY(system("read line <&9; echo \"$line\"") >> 8);
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(read(fd, buf, 32));
    SHOW(buf, 32);
    FILE *p = popen("read line <&9; echo \"$line\"; exit 5", "r");
    SAY(fgets(buf, 100, p) != NULL);
    SHOW(buf, strlen(buf));
    SAY(pclose(p) >> 8);
    SAY(lseek(fd, 0, SEEK_CUR));
}

static void end(void)
{
    for (int i = 0; i < 4; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            int fd = open("warm", O_RDWR);
            rows_warm(fd);
            write(fd, "last words", 10);
            switch (i) {
            case 0: _exit(11);
            case 1: _Exit(12);
            case 2: quick_exit(13);
            default: exit(14);
            }
        }
        SAY(rows_wait(pid));
        int fd = open("warm", O_RDONLY);
        SAY(read(fd, buf, 10));
        SHOW(buf, 10);
        close(fd);
    }
}

static void *reads(void *arg)
{
    int fd = *(int *)arg;
    long sum = 0;
    char line[32];

    while (read(fd, line, 32) == 32) {
        sum += atoi(line + 5);
    }
    return (void *)sum;
}

static void *reads_for_ever(void *arg)
{
    char line[32];

    for (;;) {
        pread(*(int *)arg, line, 32, 0);
    }
    return NULL;
}

static void *writes(void *arg)
{
    for (int i = 0; i < 500; i++) {
        if (write(*(int *)arg, "0123456789abcdef", 16) != 16) {
            return (void *)1;
        }
    }
    return NULL;
}

static void threads(void)
{
    int fd = rows_file("f"), out = open("g", O_RDWR | O_CREAT | O_TRUNC, 0644);
    pthread_t t[4];
    void *ret;
    long sum = 0;

    for (int i = 0; i < 4; i++) {
        pthread_create(&t[i], NULL, reads, &fd);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], &ret);
        sum += (long)ret;
    }
    SAY(sum);
    for (int i = 0; i < 4; i++) {
        pthread_create(&t[i], NULL, writes, &out);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], &ret);
        SAY((long)ret);
    }
    SAY(lseek(out, 0, SEEK_CUR));
    int wrong = 0;
    for (int i = 0; i < 2000; i++) {
        wrong += pread(out, buf, 16, i * 16) != 16 || memcmp(buf, "0123456789abcdef", 16);
    }
    SAY(wrong);
    pthread_create(&t[0], NULL, reads_for_ever, &fd);
    usleep(20000);
    SAY(pthread_cancel(t[0]));
    SAY(pthread_join(t[0], &ret));
    SAY(ret == PTHREAD_CANCELED);
    SAY(pread(fd, buf, 32, 32));
}

/* Rights change in a child, which then reads what it has open and what it opens. */
static void rights(void)
{
    int fd = rows_file("f");

    for (int i = 0; i < 16; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            uint32_t head[2] = {0x20080522, 0}, caps[6] = {0};
            gid_t groups[1] = {1000};
            int ret = -1, own = open("f", O_RDWR);
            rows_warm(own);
            switch (i) {
            case 0: ret = setuid(geteuid() ? geteuid() : 65534); break;
            case 1: ret = seteuid(geteuid() ? geteuid() : 65534); break;
            case 2: ret = setreuid(-1, geteuid()); break;
            case 3: ret = setresuid(-1, -1, -1); break;
            case 4: ret = setgid(getegid()); break;
            case 5: ret = setegid(getegid()); break;
            case 6: ret = setregid(-1, -1); break;
            case 7: ret = setresgid(-1, -1, -1); break;
            case 8: ret = setfsuid(-1) < 0; break;
            case 9: ret = setfsgid(-1) < 0; break;
            case 10: ret = setgroups(1, groups); break;
            case 11: ret = initgroups("nobody", getegid()); break;
            case 12:
                capget(head, caps);
                ret = capset(head, caps);
                break;
            case 13: ret = setns(-1, 0); break;
            case 14: ret = unshare(CLONE_FS); break;
            case 15: ret = chroot("."); break;
            }
            printf("%d: %d %d %d\n", i, ret, (int)read(own, buf, 32),
                   (int)pwrite(own, "after", 5, 0));
            fflush(stdout);
            _exit(0);
        }
        SAY(rows_wait(pid));
    }
    SAY(pread(fd, buf, 5, 0));
    SHOW(buf, 5);
}

static void raw(void)
{
    int fd = rows_file("f");
    char *argv[] = {"true", NULL};

    SAY(syscall(SYS_read, fd, buf, 32));
    SAY(read(fd, buf, 32));
    SHOW(buf, 32);
    SAY(syscall(SYS_pwrite64, fd, "raw", 3, 0));
    SAY(pread(fd, buf, 3, 0));
    SHOW(buf, 3);
    SAY(syscall(SYS_lseek, fd, 96, SEEK_SET));
    long copy = syscall(SYS_dup, fd);
    SAY(copy == fd + 1);
    SAY(read((int)copy, buf, 32));
    SHOW(buf, 32);
    SAY(syscall(SYS_close, copy));
    SAY(read((int)copy, buf, 32));
    SAY(syscall(SYS_openat, AT_FDCWD, "absent", O_RDONLY, 0));
    SAY(syscall(-5));
    char *at = (char *)syscall(SYS_mmap, 0, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    SHOW(at, 3);
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        child_reads(fd);
    }
    SAY(rows_wait(pid));
    pid = (pid_t)syscall(SYS_fork);
    if (pid == 0) {
        syscall(SYS_execve, "/bin/true", argv, environ);
        _exit(127);
    }
    SAY(rows_wait(pid));
    SAY(read(fd, buf, 32));
    SHOW(buf, 32);
    SAY(syscall(SYS_setfsuid, -1) >= 0);
    SAY(read(fd, buf, 32));
    SHOW(buf, 32);
}

const struct rows_entry rows_processes[] = {
    {"objects", objects},
    {"sockets", sockets},
    {"descriptors", descriptors},
    {"fork", fork_case},
    {"vfork", vfork_case},
    {"clone", clone_case},
    {"exec", exec},
    {"spawn", spawn},
    {"shell", shell},
    {"end", end},
    {"threads", threads},
    {"rights", rights},
    {"raw", raw},
    {NULL, NULL},
};
