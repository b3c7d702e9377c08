/* SPDX-License-Identifier: Apache-2.0 */
/* Which file systems are mounts of ours, and the session behind each. */
#include "il/il.h"

#include <string.h>

#define XATTR "user.dfusepy.il"
/* Our descriptors are out of the way of programs that choose numbers (configure, bash: below 256),
 * and not so high that the kernel's table of descriptors grows by much. */
#define HIGHEST_FD 4096u

/* Clients of this process; in ordinary memory, since a child of fork must give them back. */
static struct client *_Atomic clients[IL_DEVS];

/* -- discovery --------------------------------------------------------------------------------- */
static long ask(int fd, char *text, size_t room)
{
    long n = il_sys(SYS_fgetxattr, fd, XATTR, text, room - 1);

    text[n > 0 ? n : 0] = 0;
    return n;
}

/* "1 SOCKET LABEL GENERATION SNAPSHOT": the socket's path may hold blanks, the rest does not. */
static bool parse(struct il_dev *dev)
{
    char text[sizeof(dev->text)];
    char *word[4];

    memcpy(text, dev->text, sizeof(text));
    for (int i = 3; i > 0; i--) {
        char *blank = strrchr(text, ' ');
        if (!blank) {
            return false;
        }
        *blank = 0;
        word[i] = blank + 1;
    }
    if (strncmp(text, "1 ", 2) || text[2] != '/') {
        return false; /* another version's, or nonsense: the kernel serves it */
    }
    word[0] = text + 2;
    if (strlen(word[0]) >= sizeof(dev->socket) || strlen(word[1]) >= sizeof(dev->label)) {
        return false;
    }
    strcpy(dev->socket, word[0]);
    strcpy(dev->label, word[1]);
    if (strcmp(word[3], "-")) {
        atomic_store(&dev->reason, IL_snapshot);
    }
    return true;
}

/* Asks the file system whether it is ours. By one thread at a time. */
static void discover(struct il_dev *dev, int fd)
{
    long n = ask(fd, dev->text, sizeof(dev->text));

    if (n == -EACCES || n == -EPERM || n == -EINTR || n == -EBADF) {
        /* Another file may answer: an inherited one need not be readable by name. */
        atomic_store(&dev->calls, 0);
        atomic_store(&dev->bytes, 0);
        return;
    }
    bool ours = n > 0 && parse(dev);
    atomic_store(&dev->state, ours ? IL_DEV_MOUNT : IL_DEV_OTHER);
}

int il_dev_find(uint64_t number, uint64_t mnt, bool unique, int fd)
{
    char text[sizeof(il->dev[0].text)];

    for (unsigned i = 0; i < IL_DEVS; i++) {
        struct il_dev *dev = &il->dev[i];
        uint32_t state = IL_DEV_FREE;
        if (atomic_compare_exchange_strong(&dev->state, &state, IL_DEV_FILLING)) {
            dev->dev = number;
            dev->mnt = mnt;
            atomic_store(&dev->state, IL_DEV_NEW);
            return (int)i;
        }
        if (state == IL_DEV_FILLING || dev->dev != number || dev->mnt != mnt) {
            continue;
        }
        if (state == IL_DEV_OTHER) {
            return -1;
        }
        if (state == IL_DEV_MOUNT && !unique &&
            (ask(fd, text, sizeof(text)) <= 0 || strcmp(text, dev->text))) {
            return -1; /* the number is another file system's by now */
        }
        return (int)i;
    }
    return -1;
}

/* -- the session ------------------------------------------------------------------------------- */
static int open_file_system(struct client *client, struct il_dev *dev)
{
    struct iovec push = {dev->label, strlen(dev->label)};
    struct client_call call = {
        .sqe = {.op = PROTO_FS_OPEN, .handle = dev->handle, .arg = PROTO_NO_HANDLE},
        .push = &push,
        .n_push = 1,
        .reply_cap = 256,
    };
    int64_t ret = client_do(client, &call);
    return ret < 0 ? (int)ret : 0;
}

