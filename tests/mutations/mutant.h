/* SPDX-License-Identifier: BSD-3-Clause */
/* What tests/mutations/mutants.py puts around a source: MUTANT(i) says whether this file's mutant i is switched on.
 * Included once before the source, where nothing may be included lest it decide what the headers show, and once behind
 * it. */
#ifndef MUTANT
static int mutant_now; /* of this file; 0: none, -1: those that are reached are noted */
static unsigned char *mutant_seen;
__attribute__((noinline, cold, unused)) static int mutant_is(int i) {
    if (mutant_now < 0)
        mutant_seen[MUTANT_FIRST + i - 2] = 1;
    return mutant_now == i;
}
#define MUTANT(i) (__builtin_expect(mutant_now, 0) && mutant_is(i))
#else
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
/* Parentheses: a source may have a macro getenv. */
__attribute__((constructor(101))) static void mutant_read(void) {
    const char *number = (getenv)("MUTANT"), *seen = (getenv)("MUTANTS_REACHED");
    int i = number ? atoi(number) - MUTANT_FIRST + 1 : 0, fd = seen ? (open)(seen, O_RDWR | O_CLOEXEC) : -1;
    if (i >= 1 && i <= MUTANT_COUNT)
        mutant_now = i;
    if (fd < 0)
        return;
    void *at = (mmap)(NULL, MUTANTS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (close)(fd);
    if (at == MAP_FAILED)
        return;
    mutant_seen = at;
    mutant_now = -1;
}
#endif
