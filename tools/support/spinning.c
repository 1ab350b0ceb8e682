/* SPDX-License-Identifier: BSD-3-Clause */
#include "spinning.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* Returns 1 if other processes run now and used at least half a core in the last minute. Either sign alone may be
 * brief. */
static int is_shared(void) {
    double minute = 0;
    int running = 0;
    FILE *f = fopen("/proc/loadavg", "re");
    int fields = f ? fscanf(f, "%lf %*s %*s %d/", &minute, &running) : 0;
    if (f)
        fclose(f);
    return fields == 2 && minute >= 0.5 && running > 1;
}

int tool_spinning_hurts(int64_t threads) {
    if (getenv(TOOL_SPIN_VARIABLE) || getenv("OMP_WAIT_POLICY"))
        return 0;
    return threads > sysconf(_SC_NPROCESSORS_ONLN) || is_shared();
}

/* Returns a copy of the environment with one more entry. */
static char **with(char *entry) {
    size_t n = 0;
    while (environ[n])
        n++;
    char **entries = calloc(n + 2, sizeof *entries);
    if (!entries)
        return NULL;
    memcpy(entries, environ, n * sizeof *entries);
    entries[n] = entry;
    return entries;
}

void tool_spinning_bound(char **argv) {
    char self[PATH_MAX], entry[64];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0 || getauxval(AT_SECURE) || !tool_spinning_hurts(0))
        return;
    self[n] = '\0';
    snprintf(entry, sizeof entry, TOOL_SPIN_VARIABLE "=%d", TOOL_SPIN_COUNT);
    char **entries = with(entry);
    if (entries)
        execve(self, argv, entries); /* if that fails, the process continues unchanged */
    free(entries);
}
