/* SPDX-License-Identifier: Apache-2.0 */
/* The session client against a worker: calls, threads, waiting, leases, forks, restarts. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "channel_rig.h"
#include "test.h"

static uint64_t seed;

static void test_calls(void)
{
    struct client *c = rig_client(PROTO_ROLE_API);
    uint8_t buf[3000];
    struct iovec push[2] = {{buf, 1000}, {buf + 1000, 2000}};
    struct client_call read_call = {.sqe = {.op = PROTO_READ, .ino = 5, .off = 77, .len = 4000},
                                    .reply_cap = 4096};
    struct client_call write_call = {.sqe = {.op = PROTO_WRITE}, .push = push, .n_push = 2};
    struct client_call odd = {.sqe = {.op = 999}, .reply_cap = 100};
    uint64_t sum = 0;

    CHECK_EQ(rig_nop(c), 0);
    CHECK_EQ(client_do(c, &read_call), 4000);
    for (unsigned i = 0; i < 4000; i++)
        CHECK_EQ(((const uint8_t *)read_call.reply)[i], rig_byte(5, 77 + i));
    for (unsigned i = 0; i < sizeof(buf); i++)
        sum += buf[i] = (uint8_t)i;
    CHECK_EQ(client_do(c, &write_call), 3000);
    CHECK_EQ(write_call.cqe.value, sum);
    CHECK_EQ(client_do(c, &odd), -EOPNOTSUPP);
    CHECK_EQ(odd.cqe.reply_len, 16);
    CHECK_EQ(memcmp(odd.reply, "no operation 999", 16), 0);
    CHECK(client_epoch(c));
    client_close(c);
}

int main(void)
{
    seed = test_seed();
    rig_start(UINT32_MAX);
    RUN(test_calls);
    CHECK_EQ(rig_stop(), 0);
    return 0;
}
