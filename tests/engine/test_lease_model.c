/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol of cache/lease.c in the memory model of C11, checked exhaustively.
 *
 * Small programs run in every interleaving, and every load returns every value that the model lets
 * it return: memory keeps all stores of a word with the view their thread released with them, and a
 * thread may read any store that is not older than its view. That is the operational form of
 * release, acquire, relaxed and fences without speculated stores (none of ours depends on a later
 * load). Each thread stores to a word only in orders that a lock gives, so new stores are newest.
 *
 * A reader's copies that pass its checks must be one moment. The same programs with one ordering
 * taken away must be caught: that shows that the search finds what it looks for, and that no part
 * of the protocol is there for nothing.
 */
#include <stdbool.h>

#include "test.h"

#define LOCS 6u
#define STORES 8u /* of one word */
#define THREADS 3u
#define REGS 8u
#define END 0xffu

enum loc { RECORD, LINE, VERSION, DATA, DATA2, FLAG };

enum op { STORE, LOAD, FENCE_REL, FENCE_ACQ, AWAIT };
enum order { RLX, REL, ACQ };

/* STORE: value at loc. LOAD: into reg. AWAIT: goes on only where an acquiring load sees value. */
struct step {
    enum op op;
    enum loc loc;
    enum order order;
    uint8_t value; /* or register; END ends a program */
};

struct view {
    uint8_t at[LOCS]; /* oldest store that may still be read */
};

struct store {
    uint8_t value;
    struct view released;
};

struct thread {
    const struct step *pc;
    struct view now, acquired, released; /* acquired: by the next acquire fence */
    uint8_t reg[REGS];
};

struct world {
    struct store mem[LOCS][STORES];
    uint8_t n[LOCS];
    struct thread t[THREADS];
};

typedef bool (*verdict_fn)(const uint8_t *reg); /* of the reader, thread 0: false is a fault */

static unsigned long ends, faults, accepted;

static void join(struct view *a, const struct view *b)
{
    for (unsigned i = 0; i < LOCS; i++)
        if (b->at[i] > a->at[i])
            a->at[i] = b->at[i];
}

static void store(struct world *w, struct thread *t, const struct step *s)
{
    struct store *m = &w->mem[s->loc][w->n[s->loc]];

    CHECK(w->n[s->loc] < STORES);
    CHECK(t->now.at[s->loc] == w->n[s->loc] - 1); /* ordered behind the last one by a lock */
    t->now.at[s->loc] = w->n[s->loc]++;
    m->value = s->value;
    m->released = s->order == REL ? t->now : t->released;
    m->released.at[s->loc] = t->now.at[s->loc];
}

static void load(const struct world *w, struct thread *t, const struct step *s, unsigned i)
{
    const struct store *m = &w->mem[s->loc][i];

    t->now.at[s->loc] = (uint8_t)i;
    join(&t->acquired, &m->released);
    if (s->order == ACQ)
        join(&t->now, &m->released);
}

static void run(const struct world *w, verdict_fn ok);

/* One step of thread k in a copy of the world, once for each store that it may read. */
static void step(const struct world *w, unsigned k, verdict_fn ok)
{
    const struct step *s = w->t[k].pc;
    struct world next = *w;
    struct thread *t = &next.t[k];

    t->pc++;
    switch (s->op) {
    case STORE:
        store(&next, t, s);
        run(&next, ok);
        return;
    case FENCE_REL:
        t->released = t->now;
        run(&next, ok);
        return;
    case FENCE_ACQ:
        join(&t->now, &t->acquired);
        run(&next, ok);
        return;
    default:
        for (unsigned i = w->t[k].now.at[s->loc]; i < w->n[s->loc]; i++) {
            next = *w;
            t->pc++;
            load(&next, t, s, i);
            if (s->op == LOAD)
                t->reg[s->value] = w->mem[s->loc][i].value;
            else if (w->mem[s->loc][i].value != s->value)
                continue;
            run(&next, ok);
        }
    }
}

static void run(const struct world *w, verdict_fn ok)
{
    bool moved = false;

    for (unsigned k = 0; k < THREADS; k++) {
        if (!w->t[k].pc || w->t[k].pc->value == END)
            continue;
        moved = true;
        step(w, k, ok);
    }
    if (moved)
        return;
    ends++;
    faults += !ok(w->t[0].reg);
}

