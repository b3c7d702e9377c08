/* SPDX-License-Identifier: Apache-2.0 */
/* How both sides of a channel wait: when they spin, how long, and that idleness costs nothing. */
#include <dirent.h>
#include <inttypes.h>
#include <sched.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "channel_rig.h"
#include "client/spin.h"
#include "test.h"

#define BURST 10000u

/* -- the policy -------------------------------------------------------------------------------- */

static bool pays(const struct spin *s)
{
    return spin_pays(s, 1, 2);
}

static void test_places(void)
{
    struct spin s;

    spin_init(&s, 1);
    CHECK(!spin_pays(&s, 1, 2));
    spin_init(&s, 2);
    CHECK(spin_pays(&s, 1, 2));
    CHECK(!spin_pays(&s, 2, 2)); /* the other one cannot run meanwhile */
    CHECK(spin_pays(&s, 0, 0));  /* nobody knows */
    CHECK(spin_pays(&s, 1, 0));
}

static void test_losses(void)
{
    struct spin s;
    unsigned sleeps = 0;

    spin_init(&s, 2);
    for (unsigned i = 0; i < 100; i++) { /* one alone does no harm */
        spin_lost(&s);
        CHECK(pays(&s));
        spin_won(&s);
    }
    for (unsigned i = 0; i < SPIN_LOSSES; i++)
        spin_lost(&s);
    for (unsigned i = 0; i < 1000; i++) { /* nothing that comes soon */
        CHECK(!pays(&s));
        spin_slept(&s, SPIN_SHORT_NS);
    }
    for (unsigned wanted = SPIN_SLEEPS, i = 0; i < 20; i++) {
        for (sleeps = 0; !pays(&s); sleeps++)
            spin_slept(&s, SPIN_SHORT_NS - 1);
        CHECK_EQ(sleeps, wanted);
        spin_lost(&s);
        if (wanted < SPIN_SLEEPS << (SPIN_LOSSES_MOST - SPIN_LOSSES))
            wanted *= 2;
    }
    while (!pays(&s))
        spin_slept(&s, 0);
    for (unsigned i = 0; i < SPIN_LOSSES_MOST; i++) /* makes up for all of it */
        spin_won(&s);
    spin_lost(&s);
    CHECK(pays(&s));
}

/* Requests a millisecond apart: who waits for them does not spin but for the first. */
static void test_rare(void)
{
    struct spin s;
    unsigned spins = 0;

    spin_init(&s, 2);
    for (unsigned i = 0; i < 10000; i++) {
        if (pays(&s)) {
            spins++;
            spin_lost(&s);
        } else {
            spin_slept(&s, 1000000);
        }
    }
    CHECK_EQ(spins, SPIN_LOSSES);
}

static void test_time(void)
{
    struct spin_time t = {0};
    uint64_t begun = base_mono_ns(), ns;
    unsigned turns = 1;

    while (spin_on(&t))
        turns++;
    ns = base_mono_ns() - begun;
    fprintf(stderr, "a lost spin: %u turns, %.0f us\n", turns, ns / 1e3);
    CHECK(ns >= SPIN_NS);
}

/* -- two processes ----------------------------------------------------------------------------- */

static uint64_t process_ns(pid_t pid)
{
    struct timespec t;
    clockid_t clock;

    CHECK_EQ(clock_getcpuclockid(pid, &clock), 0);
    CHECK_EQ(clock_gettime(clock, &t), 0);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t own_ns(void)
{
    return process_ns(getpid()) + process_ns(atomic_load(&rig_state()->worker));
}

/* Of all processors, since the machine started. */
static uint64_t busy_ns(void)
{
    unsigned long long user, nice, system, idle, wait, irq, soft, steal;
    FILE *f = fopen("/proc/stat", "r");

    CHECK(f && fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system,
                      &idle, &wait, &irq, &soft, &steal) == 8);
    fclose(f);
    return (user + nice + system + irq + soft + steal) * (1000000000u / sysconf(_SC_CLK_TCK));
}

