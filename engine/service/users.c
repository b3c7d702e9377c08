/* SPDX-License-Identifier: Apache-2.0 */
/* What each user of the service has, and may have. Main thread only. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "service/worker.h"

static bool stranger(const struct user *u)
{
    return u->uid != 0 && u->uid != geteuid();
}

struct user *user_get(struct worker *w, uid_t uid)
{
    struct user *u;

    list_for_each(l, &w->users) {
        u = container_of(l, struct user, link);
        if (u->uid == uid) {
            u->refs++;
            return u;
        }
    }
    u = calloc(1, sizeof(*u));
    if (!u)
        return NULL;
    u->uid = uid;
    u->refs = 1;
    list_add_tail(&w->users, &u->link);
    return u;
}

void user_put(struct worker *w, struct user *u)
{
    /* Who has just been told about is remembered, or it would be told about again at once. */
    if (--u->refs > 0 || (u->told_ns && base_mono_ns() - u->told_ns < 1000000000ull))
        return;
    list_del(&u->link);
    free(u);
}

void user_forget_all(struct worker *w)
{
    list_for_each_safe(l, tmp, &w->users) {
        list_del(l);
        free(container_of(l, struct user, link));
    }
}

bool user_may_connect(const struct user *u)
{
    return u->hellos < WORKER_HELLOS || !stranger(u);
}

int user_charge_session(struct user *u)
{
    if (u->sessions >= (stranger(u) ? WORKER_STRANGER_SESSIONS : WORKER_SESSIONS))
        return base_refuse(-EUSERS, "user %u has %u sessions", u->uid, u->sessions);
    u->sessions++;
    return 0;
}

int user_charge_channel(struct user *u, unsigned in_session, uint64_t bytes)
{
    bool s = stranger(u);

    if (in_session >= WORKER_CHANNELS ||
        u->channels >= (s ? WORKER_STRANGER_CHANNELS : WORKER_USER_CHANNELS) ||
        u->bytes + bytes > (s ? WORKER_STRANGER_BYTES : WORKER_USER_BYTES))
        return base_refuse(-EDQUOT, "user %u has %u channels", u->uid, u->channels);
    u->channels++;
    u->bytes += bytes;
    return 0;
}

void user_return_channel(struct user *u, uint64_t bytes)
{
    u->channels--;
    u->bytes -= bytes;
}
