/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for the dispatcher: all of dispatch.h, without an engine. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/assert.h"
#include "channel_rig.h"
#include "service/dispatch.h"
#include "test.h"

#define WAIT_MOST_US 1000000u /* clients that write nonsense may ask for an hour */

struct host {
    void (*info)(struct dfe_service_info *info, void *arg);
    void *arg;
    int lines_fd, records_fd, extent_fd;
};

struct session {
    struct host *host;
    pthread_mutex_t lock;
    struct request *waits; /* an INVAL_NEXT */
    bool stopped;
};

static int memory(size_t bytes, void **out)
{
    int fd = memfd_create("rig", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(*out != MAP_FAILED);
    CHECK_EQ(fcntl(fd, F_ADD_SEALS,
                   F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL),
             0);
    return fd;
}

int host_open(const struct host_opts *opts, struct host **out)
{
    struct host *h = calloc(1, sizeof(*h));
    struct proto_line *lines;
    struct proto_record *records;
    uint8_t *extent;

    CHECK(h);
    h->lines_fd = memory(RIG_LINES * sizeof(*lines), (void **)&lines);
    h->records_fd = memory(RIG_RECORDS * sizeof(*records), (void **)&records);
    h->extent_fd = memory(RIG_EXTENT_BYTES, (void **)&extent);
    for (unsigned i = 0; i < RIG_LINES; i++)
        lines[i].gen = 2 * i + 2;
    for (unsigned i = 0; i < RIG_RECORDS; i++)
        records[i] = (struct proto_record){.gen = 2, .ino = i + 1, .size = 1000 * i};
    for (unsigned i = 0; i < RIG_EXTENT_BYTES; i++)
        extent[i] = rig_byte(1, i);
    munmap(lines, RIG_LINES * sizeof(*lines));
    munmap(records, RIG_RECORDS * sizeof(*records));
    munmap(extent, RIG_EXTENT_BYTES);
    *out = h;
    return 0;
}

int host_close(struct host *h)
{
    CHECK_EQ(atomic_load(&rig_state()->sessions), 0);
    close(h->lines_fd);
    close(h->records_fd);
    close(h->extent_fd);
    free(h);
    return 0;
}

void host_dismiss(struct host *h)
{
}

bool dispatch_changes(uint32_t op)
{
    return op == PROTO_PUNCH;
}

struct dfe_pool *host_pool(struct host *h)
{
    return NULL;
}

void host_set_info(struct host *h, void (*fn)(struct dfe_service_info *info, void *arg), void *arg)
{
    h->info = fn;
    h->arg = arg;
}

int host_tables(struct host *h, int *lines_fd, uint32_t *lines, int *records_fd, uint32_t *records)
{
    *lines_fd = h->lines_fd;
    *lines = RIG_LINES;
    *records_fd = h->records_fd;
    *records = RIG_RECORDS;
    return 0;
}

int session_new(struct host *h, const struct session_who *who, uint64_t id, struct session **out)
{
    struct session *s = calloc(1, sizeof(*s));

    CHECK(s && id);
    CHECK_EQ(who->uid, getuid());
    s->host = h;
    pthread_mutex_init(&s->lock, NULL);
    atomic_fetch_add(&rig_state()->sessions, 1);
    *out = s;
    return 0;
}

static void stop_waiting(struct session *s)
{
    struct proto_cqe cqe = {.result = -ESHUTDOWN};
    struct request *req;

    pthread_mutex_lock(&s->lock);
    s->stopped = true;
    req = s->waits;
    s->waits = NULL;
    pthread_mutex_unlock(&s->lock);
    if (req)
        req->later(req, &cqe);
}

static int wait_for_news(struct session *s, struct request *req, struct proto_cqe *out)
{
    int rc = 0;

    pthread_mutex_lock(&s->lock);
    if (s->stopped || s->waits) {
        out->result = s->stopped ? -ESHUTDOWN : -EBUSY;
    } else {
        s->waits = req;
        rc = DISPATCH_LATER;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void session_end(struct session *s)
{
    stop_waiting(s);
    atomic_fetch_sub(&rig_state()->sessions, 1);
    pthread_mutex_destroy(&s->lock);
    memset(s, 0xdd, sizeof(*s));
    free(s);
}

int session_extent(struct session *s, uint32_t extent, uint64_t stamp)
{
    if (extent == 7)
        return -EACCES;
    return extent < 4 ? fcntl(s->host->extent_fd, F_DUPFD_CLOEXEC, 0) : -ESTALE;
}

int session_prove(struct session *s, uint32_t handle, uint64_t ino, int fd)
{
    struct stat st;

    CHECK_EQ(fstat(fd, &st), 0);
    atomic_fetch_add(&rig_state()->proofs, 1);
    return handle == 3 && st.st_ino == ino ? 0 : -EACCES;
}

static int do_write(const struct request *req, struct proto_cqe *out)
{
    struct rig_state *st = rig_state();
    const uint8_t *p = req->push;

    for (uint32_t i = 0; i < req->e.push_len; i++)
        out->value += p[i];
    out->result = req->e.push_len;
    if (req->e.ino == 0 || req->e.ino >= RIG_TOKENS)
        return 0;
    if (atomic_exchange(&st->done[req->e.ino], 1))
        CHECK_EQ(req->e.ctl, PROTO_CTL_RETRY); /* done by a worker that died before it answered */
    else if (atomic_fetch_add(&st->writes, 1) + 1 == atomic_load(&st->kill_at))
        kill(getpid(), SIGKILL);
    return 0;
}

static void wait_for_mounts(void)
{
    struct rig_state *st = rig_state();

    atomic_fetch_add(&st->waiting, 1);
    for (unsigned i = 0; i < 20000 && !atomic_load(&st->free); i++)
        usleep(1000);
    atomic_fetch_sub(&st->waiting, 1);
}

int dispatch(struct session *s, struct request *req, bool may_wait, struct proto_cqe *out)
{
    const struct proto_sqe *e = &req->e;

    switch (e->op) {
    case PROTO_NOP:
        return 0;
    case PROTO_READ:
        out->reply_len = e->len < e->reply_cap ? e->len : e->reply_cap;
        for (uint32_t i = 0; i < out->reply_len; i++)
            ((uint8_t *)req->reply)[i] = rig_byte(e->ino, e->off + i);
        out->result = out->reply_len;
        return 0;
    case PROTO_WRITE:
        return do_write(req, out);
    case PROTO_PUNCH:
        if (!may_wait)
            return -EINPROGRESS;
        wait_for_mounts();
        return 0;
    case PROTO_FSYNC:
        if (!may_wait)
            return -EINPROGRESS;
        usleep((useconds_t)(e->off < WAIT_MOST_US ? e->off : WAIT_MOST_US));
        return 0;
    case PROTO_INVAL_NEXT:
        if (!may_wait)
            return -EINPROGRESS;
        return wait_for_news(s, req, out);
    case PROTO_INVAL_STOP:
        stop_waiting(s);
        return 0;
    case PROTO_CHECK:
        if (!may_wait)
            return -EINPROGRESS;
        for (uint64_t i = 1; i <= 5; i++)
            req->progress(i, 5, req->arg);
        return 0;
    case PROTO_SERVICE_QUERY:
        CHECK(e->reply_cap >= sizeof(struct dfe_service_info));
        memset(req->reply, 0, sizeof(struct dfe_service_info));
        s->host->info(req->reply, s->host->arg);
        out->reply_len = sizeof(struct dfe_service_info);
        return 0;
    }
    out->result = -EOPNOTSUPP;
    out->reply_len = (uint32_t)snprintf(req->reply, e->reply_cap, "no operation %u", e->op);
    if (out->reply_len > e->reply_cap)
        out->reply_len = e->reply_cap;
    return 0;
}

void dispatch_posted(struct session *s, uint64_t seq)
{
}
