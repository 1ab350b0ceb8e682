/* SPDX-License-Identifier: BSD-3-Clause */
/* Queues of work, a thread for each, and points in them. One lock for all: this is for tests. */
#include "races.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct work {
    struct work *next;
    double_work_fn run; /* null: wait for `seq` of `other` */
    int always;         /* run in a spoilt context too */
    int touches;        /* memory of the device; a mark and the end of an allocation do not */
    double_stream *other;
    uint64_t seq;
    struct work *next_waiting;    /* for the same stream */
    int64_t given_ns, reached_ns; /* reached: of a wait */
    int priority;                 /* it runs with */
    uint64_t given;               /* number among all work of all streams */
    unsigned char data[DOUBLE_WORK_BYTES] __attribute__((aligned(16)));
} work;

struct double_stream {
    double_stream *next; /* among all */
    int priority;
    int device, blocking, ending, users; /* users: the thread, the handle, and those who wait for it */
    uint64_t queued, done;
    uint64_t touched; /* the last that touches memory */
    int64_t time_ns;  /* where it stands */
    double_clock *clock;
    work *first, *last;
    work *waiting; /* in other streams, for it */
    pthread_cond_t more;
};

struct double_event {
    double_event *next;
    int device, users;
    uint64_t recorded;     /* last in a stream that was recording: the point's number */
    double_stream *stream; /* null: never recorded */
    uint64_t seq;
    int64_t time_ns;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static double_stream *streams, *null_streams[DOUBLE_DEVICES];
static double_event *events;
static work *spare;
static int spoilt[DOUBLE_DEVICES];
static uint64_t given;
/* Of the work that runs on this thread. */
static __thread uint64_t given_now;
static __thread int priority_now;

/* ---- pieces of work: in memory of their own, since a step allocates nothing --------------------- */

static work *new_work(void) {
    enum { CHUNK = 1024 };
    if (!spare) {
        work *chunk = double__map(CHUNK * sizeof *chunk, PROT_READ | PROT_WRITE);
        if (!chunk) {
            fprintf(stderr, "doubles: no memory for work\n");
            abort();
        }
        for (int i = 0; i < CHUNK; i++) {
            chunk[i].next = spare;
            spare = &chunk[i];
        }
    }
    work *w = spare;
    spare = w->next;
    w->next = NULL;
    return w;
}

static void old_work(work *w) {
    w->next = spare;
    spare = w;
}

/* ---- time --------------------------------------------------------------------------------------- */

/* Work takes the time that it takes here. Waits and marks take none, as on a GPU: a thread that comes to one late, on a
 * loaded machine, does not make it late. */

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void not_before(double_stream *s, int64_t time_ns) {
    s->time_ns = time_ns > s->time_ns ? time_ns : s->time_ns;
}

static void tell_waiting(double_stream *s) {
    for (work **at = &s->waiting; *at;) {
        work *w = *at;
        if (w->seq > s->done) {
            at = &w->next_waiting;
            continue;
        }
        w->reached_ns = s->time_ns;
        *at = w->next_waiting;
    }
}

/* ---- streams ------------------------------------------------------------------------------------ */

static int n_ending; /* destroyed, with work in their queues */

static void unuse_stream(double_stream *s) {
    if (s && --s->users == 0) {
        double__clock_end(s->clock, s->queued);
        pthread_cond_destroy(&s->more);
        free(s);
    }
}

/* `w` holds the stream that it waits for. */
static void enqueue(double_stream *s, work *w) {
    w->given = ++given;
    w->given_ns = now_ns();
    w->priority = s->priority;
    if (s->last)
        s->last->next = w;
    else
        s->first = w;
    s->last = w;
    s->queued++;
    pthread_cond_signal(&s->more);
}

static void enqueue_wait(double_stream *s, double_stream *other, uint64_t seq) {
    if (other == s)
        return;
    double__clock_join(s->clock, s->queued + (other->done < seq), other->clock, seq);
    if (other->done >= seq)
        return;
    work *w = new_work();
    w->run = NULL;
    w->other = other;
    w->seq = seq;
    w->next_waiting = other->waiting;
    other->waiting = w;
    other->users++;
    enqueue(s, w);
}

/* The null stream and the blocking ones wait for each other. */
static void order_null_stream(double_stream *s) {
    double_stream *null = null_streams[s->device];
    if (s != null && s->blocking && null)
        enqueue_wait(s, null, null->queued);
    for (double_stream *o = s == null ? streams : NULL; o; o = o->next)
        if (o->device == s->device && o->blocking)
            enqueue_wait(s, o, o->queued);
}

static void pause_at_random(void) {
    static int64_t longest = -1;
    if (longest < 0)
        longest = double__number("DELAY_US", 50);
    if (longest > 0 && double__random() % 4 == 0)
        usleep(1 + double__random() % (uint32_t)longest);
}

/* Whether it may run: not in a spoilt context. */
static int begin(double_stream *s) {
    int code = double__fails("work");
    pause_at_random();
    if (code)
        double__spoil(s->device, code);
    return !double__spoilt(s->device);
}

static void *run_stream(void *arg) {
    double_stream *s = arg;
    pthread_mutex_lock(&lock);
    while (s->first || !s->ending) {
        work *w = s->first;
        if (!w) {
            pthread_cond_wait(&s->more, &lock);
            continue;
        }
        not_before(s, w->given_ns);
        if (w->run) {
            pthread_mutex_unlock(&lock);
            given_now = w->given;
            priority_now = w->priority;
            if (begin(s) || w->always)
                w->run(w->data);
            pthread_mutex_lock(&lock);
            if (w->touches)
                not_before(s, now_ns());
        } else {
            while (w->other->done < w->seq)
                pthread_cond_wait(&progress, &lock);
            not_before(s, w->reached_ns);
            unuse_stream(w->other);
        }
        s->first = w->next;
        if (!s->first)
            s->last = NULL;
        old_work(w);
        s->done++;
        tell_waiting(s);
        pthread_cond_broadcast(&progress);
    }
    unuse_stream(s);
    n_ending--;
    pthread_cond_broadcast(&progress);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static int start_thread(double_stream *s) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = pthread_create(&thread, NULL, run_stream, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed)
        pthread_detach(thread);
    return failed;
}

double_stream *double__stream_new(int device, int blocking, int priority) {
    double_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (double_stream){ .device = device, .blocking = blocking, .priority = priority, .users = 2 };
    pthread_cond_init(&s->more, NULL);
    if (start_thread(s)) {
        pthread_cond_destroy(&s->more);
        free(s);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    s->clock = double__clock_new();
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&lock);
    double__live("streams", 1);
    return s;
}

void double__stream_end(double_stream *s) {
    pthread_mutex_lock(&lock);
    for (double_stream **at = &streams; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    s->ending = 1;
    n_ending++;
    pthread_cond_signal(&s->more);
    unuse_stream(s);
    pthread_mutex_unlock(&lock);
    double__live("streams", -1);
}

void double__streams_wait(void) {
    struct timespec late;
    clock_gettime(CLOCK_REALTIME, &late);
    late.tv_sec += 2;
    pthread_mutex_lock(&lock);
    while (n_ending > 0 && pthread_cond_timedwait(&progress, &lock, &late) == 0)
        ;
    pthread_mutex_unlock(&lock);
}

double_stream *double__null_stream(int device) {
    pthread_mutex_lock(&lock);
    double_stream *s = null_streams[device];
    pthread_mutex_unlock(&lock);
    if (s)
        return s;
    s = double__stream_new(device, 0, 0);
    if (s)
        double__live("streams", -1); /* nobody's to destroy */
    return null_streams[device] = s;
}

int double__stream_known(const double_stream *s) {
    int known = 0;
    pthread_mutex_lock(&lock);
    for (double_stream *o = streams; o; o = o->next)
        known |= o == s;
    pthread_mutex_unlock(&lock);
    return known;
}

int double__stream_blocks(const double_stream *s) {
    return s->blocking;
}

int double__stream_priority(const double_stream *s) {
    return s->priority;
}

void double__stream_prefer(double_stream *s, int priority) {
    pthread_mutex_lock(&lock);
    s->priority = priority;
    pthread_mutex_unlock(&lock);
}

int double__stream_device(const double_stream *s) {
    return s->device;
}

void double__push_as(double_stream *s, double_work_fn run, const void *data, size_t bytes, int always, int touches) {
    if (bytes > DOUBLE_WORK_BYTES) {
        fprintf(stderr, "doubles: %zu bytes of arguments, at most %d\n", bytes, DOUBLE_WORK_BYTES);
        abort();
    }
    if (double__record(s, run, data, bytes, always, touches))
        return;
    pthread_mutex_lock(&lock);
    order_null_stream(s);
    double__clock_work(s->clock, s->queued + 1, run, data);
    work *w = new_work();
    w->run = run;
    w->always = always;
    w->touches = touches;
    if (bytes)
        memcpy(w->data, data, bytes);
    enqueue(s, w);
    if (touches)
        s->touched = s->queued;
    pthread_mutex_unlock(&lock);
}

uint64_t double__given(void) {
    return given_now;
}

int double__priority(void) {
    return priority_now;
}

void double__push(double_stream *s, double_work_fn run, const void *data, size_t bytes) {
    double__push_as(s, run, data, bytes, 0, 1);
}

void double__push_always(double_stream *s, double_work_fn run, const void *data, size_t bytes) {
    double__push_as(s, run, data, bytes, 1, 1);
}

void double__push_mark(double_stream *s, double_work_fn run, const void *data, size_t bytes) {
    double__push_as(s, run, data, bytes, 1, 0);
}

static void wait_for(double_stream *s, uint64_t seq) { /* with the lock */
    s->users++;
    while (s->done < seq)
        pthread_cond_wait(&progress, &lock);
    double__clock_seen(s->clock, seq);
    unuse_stream(s);
}

void double__finish(double_stream *s) {
    pthread_mutex_lock(&lock);
    order_null_stream(s);
    wait_for(s, s->queued);
    pthread_mutex_unlock(&lock);
}

int double__idle(double_stream *s) {
    pthread_mutex_lock(&lock);
    int idle = s->done == s->queued;
    if (idle)
        double__clock_seen(s->clock, s->queued);
    pthread_mutex_unlock(&lock);
    return idle;
}

uint64_t double__stream_queued(double_stream *s) {
    pthread_mutex_lock(&lock);
    uint64_t queued = s->queued;
    pthread_mutex_unlock(&lock);
    return queued;
}

int double__stream_has_passed(double_stream *s, uint64_t seq) {
    pthread_mutex_lock(&lock);
    int passed = s->done >= seq;
    if (passed)
        double__clock_seen(s->clock, seq);
    pthread_mutex_unlock(&lock);
    return passed;
}

void double__stream_follow(double_stream *s, double_stream *other, uint64_t seq) {
    pthread_mutex_lock(&lock);
    enqueue_wait(s, other, seq);
    pthread_mutex_unlock(&lock);
}

int double__device_works(int device) {
    int works = 0;
    pthread_mutex_lock(&lock);
    for (double_stream *s = streams; s; s = s->next)
        works |= s->device == device && (s->done < s->touched || !double__clock_is_seen(s->clock, s->touched));
    pthread_mutex_unlock(&lock);
    return works;
}

static void wait_for_device(int device) { /* with the lock */
    for (double_stream *s = streams; s;)
        if (s->device == device && s->done < s->queued) {
            pthread_cond_wait(&progress, &lock);
            s = streams; /* the list may have changed */
        } else
            s = s->next;
}

void double__finish_device(int device) {
    pthread_mutex_lock(&lock);
    wait_for_device(device);
    for (double_stream *s = streams; s; s = s->next)
        if (s->device == device)
            double__clock_seen(s->clock, s->queued);
    pthread_mutex_unlock(&lock);
}

void double__linger(int device) {
    pthread_mutex_lock(&lock);
    wait_for_device(device);
    pthread_mutex_unlock(&lock);
}

/* ---- events ------------------------------------------------------------------------------------- */

static void unuse_event(double_event *e) {
    if (--e->users == 0) {
        unuse_stream(e->stream);
        free(e);
    }
}

double_event *double__event_new(int device) {
    double_event *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    *e = (double_event){ .device = device, .users = 1 };
    pthread_mutex_lock(&lock);
    e->next = events;
    events = e;
    pthread_mutex_unlock(&lock);
    double__live("events", 1);
    return e;
}

void double__event_end(double_event *e) {
    pthread_mutex_lock(&lock);
    for (double_event **at = &events; *at; at = &(*at)->next)
        if (*at == e) {
            *at = e->next;
            break;
        }
    unuse_event(e);
    pthread_mutex_unlock(&lock);
    double__live("events", -1);
}

int double__event_known(const double_event *e) {
    pthread_mutex_lock(&lock);
    double_event **at = &events, *known;
    while (*at && *at != e)
        at = &(*at)->next;
    known = *at;
    if (known) { /* to the front: the events of a pass are asked for again and again */
        *at = known->next;
        known->next = events;
        events = known;
    }
    pthread_mutex_unlock(&lock);
    return known != NULL;
}

int double__event_device(const double_event *e) {
    return e->device;
}

struct record {
    double_event *event;
    double_stream *stream;
    uint64_t seq;
};

static void take_time(void *data) {
    struct record *r = data;
    pthread_mutex_lock(&lock);
    if (r->event->seq == r->seq)
        r->event->time_ns = r->stream->time_ns;
    unuse_event(r->event);
    pthread_mutex_unlock(&lock);
}

uint64_t double__event_recorded(const double_event *e) {
    return e->recorded;
}

void double__event_record(double_event *e, double_stream *s) {
    e->recorded = double__record_mark(s);
    if (e->recorded)
        return;
    pthread_mutex_lock(&lock);
    order_null_stream(s);
    double__clock_work(s->clock, s->queued + 1, take_time, NULL);
    work *w = new_work();
    struct record r = { e, s, s->queued + 1 };
    w->run = take_time;
    w->always = 1;
    w->touches = 0;
    memcpy(w->data, &r, sizeof r);
    enqueue(s, w);
    s->users++;
    unuse_stream(e->stream);
    e->stream = s;
    e->seq = s->queued;
    e->time_ns = -1;
    e->users++;
    pthread_mutex_unlock(&lock);
}

void double__event_wait(double_event *e, double_stream *s) {
    pthread_mutex_lock(&lock);
    if (e->stream)
        enqueue_wait(s, e->stream, e->seq);
    pthread_mutex_unlock(&lock);
}

int double__event_passed(double_event *e) {
    pthread_mutex_lock(&lock);
    int passed = !e->stream || e->stream->done >= e->seq;
    if (passed && e->stream)
        double__clock_seen(e->stream->clock, e->seq);
    pthread_mutex_unlock(&lock);
    return passed;
}

int double__event_is_last(double_event *e) {
    pthread_mutex_lock(&lock);
    int last = e->stream && e->seq == e->stream->queued;
    pthread_mutex_unlock(&lock);
    return last;
}

void double__event_finish(double_event *e) {
    pthread_mutex_lock(&lock);
    if (e->stream)
        wait_for(e->stream, e->seq);
    pthread_mutex_unlock(&lock);
}

int64_t double__event_time(double_event *e) {
    pthread_mutex_lock(&lock);
    int64_t time = e->stream && e->stream->done >= e->seq ? e->time_ns : -1;
    pthread_mutex_unlock(&lock);
    return time;
}

/* ---- failure ------------------------------------------------------------------------------------ */

void double__spoil(int device, int code) {
    pthread_mutex_lock(&lock);
    if (!spoilt[device])
        spoilt[device] = code == -1 ? 700 : code; /* an illegal address */
    pthread_mutex_unlock(&lock);
}

int double__spoilt(int device) {
    pthread_mutex_lock(&lock);
    int code = spoilt[device];
    pthread_mutex_unlock(&lock);
    return code;
}