/* The service was restarted: the same handles again. */
static int resumed(struct client *client, void *arg)
{
    for (unsigned i = 0; i < IL_DEVS; i++) {
        struct il_dev *dev = &il->dev[i];
        if (atomic_load(&dev->session) == IL_ATTACHED && dev->client == client) {
            int err = open_file_system(client, dev);
            if (err) {
                return err;
            }
        }
    }
    return atomic_load(&il->run) == IL_RUNNING ? 0 : -EPERM;
}

uint32_t il_first_own_fd(void)
{
    struct rlimit limit;
    uint32_t most = 1024;

    if (!il_sys(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &limit)) {
        most = limit.rlim_cur < HIGHEST_FD ? (uint32_t)limit.rlim_cur : HIGHEST_FD;
    }
    return most > 2 * IL_OWN_FDS ? most - IL_OWN_FDS : most / 2;
}

static struct client *of_same_socket(const struct il_dev *dev)
{
    for (unsigned i = 0; i < IL_DEVS; i++) {
        struct il_dev *other = &il->dev[i];
        if (other != dev && atomic_load(&other->session) == IL_ATTACHED &&
            !strcmp(other->socket, dev->socket)) {
            return other->client;
        }
    }
    return NULL;
}

static int open_client(struct il_dev *dev, struct client **out)
{
    struct client_opts opts = {
        .size = sizeof(opts),
        .path = dev->socket,
        .role = PROTO_ROLE_IL,
        .push_bytes = IL_PUSH_BYTES,
        .min_fd = il_first_own_fd(),
        .resumed = resumed,
    };
    il_own_begin(opts.min_fd);
    int err = client_open(&opts, out);

    for (unsigned i = 0; !err && i < IL_DEVS; i++) {
        struct client *none = NULL;
        if (atomic_compare_exchange_strong(&clients[i], &none, *out)) {
            return 0;
        }
    }
    if (!err) {
        client_close(*out);
        err = -ENOSPC;
    }
    return err;
}

static void close_client(struct client *client)
{
    for (unsigned i = 0; i < IL_DEVS; i++) {
        struct client *mine = client;
        if (atomic_compare_exchange_strong(&clients[i], &mine, NULL)) {
            client_close(client);
            return;
        }
    }
}

static bool used_by_others(const struct il_dev *dev)
{
    for (unsigned i = 0; i < IL_DEVS; i++) {
        if (&il->dev[i] != dev && il->dev[i].client == dev->client &&
            atomic_load(&il->dev[i].session) == IL_ATTACHED) {
            return true;
        }
    }
    return false;
}

/* The client of a session that is no more; stays while somebody may be in it. */
static void close_unused(struct il_dev *dev)
{
    if (dev->client && !used_by_others(dev) && il_quiet(0)) {
        close_client(dev->client);
        dev->client = NULL;
    }
}

static void attach(struct il_dev *dev)
{
    int64_t begun = il_now_ns();
    struct client *client;
    int err = 0;

    close_unused(dev);
    dev->handle = (uint32_t)(dev - il->dev) + 1;
    client = of_same_socket(dev);
    if (!client) {
        err = open_client(dev, &client);
    }
    if (!err) {
        dev->client = client;
        err = open_file_system(client, dev);
    }
    atomic_store(&dev->retry_s, il_now_ns() / 1000000000 + IL_RETRY_S);
    atomic_store(&dev->session, err ? IL_FAILED : IL_ATTACHED);
    if (!err) {
        il_count_attach((uint64_t)(il_now_ns() - begun));
    }
}

/* The mount's own session has ended, too, or will; what a later service has by that label may
 * be another container. */
void il_dev_lost(struct il_dev *dev)
{
    uint32_t attached = IL_ATTACHED;

    atomic_store(&dev->reason, IL_lost);
    atomic_compare_exchange_strong(&dev->session, &attached, IL_FAILED);
}