static uint64_t sleeps(struct client *c)
{
    struct dfe_service_info info;
    struct rusage usage;

    rig_info(c, &info);
    CHECK_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
    return info.sleeps + (uint64_t)usage.ru_nvcsw;
}

static void burst(struct client *c, unsigned n)
{
    while (n-- > 0)
        CHECK_EQ(rig_nop(c), 0);
}

/* Requests one after the other, a processor for each side: hardly any sleep, on either side. Only
 * times count in which nobody else used the machine. */
static void test_burst(struct client *c, unsigned cpus)
{
    unsigned quiet = 0, tries = 0;
    uint64_t n = 0;

    if (cpus < 2) {
        fprintf(stderr, "a burst: skipped, one processor\n");
        return;
    }
    for (; tries < 15 && quiet < 5; tries++) {
        uint64_t t = base_mono_ns(), busy = busy_ns(), own = own_ns(), slept = sleeps(c);
        do {
            burst(c, BURST);
            n = sleeps(c) - slept;
            if (n < BURST / 20)
                break;
            slept += n;
        } while (base_mono_ns() - t < 200000000u);
        if (n < BURST / 20)
            break;
        t = base_mono_ns() - t, busy = busy_ns() - busy, own = own_ns() - own;
        quiet += busy < own + t / 10;
    }
    fprintf(stderr, "a burst of %u: %" PRIu64 " sleeps; %u tries before, %u undisturbed\n", BURST,
            n, tries, quiet);
    CHECK(n < BURST / 20 || quiet < 5);
}

/* A session that is open and idle. */
static void test_idle(struct client *c)
{
    pid_t worker = atomic_load(&rig_state()->worker);
    uint64_t used, slept;

    burst(c, BURST);
    usleep(5000);
    used = process_ns(worker), slept = sleeps(c);
    usleep(1000000);
    used = process_ns(worker) - used, slept = sleeps(c) - slept;
    fprintf(stderr, "idle for 1 s: %.0f us of a processor\n", used / 1e3);
    CHECK(used < 1000000);
}

/* Every thread of a process. */
static void pin(pid_t pid, int cpu)
{
    char path[64];
    cpu_set_t set;
    struct dirent *d;
    DIR *dir;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    snprintf(path, sizeof(path), "/proc/%d/task", pid);
    dir = opendir(path);
    CHECK(dir);
    while ((d = readdir(dir)))
        if (d->d_name[0] != '.')
            CHECK_EQ(sched_setaffinity(atoi(d->d_name), sizeof(set), &set), 0);
    closedir(dir);
}

/* Both on one processor, which they do not know beforehand: turns are taken by sleeping, and nobody
 * burns the other's time. What counts is the processor's time, so that a busy machine is none. */
static void test_together(struct client *c)
{
    cpu_set_t all;
    uint64_t used;
    int cpu;

    CHECK_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    for (cpu = 0; !CPU_ISSET(cpu, &all);)
        cpu++;
    pin(getpid(), cpu);
    pin(atomic_load(&rig_state()->worker), cpu);
    burst(c, 100);
    used = own_ns();
    burst(c, BURST);
    used = own_ns() - used;
    fprintf(stderr, "on one processor: %.1f us a request\n", used / 1e3 / BURST);
    CHECK(used < BURST * (SPIN_NS / 2));
    CHECK_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

int main(void)
{
    struct client *c;
    cpu_set_t all;

    test_places();
    test_losses();
    test_rare();
    test_time();
    CHECK_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    rig_start(UINT32_MAX);
    c = rig_client(PROTO_ROLE_API);
    test_burst(c, (unsigned)CPU_COUNT(&all));
    test_idle(c);
    test_together(c);
    client_close(c);
    CHECK_EQ(rig_stop(), 0);
    return 0;
}
