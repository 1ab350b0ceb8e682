/* SPDX-License-Identifier: BSD-3-Clause */
/* Lines that a test makes equal those of a file that is kept. With TESSERA_TEST_UPDATE=1 the test writes the file
 * instead: git then shows which lines a change has changed. */
#ifndef TEST_KEPT_H
#define TEST_KEPT_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT_LINE = 900 };
typedef struct {
    FILE *file;
    int writes, lines, others;
} kept;

/* NAME: below tests/unit. */
static inline kept kept_open(const char *name) {
    char path[512];
    kept k = { .writes = getenv("TESSERA_TEST_UPDATE") != NULL };
    snprintf(path, sizeof path, TESSERA_SOURCE_DIR "/tests/unit/%s", name);
    k.file = fopen(path, k.writes ? "w" : "r");
    assert_non_null(k.file);
    return k;
}

static inline void kept_line(kept *k, const char *line) {
    char want[KEPT_LINE] = "";
    k->lines++;
    if (k->writes)
        fprintf(k->file, "%s\n", line);
    else if (!fgets(want, sizeof want, k->file) || strncmp(want, line, strlen(line)) != 0 ||
             strcmp(want + strlen(line), "\n") != 0)
        print_error("kept: %snow:  %s\n", want, line), k->others++;
}

static inline void kept_close(kept *k) {
    char more[2];
    if (!k->writes && fgets(more, sizeof more, k->file))
        k->others++;
    assert_int_equal(fclose(k->file), 0);
    if (k->others)
        fail_msg("%d of %d lines are not those that are kept; TESSERA_TEST_UPDATE=1 writes them anew", k->others,
                 k->lines);
}
#endif