/* Faults of the programs in every execution. All words begin as 0. */
static unsigned long search(const struct step *a, const struct step *b, const struct step *c,
                            verdict_fn ok)
{
    static const struct step none[] = {{.value = END}};
    struct world w = {.t = {{.pc = a}, {.pc = b}, {.pc = c ? c : none}}};

    for (unsigned i = 0; i < LOCS; i++)
        w.n[i] = 1;
    ends = faults = accepted = 0;
    run(&w, ok);
    fprintf(stderr, "%lu ends, %lu accepted, %lu faults\n", ends, accepted, faults);
    CHECK(ends > 0);
    return faults;
}

#define S(l, v, o) {STORE, l, o, v}
#define L(l, r, o) {LOAD, l, o, r}
#define FR {FENCE_REL, RECORD, RLX, 0}
#define FA {FENCE_ACQ, RECORD, RLX, 0}
#define STOP {STORE, RECORD, RLX, END}

/* A change of a slot's two words and of the record, whose version is in VERSION: everything becomes
 * v; g and h are generations. */
#define LINES(v, g) S(LINE, g, RLX), FR, S(DATA, v, RLX), S(DATA2, v, RLX), S(LINE, (g) + 1, REL)
#define SHOW(v, h) S(RECORD, h, RLX), FR, S(VERSION, v, RLX), S(RECORD, (h) + 1, REL)

/* Registers: 1, 6 line; 0, 5 record around 4, its version; 2, 3 bytes. */
#define READ \
    L(LINE, 1, ACQ), L(RECORD, 0, ACQ), L(VERSION, 4, RLX), FA, L(RECORD, 5, RLX), \
        L(DATA, 2, RLX), L(DATA2, 3, RLX), FA, L(LINE, 6, RLX), STOP

static bool one_moment(const uint8_t *r, uint8_t lease, uint8_t version)
{
    if (r[1] != lease || r[6] != lease || r[0] & 1 || r[0] != r[5])
        return true;
    accepted++;
    return r[2] == version && r[3] == version && r[4] == version;
}

/* -- 2: the lease is of before the change -- */

static bool moment_before(const uint8_t *r)
{
    return one_moment(r, 0, 0);
}

static void change_ends_lease(void)
{
    static const struct step read[] = {READ};
    static const struct step no_fence[] = {
        L(LINE, 1, ACQ), L(RECORD, 0, ACQ), L(VERSION, 4, RLX), FA, L(RECORD, 5, RLX),
        L(DATA, 2, RLX), L(DATA2, 3, RLX), L(LINE, 6, RLX), STOP};
    static const struct step change[] = {LINES(1, 3), SHOW(1, 5), STOP};
    static const struct step unfenced[] = {S(LINE, 3, RLX),  S(DATA, 1, RLX), S(DATA2, 1, RLX),
                                           S(LINE, 4, REL), SHOW(1, 5),      STOP};
    static const struct step late[] = {S(DATA, 1, RLX), S(LINE, 3, RLX), FR, S(DATA2, 1, RLX),
                                       S(LINE, 4, REL), SHOW(1, 5),      STOP};
    static const struct step record_first[] = {SHOW(1, 5), LINES(1, 3), STOP};

    CHECK_EQ(search(read, change, NULL, moment_before), 0);
    CHECK(accepted > 0);
    CHECK(search(no_fence, change, NULL, moment_before) > 0);
    CHECK(search(read, unfenced, NULL, moment_before) > 0);
    CHECK(search(read, late, NULL, moment_before) > 0);
    CHECK(search(read, record_first, NULL, moment_before) > 0);
}

/* -- 3, 6: a lease given in a message (FLAG) between two changes -- */

static bool moment_between(const uint8_t *r)
{
    return one_moment(r, 4, 1);
}

static void lease_between_changes(void)
{
    static const struct step read[] = {{AWAIT, FLAG, ACQ, 1}, READ};
    static const struct step changes[] = {LINES(1, 3),  SHOW(1, 5),  S(FLAG, 1, REL),
                                          LINES(2, 11), SHOW(2, 13), STOP};
    static const struct step too_early[] = {LINES(1, 3), S(FLAG, 1, REL), SHOW(1, 5), STOP};

    CHECK_EQ(search(read, changes, NULL, moment_between), 0);
    CHECK(accepted > 0);
    CHECK(search(read, too_early, NULL, moment_between) > 0);
}

