/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The roll of mounts: which there are, in memory that outlives the worker which serves them, so
 * that the next one knows whose kernels still hold what the last one let them have.
 *
 * A mount is entered before it is told that it is one, and leaves when it ends in order. The memory
 * is the supervisor's and its workers' alone; what a dead one has left there is not trusted: a
 * place has a session or is free, and no field is a number of a place.
 *
 * Any thread; a lock inside, the last of all. Without memory nothing is noted.
 */
#ifndef DFE_SERVICE_ROLL_H
#define DFE_SERVICE_ROLL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ROLL_MOUNTS 1024u
#define ROLL_BYTES (ROLL_MOUNTS * 48u)

enum { ROLL_READ_ONLY = 1, ROLL_LOST = 2 };

/* Who it is: a handle of a session; its container and its process. */
struct roll_mount {
    uint64_t session;
    uint64_t started; /* the process, in the kernel's ticks; 0: not known */
    uint32_t handle, cont;
    int32_t pid;      /* 0: not known here */
    uint32_t flags;   /* ROLL_* */
};

struct roll_place;

struct roll { /* this process's */
    pthread_mutex_t lock;
    struct roll_place *places;
    unsigned n;
    bool over;
};

/* mem: zeroed once, before the first worker; NULL: none. */
void roll_open(struct roll *roll, void *mem, size_t bytes);
void roll_close(struct roll *roll);
/* One that is there already gets the flags, and stays lost. -EUSERS: no place. */
int roll_enter(struct roll *roll, const struct roll_mount *m);
void roll_lost(struct roll *roll, const struct roll_mount *m);
void roll_leave(struct roll *roll, const struct roll_mount *m);
void roll_end(struct roll *roll, uint64_t session); /* all of its mounts leave */
/* From now on nobody is found. */
void roll_dismiss(struct roll *roll);
/* The mount of a place below roll->n; false: it is free. */
bool roll_at(struct roll *roll, unsigned place, struct roll_mount *out);
bool roll_same(const struct roll_mount *a, const struct roll_mount *b);

/* When the process started; 0: it cannot be seen. */
uint64_t roll_started(pid_t pid);
/* A pidfd of the mount's process, -1: it cannot be told whether it lives; -ESRCH: it is dead. */
int roll_process(const struct roll_mount *m);

#endif
