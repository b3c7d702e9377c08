/* SPDX-License-Identifier: Apache-2.0 */
/* The roll of mounts, in memory that workers inherit (meaning: roll.h). */
#include "service/roll.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"

/* It counts if it has a session; that is stored last, and cleared first. */
struct roll_place {
    _Atomic uint64_t session;
    uint64_t started;
    uint32_t handle, cont;
    int32_t pid;
    _Atomic uint32_t flags;
    uint8_t reserved[16];
};
_Static_assert(sizeof(struct roll_place) * ROLL_MOUNTS == ROLL_BYTES, "shared between workers");
_Static_assert(sizeof(_Atomic uint64_t) == 8 && sizeof(_Atomic uint32_t) == 4, "no hidden lock");

void roll_open(struct roll *roll, void *mem, size_t bytes)
{
    pthread_mutex_init(&roll->lock, NULL);
    roll->places = mem;
    roll->over = false;
    roll->n = mem ? (unsigned)(bytes / sizeof(struct roll_place)) : 0;
}

void roll_dismiss(struct roll *roll)
{
    pthread_mutex_lock(&roll->lock);
    roll->over = true;
    pthread_mutex_unlock(&roll->lock);
}

void roll_close(struct roll *roll)
{
    pthread_mutex_destroy(&roll->lock);
}

bool roll_same(const struct roll_mount *a, const struct roll_mount *b)
{
    return a->session == b->session && a->handle == b->handle && a->cont == b->cont;
}

static bool take(const struct roll_place *p, struct roll_mount *out)
{
    *out = (struct roll_mount){
        .session = atomic_load_explicit(&p->session, memory_order_acquire),
        .started = p->started,
        .handle = p->handle,
        .cont = p->cont,
        .pid = p->pid,
        .flags = atomic_load_explicit(&p->flags, memory_order_relaxed),
    };
    return out->session != 0;
}

bool roll_at(struct roll *roll, unsigned place, struct roll_mount *out)
{
    struct roll_mount m;
    bool there;

    pthread_mutex_lock(&roll->lock);
    there = !roll->over && place < roll->n && take(&roll->places[place], &m);
    pthread_mutex_unlock(&roll->lock);
    if (there)
        *out = m;
    return there;
}

int roll_enter(struct roll *roll, const struct roll_mount *m)
{
    struct roll_place *free_place = NULL, *mine = NULL;
    struct roll_mount other;
    int ret = 0;

    if (roll->n == 0)
        return 0;
    pthread_mutex_lock(&roll->lock);
    for (unsigned i = 0; i < roll->n && !mine; i++) {
        struct roll_place *p = &roll->places[i];

        if (!take(p, &other))
            free_place = free_place ? free_place : p;
        else if (roll_same(&other, m))
            mine = p;
    }
    if (mine) {
        atomic_store_explicit(&mine->flags, m->flags | (mine->flags & ROLL_LOST),
                              memory_order_release);
    } else if (free_place) {
        free_place->started = m->started;
        free_place->handle = m->handle;
        free_place->cont = m->cont;
        free_place->pid = m->pid;
        atomic_store_explicit(&free_place->flags, m->flags, memory_order_relaxed);
        atomic_store_explicit(&free_place->session, m->session, memory_order_release);
    } else {
        ret = -EUSERS;
    }
    pthread_mutex_unlock(&roll->lock);
    return ret < 0 ? base_refuse(ret, "there are %u mounts already", roll->n) : 0;
}

void roll_lost(struct roll *roll, const struct roll_mount *m)
{
    struct roll_mount other;

    pthread_mutex_lock(&roll->lock);
    for (unsigned i = 0; i < roll->n; i++) {
        struct roll_place *p = &roll->places[i];

        if (take(p, &other) && roll_same(&other, m))
            atomic_fetch_or(&p->flags, ROLL_LOST);
    }
    pthread_mutex_unlock(&roll->lock);
}

/* m NULL: all of the session's. */
static void clear(struct roll *roll, uint64_t session, const struct roll_mount *m)
{
    struct roll_mount other;

    pthread_mutex_lock(&roll->lock);
    for (unsigned i = 0; i < roll->n; i++) {
        struct roll_place *p = &roll->places[i];

        if (take(p, &other) && (m ? roll_same(&other, m) : other.session == session)) {
            atomic_store_explicit(&p->session, 0, memory_order_release);
            atomic_signal_fence(memory_order_seq_cst); /* whoever takes it writes after that */
        }
    }
    pthread_mutex_unlock(&roll->lock);
}

void roll_leave(struct roll *roll, const struct roll_mount *m)
{
    clear(roll, m->session, m);
}

void roll_end(struct roll *roll, uint64_t session)
{
    clear(roll, session, NULL);
}

/* -- processes -------------------------------------------------------------------------------- */

/* The 22nd word of its stat; the second is a name in parentheses that may hold anything. */
uint64_t roll_started(pid_t pid)
{
    char path[32], text[1024];
    const char *at;
    uint64_t ticks = 0;
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    at = strrchr(text, ')');
    for (unsigned word = 2; at && word < 22; word++)
        at = strchr(at + 1, ' ');
    if (at)
        ticks = strtoull(at + 1, NULL, 10);
    return ticks;
}

int roll_process(const struct roll_mount *m)
{
    uint64_t started;
    int fd;

    if (m->pid <= 0)
        return -1;
    fd = (int)syscall(SYS_pidfd_open, m->pid, 0);
    if (fd < 0)
        return errno == ESRCH ? -ESRCH : -1;
    /* The descriptor is of whoever has the number now, and it stays that one's. */
    started = roll_started(m->pid);
    if (!m->started || !started || started == m->started)
        return fd;
    close(fd);
    return -ESRCH;
}
