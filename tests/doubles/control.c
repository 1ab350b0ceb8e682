/* SPDX-License-Identifier: BSD-3-Clause */
/* Variables, counts of calls, failures on demand, and what is left at exit. */
#include "double.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NAMES = 256, KINDS = 32 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const char *name;
    uint64_t calls;
} names[NAMES];
static struct {
    const char *kind;
    int64_t live;
} kinds[KINDS];
static uint64_t random_state;

/* Threads that do a stream's work ask for variables while a test sets some, and setenv may move the list that getenv
 * walks. So the tests' setenv and unsetenv are these. */
static pthread_mutex_t environment = PTHREAD_MUTEX_INITIALIZER;

static const char *ask_environment(const char *name) {
    pthread_mutex_lock(&environment);
    const char *text = getenv(name); /* glibc never frees it */
    pthread_mutex_unlock(&environment);
    return text;
}

__attribute__((visibility("default"))) int setenv(const char *name, const char *value, int overwrite) {
    int (*libc)(const char *, const char *, int);
    *(void **)&libc = dlsym(RTLD_NEXT, "setenv");
    pthread_mutex_lock(&environment);
    int failed = libc(name, value, overwrite);
    pthread_mutex_unlock(&environment);
    return failed;
}

__attribute__((visibility("default"))) int unsetenv(const char *name) {
    int (*libc)(const char *);
    *(void **)&libc = dlsym(RTLD_NEXT, "unsetenv");
    pthread_mutex_lock(&environment);
    int failed = libc(name);
    pthread_mutex_unlock(&environment);
    return failed;
}

const char *double__variable(const char *name) {
    static const char prefix[] = "TESSERA_DOUBLE_"; /* put together by hand: every call of a library asks */
    char full[64];
    size_t length = strlen(name);
    memcpy(full, prefix, sizeof prefix - 1);
    memcpy(full + sizeof prefix - 1, name, length < sizeof full - sizeof prefix ? length + 1 : 1);
    const char *text = ask_environment(full);
    return text && *text ? text : NULL;
}

int64_t double__number(const char *name, int64_t fallback) {
    const char *text = double__variable(name);
    return text ? strtoll(text, NULL, 0) : fallback;
}

static uint64_t count(const char *name) {
    int n = 0;
    for (; n < NAMES && names[n].name; n++) /* most come from the same place again */
        if (names[n].name == name)
            return ++names[n].calls;
    for (int i = 0; i < n; i++)
        if (strcmp(names[i].name, name) == 0)
            return ++names[i].calls;
    if (n == NAMES)
        return 0;
    names[n].name = name;
    return ++names[n].calls;
}

/* "NAME:N[:CODE][@RANK]", several with commas between. */
static int asked_to_fail(const char *wish, const char *name, uint64_t call) {
    size_t length = strlen(name);
    while (wish) {
        char *end = (char *)wish;
        if (strncmp(wish, name, length) == 0 && wish[length] == ':') {
            uint64_t at = strtoull(wish + length + 1, &end, 10);
            int code = *end == ':' ? (int)strtol(end + 1, &end, 10) : -1;
            const char *rank = ask_environment("RANK");
            int here = *end != '@' || (rank && strtol(end + 1, NULL, 10) == strtol(rank, NULL, 10));
            if (at == call && here)
                return code;
        }
        wish = strchr(wish, ',');
        wish = wish ? wish + 1 : NULL;
    }
    return 0;
}

int double__asked(const char *variable, const char *name, uint64_t call) {
    return asked_to_fail(double__variable(variable), name, call);
}

static atomic_int hanging;
int double__hanging(void) {
    return atomic_load(&hanging);
}
void double__hang(int by) {
    atomic_fetch_add(&hanging, by);
}

int double__fails(const char *name) {
    enum { LATE_US = 400000 };
    pthread_mutex_lock(&lock);
    uint64_t call = count(name);
    pthread_mutex_unlock(&lock);
    if (asked_to_fail(double__variable("LATE"), name, call)) {
        double__hang(1);
        usleep(LATE_US);
        double__hang(-1);
    }
    return asked_to_fail(double__variable("FAIL"), name, call);
}

uint64_t double__counted(const char *name) {
    uint64_t calls = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < NAMES && names[i].name; i++)
        if (strcmp(names[i].name, name) == 0)
            calls = names[i].calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

int double__hangs(const char *name) {
    return asked_to_fail(double__variable("HANG"), name, double__counted(name)) != 0;
}

void double__live(const char *kind, int64_t by) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < KINDS; i++) {
        if (!kinds[i].kind)
            kinds[i].kind = kind;
        if (strcmp(kinds[i].kind, kind) == 0) {
            kinds[i].live += by;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

uint32_t double__random(void) {
    pthread_mutex_lock(&lock);
    if (!random_state)
        random_state = (uint64_t)double__number("SEED", 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)getpid();
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint32_t value = (uint32_t)(random_state >> 33);
    pthread_mutex_unlock(&lock);
    return value;
}

void double__peak(const char *name, uint64_t value) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < NAMES; i++) {
        if (!names[i].name)
            names[i].name = name;
        if (strcmp(names[i].name, name) == 0) {
            names[i].calls = value > names[i].calls ? value : names[i].calls;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

void *double__map(uint64_t bytes, int prot) {
    long at = syscall(SYS_mmap, NULL, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == -1 ? NULL : (void *)at;
}

void double__unmap(void *at, uint64_t bytes) {
    syscall(SYS_munmap, at, bytes);
}

static void write_log(void) {
    const char *path = double__variable("LOG"), *rank = getenv("RANK");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        return;
    char text[NAMES * 64];
    size_t at = 0;
    for (int i = 0; i < NAMES && names[i].name; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s %s %llu\n", rank ? rank : "0", names[i].name,
                               (unsigned long long)names[i].calls);
    if (write(fd, text, at) != (ssize_t)at)
        fprintf(stderr, "doubles: cannot write %s\n", path);
    close(fd);
}

static atomic_int endless;
void double__endless(int by) {
    atomic_fetch_add(&endless, by);
}

__attribute__((destructor)) static void at_exit(void) {
    int leaks = 0;
    if (!atomic_load(&endless)) /* after a failure nobody waits for what they give back */
        double__streams_wait();
    write_log();
    for (int i = 0; i < KINDS && kinds[i].kind; i++)
        if (kinds[i].live) {
            fprintf(stderr, "doubles: left behind: %lld %s\n", (long long)kinds[i].live, kinds[i].kind);
            leaks = 1;
        }
    int code = (int)double__number("LEAKS", 0);
    if (leaks && code && !atomic_load(&endless)) {
        fflush(NULL);
        _exit(code);
    }
}
