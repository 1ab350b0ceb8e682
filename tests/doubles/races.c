/* SPDX-License-Identifier: BSD-3-Clause */
/* A vector clock for each stream: of every stream, how much of its work is over when this one's next begins. */
#include "races.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { STREAMS = 64, HISTORY = 256, KINDS = 16, TOUCHES = 1 << 13, TOLD = 20 };

typedef struct {
    uint64_t passed[STREAMS]; /* by stream */
} clock_of;

typedef struct {
    uint64_t seq; /* from here on */
    clock_of clock;
} moment;

struct double_clock {
    int slot;
    uint64_t base; /* of its numbers: those of the stream that had the slot before are smaller */
    clock_of now;
    uint64_t n; /* moments ever */
    moment history[HISTORY];
};

typedef struct {
    const char *name;
    uintptr_t from, to;
    uint64_t at; /* number in its stream */
    int slot, writes;
} touch;

struct double_access {
    const double_clock *clock;
    uint64_t at;
};

static struct {
    double_work_fn run;
    double_describe_fn *describe;
} kinds[KINDS];
static clock_of host;
static struct {
    int taken;
    uint64_t last;
} slots[STREAMS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static touch touches[TOUCHES];
static int n_touches, told;

void double__describes(double_work_fn run, double_describe_fn *describe) {
    int i = 0;
    while (i < KINDS - 1 && kinds[i].run)
        i++;
    kinds[i].run = run;
    kinds[i].describe = describe;
}

/* ---- clocks --------------------------------------------------------------------------------------- */

double_clock *double__clock_new(void) {
    int slot = 0;
    if (!double__number("RACES", 0))
        return NULL;
    while (slot < STREAMS && slots[slot].taken)
        slot++;
    double_clock *c = slot < STREAMS ? double__map(sizeof *c, PROT_READ | PROT_WRITE) : NULL;
    if (!c)
        return NULL;
    slots[slot].taken = 1;
    c->slot = slot;
    c->base = slots[slot].last;
    return c;
}

void double__clock_end(double_clock *c, uint64_t queued) {
    if (!c)
        return;
    slots[c->slot].taken = 0;
    slots[c->slot].last = c->base + queued;
    double__unmap(c, sizeof *c);
}

static int raise_to(clock_of *c, const clock_of *to) {
    int raised = 0;
    for (int i = 0; i < STREAMS; i++)
        if (to->passed[i] > c->passed[i]) {
            c->passed[i] = to->passed[i];
            raised = 1;
        }
    return raised;
}

/* As it was for that work. Where that is too long ago, the oldest that is left, which knows more. */
static const clock_of *clock_at(const double_clock *c, uint64_t seq) {
    static const clock_of nothing;
    uint64_t i = c->n, oldest = c->n > HISTORY ? c->n - HISTORY : 0;
    while (i > oldest && c->history[(i - 1) % HISTORY].seq > seq)
        i--;
    if (i == 0)
        return &nothing;
    return &c->history[(i > oldest ? i - 1 : oldest) % HISTORY].clock;
}

static void join_clock(clock_of *into, const double_clock *other, uint64_t seq) {
    raise_to(into, clock_at(other, seq));
    if (other->base + seq > into->passed[other->slot])
        into->passed[other->slot] = other->base + seq;
}

void double__clock_seen(const double_clock *other, uint64_t seq) {
    if (other)
        join_clock(&host, other, seq);
}

int double__clock_is_seen(const double_clock *c, uint64_t seq) {
    return !c || !seq || host.passed[c->slot] >= c->base + seq;
}

/* From work `seq` on. */
static void note_moment(double_clock *c, uint64_t seq) {
    moment *last = c->n ? &c->history[(c->n - 1) % HISTORY] : NULL;
    if (last && memcmp(&last->clock, &c->now, sizeof c->now) == 0)
        return;
    moment *m = last && last->seq == seq ? last : &c->history[c->n++ % HISTORY];
    m->seq = seq;
    m->clock = c->now;
}

/* Who waits for a point behind this learns of it, also when no work lies between. */
void double__clock_join(double_clock *into, uint64_t at, const double_clock *other, uint64_t seq) {
    if (!into || !other || into == other)
        return;
    join_clock(&into->now, other, seq);
    note_moment(into, at);
}

/* ---- what work touches ---------------------------------------------------------------------------- */

static int overlaps(const touch *a, const touch *b) {
    return a->from < b->to && b->from < a->to;
}

static void tell(const touch *later, const touch *earlier) {
    double__live("races", 1);
    if (told++ < TOLD)
        fprintf(stderr, "doubles: race: %s %s %llu bytes that %s %s in another stream, and nothing orders the two\n",
                later->name, later->writes ? "writes" : "reads", (unsigned long long)(later->to - later->from),
                earlier->name, earlier->writes ? "writes" : "reads");
}

/* What the host has seen the end of races with nothing that comes. */
static void forget_old(void) {
    int n = 0;
    for (int i = 0; i < n_touches; i++)
        if (touches[i].at > host.passed[touches[i].slot])
            touches[n++] = touches[i];
    n_touches = n;
    if (n == TOUCHES) {
        n_touches = n - n / 2;
        memmove(touches, touches + n / 2, (size_t)n_touches * sizeof *touches);
    }
}

/* The same stream's earlier touch of the same bytes is covered by this one. */
static void keep(const touch *t) {
    for (int i = 0; i < n_touches; i++)
        if (touches[i].slot == t->slot && touches[i].from == t->from && touches[i].to == t->to &&
            touches[i].writes == t->writes) {
            touches[i] = *t;
            return;
        }
    if (n_touches == TOUCHES)
        forget_old();
    touches[n_touches++] = *t;
}

static void note(double_access *a, const char *name, const void *at, uint64_t bytes, int writes) {
    const double_clock *c = a->clock;
    touch t = { name, (uintptr_t)at, (uintptr_t)at + bytes, a->at, c->slot, writes };
    if (!bytes || !(double__is_device(at) || double__is_locked(at)))
        return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_touches; i++)
        if (touches[i].slot != t.slot && (writes || touches[i].writes) && overlaps(&t, &touches[i]) &&
            touches[i].at > c->now.passed[touches[i].slot])
            tell(&t, &touches[i]);
    keep(&t);
    pthread_mutex_unlock(&lock);
}

