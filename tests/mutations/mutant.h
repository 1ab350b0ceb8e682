/* SPDX-License-Identifier: BSD-3-Clause */
/* What tests/mutations/mutants.py puts around a source: MUTANT(i) says whether this file's mutant i is switched on, by
 * MUTANT=FILE:i. Included once before the source, where nothing may be included lest it decide what the headers show,
 * and once behind it. A test may include several sources: MUTANT_ID tells their names apart. */
#ifndef MUTANT
#define MUTANT_JOIN(a, b) a##b
#define MUTANT_JOINED(a, b) MUTANT_JOIN(a, b)
#define mutant_now MUTANT_JOINED(mutant_now_, MUTANT_ID)
#define mutant_seen MUTANT_JOINED(mutant_seen_, MUTANT_ID)
#define mutant_is MUTANT_JOINED(mutant_is_, MUTANT_ID)
#define mutant_map MUTANT_JOINED(mutant_map_, MUTANT_ID)
#define mutant_read MUTANT_JOINED(mutant_read_, MUTANT_ID)
static int mutant_now; /* of this file; 0: none, -1: those that are reached are noted */
static unsigned char *mutant_seen;
__attribute__((noinline, cold, unused)) static int mutant_is(int i) {
    if (mutant_now < 0)
        mutant_seen[i - 1] = 1;
    return mutant_now == i;
}
#define MUTANT(i) (__builtin_expect(mutant_now, 0) && mutant_is(i))
#else
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
/* MUTANTS_REACHED is a file with a byte for each mutant of all files; MUTANTS_FIRSTS says where each file's begin, and
 * how many it has. Only their pages are mapped, since a witness of the matrix counts what a process maps. Parentheses:
 * a source may have a macro getenv. */
static unsigned char *mutant_map(const char *seen, const char *firsts) {
    char name[256];
    size_t first = 0, count = 0, page = (size_t)sysconf(_SC_PAGESIZE), begin;
    FILE *f = (fopen)(firsts, "r");
    int found = 0, fd = (open)(seen, O_RDWR | O_CLOEXEC);
    while (f && !found && (fscanf)(f, "%zu %zu %255s", &first, &count, name) == 3)
        found = (strcmp)(name, MUTANT_FILE) == 0;
    begin = first / page * page;
    void *at =
        !found ? MAP_FAILED : (mmap)(NULL, first - begin + count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)begin);
    if (f)
        (fclose)(f);
    (close)(fd);
    return at == MAP_FAILED ? NULL : (unsigned char *)at + (first - begin);
}

__attribute__((constructor(101))) static void mutant_read(void) {
    const char *on = (getenv)("MUTANT"), *seen = (getenv)("MUTANTS_REACHED"), *firsts = (getenv)("MUTANTS_FIRSTS");
    size_t length = sizeof MUTANT_FILE - 1;
    if (on && (strncmp)(on, MUTANT_FILE ":", length + 1) == 0)
        mutant_now = atoi(on + length + 1);
    if (seen && firsts && (mutant_seen = mutant_map(seen, firsts)))
        mutant_now = -1;
}
#undef MUTANT
#undef MUTANT_FILE
#undef MUTANT_ID
#endif
