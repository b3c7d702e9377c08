/* SPDX-License-Identifier: Apache-2.0 */
/* Loans of a session: a table of pins, named by place and generation. */
#include "service/loans.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "api/api.h"
#include "base/clock.h"
#include "service/host.h"

/* A number is count << PLACE_BITS | place + 1. The counts of a session begin anywhere: a drop that
 * is sent again to the next worker must not find a loan there by the number it had here. */
#define PLACE_BITS 16
#define NOBODY UINT32_MAX
#define FIRST_PLACES 16u

struct loan {
    struct host_cont *hc; /* NULL: free */
    struct dfe_pin pin;
    uint64_t charged;
    uint64_t number;
    uint32_t next_free;
};

void loans_open(struct loans *loans)
{
    memset(loans, 0, sizeof(*loans));
    loans->free = NOBODY;
    if (getrandom(&loans->count, sizeof(loans->count), GRND_NONBLOCK) < 0)
        loans->count = base_mono_ns();
    pthread_mutex_init(&loans->lock, NULL);
}

static void give_back(struct host *host, struct loan *loan)
{
    dfe_fs_unpin(loan->hc->fs, &loan->pin);
    atomic_fetch_sub(&host->loans, 1);
    atomic_fetch_sub(&host->loan_bytes, loan->charged);
    host_fs_put(loan->hc);
}

void loans_close(struct loans *loans, struct host *host)
{
    for (uint32_t i = 0; i < loans->n; i++) {
        if (loans->table[i].hc)
            give_back(host, &loans->table[i]);
    }
    free(loans->table);
    pthread_mutex_destroy(&loans->lock);
}

/* Under the lock: a free place, or -ENOBUFS, -ENOMEM. */
static int take_place(struct loans *loans, uint32_t *out)
{
    uint32_t n = loans->n ? loans->n * 2 : FIRST_PLACES;
    struct loan *table;

    if (loans->free == NOBODY) {
        if (n > LOANS_BOUND)
            return base_refuse(-ENOBUFS, "a session has %u loans at most", LOANS_BOUND);
        table = realloc(loans->table, n * sizeof(*table));
        if (!table)
            return -ENOMEM;
        for (uint32_t i = loans->n; i < n; i++) {
            table[i] = (struct loan){.next_free = loans->free};
            loans->free = i;
        }
        loans->table = table;
        loans->n = n;
    }
    *out = loans->free;
    loans->free = loans->table[*out].next_free;
    return 0;
}

/* Charges for it before anything is pinned. */
static int charge(struct loans *loans, uint64_t bound, uint64_t bytes, uint32_t *place)
{
    int ret;

    pthread_mutex_lock(&loans->lock);
    if (bytes > bound || loans->bytes > bound - bytes)
        ret = base_refuse(-ENOBUFS, "%llu bytes are lent to this session; it may have %llu",
                          (unsigned long long)loans->bytes, (unsigned long long)bound);
    else
        ret = take_place(loans, place);
    if (ret == 0)
        loans->bytes += bytes;
    pthread_mutex_unlock(&loans->lock);
    return ret;
}

/* Under the lock. */
static void free_place(struct loans *loans, uint32_t place)
{
    struct loan *loan = &loans->table[place];

    loan->hc = NULL;
    loan->next_free = loans->free;
    loans->free = place;
}

static void lend(struct loans *loans, uint32_t place, const struct loan *given, uint64_t *number)
{
    struct loan *loan;

    pthread_mutex_lock(&loans->lock);
    loan = &loans->table[place];
    *number = ++loans->count << PLACE_BITS | (place + 1);
    *loan = *given;
    loan->number = *number;
    pthread_mutex_unlock(&loans->lock);
}

int loans_take(struct loans *loans, struct host_cont *hc, uint64_t ino, uint64_t off, size_t len,
               unsigned flags, struct proto_lease *out, uint64_t *number)
{
    struct loan loan = {.hc = hc};
    struct buf_place place = {0};
    uint32_t at = 0;
    int ret;

    if (len > BUF_MAX_BYTES)
        len = BUF_MAX_BYTES; /* a slot is not longer */
    loan.charged = (len + BUF_MIN_BYTES - 1) / BUF_MIN_BYTES * BUF_MIN_BYTES;
    ret = charge(loans, hc->host->loan_bound_bytes, loan.charged, &at);
    if (ret < 0)
        return ret;
    *number = 0;
    *out = (struct proto_lease){.file_off = off, .ino = ino};
    ret = dfe_fs_pin(hc->fs, ino, off, len, flags, &loan.pin);
    if (ret == 0 && loan.pin.len) {
        buf_place(api_pool_arena(hc->host->pool), loan.pin.ptr, &place);
        if (place.domain == 0) {
            dfe_fs_unpin(hc->fs, &loan.pin);
            ret = base_refuse(-EAGAIN, "these bytes are where no session can see them");
        }
    }
    if (ret < 0 || loan.pin.len == 0) {
        pthread_mutex_lock(&loans->lock);
        loans->bytes -= loan.charged;
        free_place(loans, at);
        pthread_mutex_unlock(&loans->lock);
        return ret;
    }
    out->stamp = place.stamp;
    out->extent = place.extent;
    out->extent_off = place.off;
    out->len = (uint32_t)loan.pin.len;
    host_fs_more(hc);
    atomic_fetch_add(&hc->host->loans, 1);
    atomic_fetch_add(&hc->host->loan_bytes, loan.charged);
    lend(loans, at, &loan, number);
    return 0;
}

int loans_drop(struct loans *loans, struct host *host, uint64_t number, unsigned flags)
{
    uint32_t place = (uint32_t)(number & ((1u << PLACE_BITS) - 1)) - 1;
    struct loan loan = {0};
    bool waits = false;

    pthread_mutex_lock(&loans->lock);
    if (place < loans->n && loans->table[place].hc && loans->table[place].number == number) {
        loan = loans->table[place];
        waits = flags & DFE_NOWAIT && host_fs_last(loan.hc);
        if (!waits) {
            loans->bytes -= loan.charged;
            free_place(loans, place);
        }
    }
    pthread_mutex_unlock(&loans->lock);
    if (waits)
        return -EINPROGRESS; /* it closes the file system */
    if (!loan.hc)
        return base_refuse(-ESTALE, "there is no loan %llu", (unsigned long long)number);
    give_back(host, &loan);
    return 0;
}