/* Gives back the memory of a lost session, which may be a dead service's whole arena, once nobody
 * is in it. */
static void let_go(struct il_dev *dev)
{
    uint32_t failed = IL_FAILED;

    if (!dev->client || !atomic_compare_exchange_strong(&dev->session, &failed, IL_ATTACHING)) {
        return;
    }
    close_unused(dev);
    atomic_store(&dev->session, IL_FAILED);
}

static bool worth_it(struct il_dev *dev, uint64_t bytes)
{
    uint64_t calls = atomic_fetch_add_explicit(&dev->calls, 1, memory_order_relaxed) + 1;
    uint64_t sum = atomic_fetch_add_explicit(&dev->bytes, bytes, memory_order_relaxed) + bytes;

    return calls > IL_ATTACH_CALLS || sum > IL_ATTACH_BYTES;
}

/* The slow side of il_dev_use: not attached. */
static int not_attached(enum il_call call, struct il_dev *dev, int fd, uint64_t bytes)
{
    uint32_t session = atomic_load(&dev->session);

    if (session == IL_FAILED && il_now_ns() / 1000000000 < atomic_load(&dev->retry_s)) {
        return IL_no_service;
    }
    if (session == IL_IDLE && !worth_it(dev, bytes)) {
        return atomic_load(&dev->state) == IL_DEV_MOUNT ? IL_threshold : -2;
    }
    if (session == IL_ATTACHING || session == IL_ATTACHED ||
        !atomic_compare_exchange_strong(&dev->session, &session, IL_ATTACHING)) {
        return IL_attaching;
    }
    if (atomic_load(&dev->state) == IL_DEV_NEW) {
        uint64_t calls = atomic_load(&dev->calls) - 1, sum = atomic_load(&dev->bytes) - bytes;
        discover(dev, fd);
        if (atomic_load(&dev->state) != IL_DEV_MOUNT) {
            atomic_store(&dev->session, IL_IDLE);
            return atomic_load(&dev->state) == IL_DEV_OTHER ? -1 : -2;
        }
        il_count(call, IL_threshold, calls, sum);
    }
    if (atomic_load(&dev->reason)) {
        atomic_store(&dev->session, IL_FAILED);
        return (int)atomic_load(&dev->reason);
    }
    attach(dev);
    return atomic_load(&dev->session) == IL_ATTACHED ? 0 : IL_no_service;
}

int il_dev_use(enum il_call call, const struct il_file *file, int fd, uint64_t bytes)
{
    struct il_dev *dev = &il->dev[file->dev];

    if (__builtin_expect(atomic_load(&dev->session) == IL_ATTACHED, 1)) {
        return 0;
    }
    if (atomic_load(&dev->state) == IL_DEV_OTHER) {
        return -1;
    }
    if (atomic_load(&dev->reason)) {
        let_go(dev);
        return (int)atomic_load(&dev->reason);
    }
    return not_attached(call, dev, fd, bytes);
}

bool il_dev_is_mount(uint32_t index, int fd)
{
    struct il_dev *dev = &il->dev[index];
    uint32_t idle = IL_IDLE;

    if (atomic_load(&dev->state) == IL_DEV_NEW &&
        atomic_compare_exchange_strong(&dev->session, &idle, IL_ATTACHING)) {
        discover(dev, fd);
        atomic_store(&dev->session, IL_IDLE);
    }
    return atomic_load(&dev->state) != IL_DEV_OTHER;
}

void il_sessions_close(void)
{
    for (unsigned i = 0; i < IL_DEVS; i++) {
        struct client *client = atomic_exchange(&clients[i], NULL);
        if (client) {
            client_close(client);
        }
    }
}

void il_sessions_forked(bool busy)
{
    for (unsigned i = 0; i < IL_DEVS; i++) {
        struct client *client = atomic_exchange(&clients[i], NULL);
        if (client) {
            if (busy) {
                client_abandoned(client);
            } else {
                client_forked(client);
            }
        }
    }
}
