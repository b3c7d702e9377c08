/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cost of a null request over the ring, with the other processors free and with all but the first
 * busy. Prints one JSON line.
 *
 *     bench_channel [REQUESTS]
 */
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "channel_rig.h"
#include "test.h"

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

struct figures {
    double p50_us, p99_us, mean_us, sleeps; /* the engine's, a request */
};

static struct figures measure(struct client *c, uint32_t *ns, unsigned n)
{
    struct dfe_service_info before, after;
    struct figures f = {0};
    uint64_t total = 0;

    for (unsigned i = 0; i < n / 10; i++)
        CHECK_EQ(rig_nop(c), 0);
    rig_info(c, &before);
    for (unsigned i = 0; i < n; i++) {
        uint64_t t = base_mono_ns();
        CHECK_EQ(rig_nop(c), 0);
        t = base_mono_ns() - t;
        ns[i] = t > UINT32_MAX ? UINT32_MAX : (uint32_t)t;
        total += t;
    }
    rig_info(c, &after);
    qsort(ns, n, sizeof(*ns), compare);
    f.p50_us = ns[n / 2] / 1e3;
    f.p99_us = ns[n - n / 100 - 1] / 1e3;
    f.mean_us = (double)total / n / 1e3;
    f.sleeps = (double)(after.sleeps - before.sleeps) / n;
    return f;
}

/* Microseconds from nothing to the first answer. */
static double attach_us(void)
{
    const unsigned n = 50;
    uint64_t t = base_mono_ns();

    for (unsigned i = 0; i < n; i++) {
        struct client *c = rig_client(PROTO_ROLE_API);
        CHECK_EQ(rig_nop(c), 0);
        client_close(c);
    }
    return (double)(base_mono_ns() - t) / n / 1e3;
}

/* A process that does nothing but turn, on one processor. */
static pid_t hog(int cpu)
{
    pid_t pid = fork();

    if (pid == 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        sched_setaffinity(0, sizeof(set), &set);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile uint64_t n = 0;;)
            n++;
    }
    return pid;
}

static unsigned start_hogs(pid_t *hogs, unsigned max)
{
    cpu_set_t set;
    unsigned n = 0;
    bool first = true;

    CHECK_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE && n < max; cpu++) {
        if (!CPU_ISSET(cpu, &set))
            continue;
        if (!first)
            hogs[n++] = hog(cpu);
        first = false;
    }
    usleep(100000);
    return n;
}

int main(int argc, char **argv)
{
    unsigned n = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 300000, n_hogs;
    uint32_t *ns = malloc((size_t)n * sizeof(*ns));
    pid_t hogs[CPU_SETSIZE];
    struct figures idle, busy;
    struct client *c;
    double attach;

    if (argc > 2 || n < 1000 || !ns) {
        fprintf(stderr, "usage: bench_channel [REQUESTS]   (1000 or more)\n");
        return 2;
    }
    rig_start(UINT32_MAX);
    attach = attach_us();
    c = rig_client(PROTO_ROLE_API);
    idle = measure(c, ns, n);
    n_hogs = start_hogs(hogs, CPU_SETSIZE);
    busy = measure(c, ns, n);
    for (unsigned i = 0; i < n_hogs; i++) {
        kill(hogs[i], SIGKILL);
        waitpid(hogs[i], NULL, 0);
    }
    printf("{\"attach_us\": %.0f, \"requests\": %u, \"p50_us\": %.2f, \"p99_us\": %.2f, "
           "\"mean_us\": %.2f, \"sleeps\": %.4f, "
           "\"busy\": {\"processors\": %u, \"p50_us\": %.2f, \"p99_us\": %.2f, "
           "\"mean_us\": %.2f, \"sleeps\": %.4f}}\n",
           attach, n, idle.p50_us, idle.p99_us, idle.mean_us, idle.sleeps, n_hogs, busy.p50_us,
           busy.p99_us, busy.mean_us, busy.sleeps);
    client_close(c);
    CHECK_EQ(rig_stop(), 0);
    free(ns);
    return 0;
}
