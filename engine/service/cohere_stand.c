/* SPDX-License-Identifier: Apache-2.0 */
/* Coherence: stand-ins for mounts of an earlier worker that have not come back yet. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "service/cohere_int.h"

/* A process that dies cannot wake a change that waits for it: the change looks. */
#define LOOK_NS 50000000ull

static int stand_new(struct cohere *co, unsigned place, const struct roll_mount *who,
                     uint64_t since_ns)
{
    int pid_fd = roll_process(who);
    struct face *face;

    if (pid_fd == -ESRCH) {
        roll_leave(co->roll, who);
        return 0;
    }
    face = face_new(co, who, NULL);
    if (!face) {
        if (pid_fd >= 0)
            close(pid_fd);
        return -ENOMEM;
    }
    face->stand = true;
    face->pid_fd = pid_fd;
    face->place = place;
    face->back = face->holds_all = true;
    face->lost = who->flags & ROLL_LOST;
    face->alive_ns = since_ns + RETURN_NS - co->inval_ns;
    co->n_stands++;
    return 0;
}

int cohere_expect(struct cohere *co, struct roll *roll, uint32_t cont, uint64_t since_ns)
{
    struct roll_mount who;
    int ret = 0;

    pthread_mutex_lock(&co->lock);
    list_for_each_safe(l, tmp, &co->faces)
        face_drop(container_of(l, struct face, link));
    co->roll = roll;
    for (unsigned i = 0; ret == 0 && i < roll->n; i++)
        if (roll_at(roll, i, &who) && who.cont == cont)
            ret = stand_new(co, i, &who, since_ns);
    pthread_mutex_unlock(&co->lock);
    return ret;
}

static bool is_dead(const struct face *face)
{
    struct pollfd fd = {.fd = face->pid_fd, .events = POLLIN};

    return face->pid_fd >= 0 && poll(&fd, 1, 0) == 1;
}

void stands_sweep(struct cohere *co)
{
    uint64_t now_ns = base_mono_ns();
    struct list wake; /* nobody has parked */

    list_init(&wake);
    list_for_each_safe(l, tmp, &co->faces)
    {
        struct face *face = container_of(l, struct face, link);
        struct roll_mount now;

        if (co->n_stands == 0)
            break;
        if (!face->stand)
            continue;
        if (is_dead(face))
            roll_leave(co->roll, &face->who);
        if (!roll_at(co->roll, face->place, &now) || !roll_same(&now, &face->who))
            face_drop(face);
        else if (face->pid_fd < 0 && face->alive_ns + co->inval_ns <= now_ns)
            face_lose(face, "it has not come back", &wake); /* else no other could ever write */
    }
}

uint64_t stands_due(const struct cohere *co, uint64_t until_ns)
{
    uint64_t look_ns = base_mono_ns() + LOOK_NS;

    return co->n_stands && look_ns < until_ns ? look_ns : until_ns;
}

void stand_taken(struct face *face, const struct roll_mount *who, struct refs *held)
{
    face->who.flags = who->flags | (face->who.flags & ROLL_LOST);
    face->co->n_stands--;
    face->stand = false;
    face->held = held;
    if (face->pid_fd >= 0)
        close(face->pid_fd);
    face->pid_fd = -1;
    face->alive_ns = base_mono_ns() + RETURN_NS - face->co->inval_ns;
}
