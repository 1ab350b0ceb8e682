/* SPDX-License-Identifier: BSD-3-Clause */
#include "crash.h"

#include "log.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

_Thread_local const tess__crash_place *tess__crash_now;

static const struct {
    int number;
    const char *text;
} signals[] = { { SIGSEGV, "11 (Segmentation fault)" },
                { SIGBUS, "7 (Bus error)" },
                { SIGFPE, "8 (Floating point exception)" },
                { SIGILL, "4 (Illegal instruction)" },
                { SIGABRT, "6 (Aborted)" } };
enum { SIGNALS = sizeof signals / sizeof signals[0] };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int watchers, taken[SIGNALS];

typedef struct {
    char text[640];
    size_t n;
} line;

/* Nothing here allocates or locks: it runs in a signal handler. */
static void add(line *l, const char *text) {
    while (*text && l->n < sizeof l->text - 2)
        l->text[l->n++] = *text++;
}

static void add_number(line *l, int32_t value) {
    char digits[12];
    size_t n = sizeof digits - 1;
    digits[n] = 0;
    do
        digits[--n] = (char)('0' + value % 10);
    while (value /= 10);
    add(l, digits + n);
}

static void say(const tess__crash_place *p, const char *signal_text) {
    line l = { .n = 0 };
    add(&l, "tessera");
    if (tess__log_rank() >= 0) {
        add(&l, "[");
        add_number(&l, tess__log_rank());
        add(&l, "]");
    }
    add(&l, ": error: ");
    const char *words[] = {
        p->kind,    " ", p->plugin, ": its ", p->doing, " of parameter \"", p->subject, "\" ended with signal ",
        signal_text
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        add(&l, words[i]);
    l.text[l.n++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, l.text, l.n);
    (void)ignored;
}

static void on_signal(int number) {
    const tess__crash_place *place = tess__crash_now;
    tess__crash_now = NULL;
    for (int i = 0; place && i < SIGNALS; i++)
        if (signals[i].number == number)
            say(place, signals[i].text);
    raise(number); /* SA_RESETHAND has put the default back, and it comes when the handler returns */
}

void tess__crash_watch(void) {
    pthread_mutex_lock(&lock);
    for (int i = 0; !watchers && i < SIGNALS; i++) {
        struct sigaction own = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND }, before;
        taken[i] = sigaction(signals[i].number, NULL, &before) == 0 && !(before.sa_flags & SA_SIGINFO) &&
                   before.sa_handler == SIG_DFL && sigaction(signals[i].number, &own, NULL) == 0;
    }
    watchers++;
    pthread_mutex_unlock(&lock);
}

void tess__crash_unwatch(void) {
    pthread_mutex_lock(&lock);
    for (int i = 0; watchers == 1 && i < SIGNALS; i++) {
        struct sigaction now;
        if (taken[i] && sigaction(signals[i].number, NULL, &now) == 0 && now.sa_handler == on_signal)
            signal(signals[i].number, SIG_DFL); /* unless the program has taken it since */
    }
    watchers--;
    pthread_mutex_unlock(&lock);
}