/* -- the record alone: its fields are of one moment -- */

static bool whole_record(const uint8_t *r)
{
    if (r[0] & 1 || r[0] != r[5])
        return true;
    accepted++;
    return r[2] == r[4];
}

static void record_is_whole(void)
{
    static const struct step read[] = {L(RECORD, 0, ACQ), L(VERSION, 4, RLX), L(DATA, 2, RLX), FA,
                                       L(RECORD, 5, RLX), STOP};
    static const struct step loose[] = {L(RECORD, 0, RLX), L(VERSION, 4, RLX), L(DATA, 2, RLX), FA,
                                        L(RECORD, 5, RLX), STOP};
    static const struct step show[] = {
        S(RECORD, 1, RLX), FR, S(VERSION, 1, RLX), S(DATA, 1, RLX), S(RECORD, 2, REL), STOP};
    static const struct step unfenced[] = {
        S(RECORD, 1, RLX), S(VERSION, 1, RLX), S(DATA, 1, RLX), S(RECORD, 2, REL), STOP};
    static const struct step unreleased[] = {
        S(RECORD, 1, RLX), FR, S(VERSION, 1, RLX), S(DATA, 1, RLX), S(RECORD, 2, RLX), STOP};

    CHECK_EQ(search(read, show, NULL, whole_record), 0);
    CHECK(accepted > 0);
    CHECK(search(loose, show, NULL, whole_record) > 0);
    CHECK(search(read, unfenced, NULL, whole_record) > 0);
    CHECK(search(read, unreleased, NULL, whole_record) > 0);
}

/* -- 4: a slot goes, another thread gets the memory under a lock (FLAG) and writes there -- */

static bool not_the_next_owners(const uint8_t *r)
{
    if (r[1] != 0 || r[6] != 0) /* the lease's generation */
        return true;
    accepted++;
    return r[2] == 0;
}

static void memory_of_another(void)
{
    static const struct step read[] = {L(LINE, 1, ACQ), L(DATA, 2, RLX), FA, L(LINE, 6, RLX), STOP};
    static const struct step evict[] = {S(LINE, 2, REL), FR, S(FLAG, 1, REL), STOP};
    static const struct step late[] = {S(FLAG, 1, REL), S(LINE, 2, REL), FR, STOP};
    static const struct step owner[] = {{AWAIT, FLAG, ACQ, 1}, FR, S(DATA, 1, RLX), STOP};
    static const struct step no_fence[] = {{AWAIT, FLAG, ACQ, 1}, S(DATA, 1, RLX), STOP};

    CHECK_EQ(search(read, evict, owner, not_the_next_owners), 0);
    CHECK(accepted > 0);
    CHECK(search(read, late, owner, not_the_next_owners) > 0);
    CHECK(search(read, evict, no_fence, not_the_next_owners) > 0);
}

/* -- 5: a block is replaced elsewhere; who heard that the call returned (FLAG) must not read the
 * old place -- */

static bool not_the_old_place(const uint8_t *r)
{
    if (r[1] != 0 || r[6] != 0)
        return true;
    accepted++;
    return false;
}

static void acknowledged_elsewhere(void)
{
    static const struct step read[] = {{AWAIT, FLAG, ACQ, 1}, L(LINE, 1, ACQ), L(DATA, 2, RLX), FA,
                                       L(LINE, 6, RLX),       STOP};
    static const struct step move[] = {S(DATA2, 1, RLX), S(LINE, 2, REL), FR, S(FLAG, 1, REL),
                                       STOP};
    static const struct step late[] = {S(DATA2, 1, RLX), S(FLAG, 1, REL), S(LINE, 2, REL), FR,
                                       STOP};

    CHECK_EQ(search(read, move, NULL, not_the_old_place), 0);
    CHECK(search(read, late, NULL, not_the_old_place) > 0);
}

int main(void)
{
    RUN(change_ends_lease);
    RUN(lease_between_changes);
    RUN(record_is_whole);
    RUN(memory_of_another);
    RUN(acknowledged_elsewhere);
    return 0;
}