void double__reads(double_access *a, const char *name, const void *at, uint64_t bytes) {
    note(a, name, at, bytes, 0);
}

void double__writes(double_access *a, const char *name, const void *at, uint64_t bytes) {
    note(a, name, at, bytes, 1);
}

void double__reads_words(double_access *a, const char *name, const void *args, size_t bytes) {
    const void *word;
    for (size_t at = 0; at + sizeof word <= bytes; at += sizeof word) {
        memcpy(&word, (const char *)args + at, sizeof word);
        if (word)
            double__reads(a, name, word, 1);
    }
}

/* From here on the stream is behind what the host knows; who waits for this work learns as much. */
static void begin_work(double_clock *c, uint64_t seq) {
    raise_to(&c->now, &host);
    note_moment(c, seq);
}

void double__clock_work(double_clock *c, uint64_t seq, double_work_fn run, const void *data) {
    if (!c)
        return;
    begin_work(c, seq);
    double_access a = { c, c->base + seq };
    for (int i = 0; i < KINDS && kinds[i].run; i++)
        if (kinds[i].run == run)
            kinds[i].describe(data, &a);
}

void double__races_forget(const void *at, uint64_t bytes) {
    touch gone = { .from = (uintptr_t)at, .to = (uintptr_t)at + bytes };
    pthread_mutex_lock(&lock);
    int n = 0;
    for (int i = 0; i < n_touches; i++)
        if (!overlaps(&gone, &touches[i]))
            touches[n++] = touches[i];
    n_touches = n;
    pthread_mutex_unlock(&lock);
}
