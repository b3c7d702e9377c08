/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows CASE: runs the part of engine/il/symbols.def that CASE names, or a case of trouble that
 * mixes several, in the working directory, and prints what every call answered.
 * tests/il/test_rows.py runs it with and without the library, on the mount and elsewhere, and
 * compares. `rows --list` prints the cases.
 */
#include "rows.h"

int rows_file(const char *name)
{
    static char lines[65536 + 1];
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    for (int i = 0; i < 2048; i++) {
        snprintf(lines + i * 32, 33, "line %05d ....................\n", i);
    }
    if (write(fd, lines, 65536) != 65536) {
        return -1;
    }
    lseek(fd, 0, SEEK_SET);
    return fd;
}

void rows_warm(int fd)
{
    char byte;

    for (int i = 0; i < 50; i++) {
        if (pread(fd, &byte, 1, i) != 1) {
            return;
        }
    }
}

unsigned long rows_sum(const char *name)
{
    static char piece[65536];
    unsigned long sum = 5381;
    int fd = open(name, O_RDONLY);
    ssize_t n, all = 0;

    while ((n = read(fd, piece, sizeof(piece))) > 0) {
        all += n;
        for (ssize_t i = 0; i < n; i++) {
            sum = (sum * 33 + (unsigned char)piece[i]) & 0xffffffff;
        }
    }
    close(fd);
    printf("%s has %zd bytes\n", name, all);
    return sum;
}

int rows_wait(pid_t pid)
{
    int status;

    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
    const struct rows_entry *const tables[] = {rows_files, rows_processes, rows_trouble,
                                               rows_mixed};

    for (int t = 0; t < 4; t++) {
        for (const struct rows_entry *e = tables[t]; e->name; e++) {
            if (argc == 2 && !strcmp(argv[1], "--list")) {
                puts(e->name);
            } else if (argc == 2 && !strcmp(argv[1], e->name)) {
                int fd = rows_file("warm");
                rows_warm(fd);
                close(fd);
                e->run();
                fflush(stdout);
                return 0;
            }
        }
    }
    return argc == 2 && !strcmp(argv[1], "--list") ? 0 : 2;
}
