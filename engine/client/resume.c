/* SPDX-License-Identifier: Apache-2.0 */
/* A lost engine: exactly one thread takes the session up with the next worker, others wait. */
#include <string.h>

#include "base/clock.h"
#include "client/client_int.h"
#include "client/sys.h"

#define PAUSE_MS 5u

int client_wait_up(struct client *c)
{
    for (;;) {
        int state = atomic_load(&c->state);
        if (state == CLIENT_DEAD)
            return -EOWNERDEAD;
        if (state == CLIENT_UP || pthread_equal(c->resumer, pthread_self()))
            return 0;
        sys_sleep_ms(PAUSE_MS);
    }
}

/* The supervisor keeps the socket while it replaces the worker: a socket that is gone, or that
 * nobody listens on, will not come back with our session. -EAGAIN: try again. */
static int reconnect(struct client *c, unsigned left_ms)
{
    struct link l;
    uint64_t saved;
    int rc;

    client_lock(c, &saved);
    link_lose(c);
    client_unlock(c, &saved);
    /* A new worker may have much to replay: not with signals off. */
    rc = link_connect(c, c->session, c->secret, left_ms, &l);
    if (rc == 0) {
        client_lock(c, &saved);
        rc = link_take(c, &l);
        client_unlock(c, &saved);
    }
    if (rc == -EPIPE || rc == -ECONNRESET || rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM)
        rc = -EAGAIN;
    return rc;
}

/* The callback makes calls on this thread, in the middle of the one that found out. */
static int call_back(struct client *c)
{
    struct thread *t = thread_get(false);
    sig_atomic_t busy = t ? t->busy : 0;
    int rc;

    if (t)
        t->busy = 0;
    rc = c->opts.resumed(c, c->opts.arg);
    if (t)
        t->busy = busy;
    return rc;
}

static int resume(struct client *c)
{
    uint64_t end = base_mono_ns() + CLIENT_RESUME_MS * 1000000ull, now;
    unsigned pause_ms = PAUSE_MS;

    while ((now = base_mono_ns()) < end && atomic_load(&c->state) == CLIENT_RESUMING) {
        int rc = reconnect(c, (unsigned)((end - now) / 1000000));
        if (rc == 0 && c->opts.resumed)
            rc = call_back(c);
        if (rc >= 0)
            return 0;
        if (rc != -EAGAIN && rc != -EOWNERDEAD) /* the latter: lost again in the callback */
            return rc;
        sys_sleep_ms(pause_ms);
        if (pause_ms < 100)
            pause_ms *= 2;
    }
    return -ETIMEDOUT;
}

int client_lost(struct client *c, uint64_t life)
{
    uint64_t saved;
    bool mine = false;

    client_lock(c, &saved);
    if (atomic_load(&c->state) == CLIENT_RESUMING && pthread_equal(c->resumer, pthread_self())) {
        client_unlock(c, &saved);
        return -EOWNERDEAD; /* in its own callback: resume() goes round once more */
    }
    if (atomic_load(&c->state) == CLIENT_UP && atomic_load(&c->life) == life) {
        if (c->opts.no_resume) {
            link_lose(c);
            atomic_store(&c->state, CLIENT_DEAD);
        } else {
            c->resumer = pthread_self();
            atomic_store(&c->state, CLIENT_RESUMING);
            mine = true;
        }
    }
    client_unlock(c, &saved);
    if (mine) {
        int rc = resume(c);
        if (rc < 0) {
            client_lock(c, &saved);
            link_lose(c);
            client_unlock(c, &saved);
        }
        atomic_store(&c->state, rc < 0 ? CLIENT_DEAD : CLIENT_UP);
    }
    return client_wait_up(c);
}
