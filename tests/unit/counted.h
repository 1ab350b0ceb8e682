/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory of a source that is included behind this header: it is counted, and one request of it may be refused. */
#ifndef TEST_COUNTED_H
#define TEST_COUNTED_H
#include <stdlib.h>
#include <string.h>

static struct {
    int live, refuse; /* refuse: the request of that number, from 1 on; 0: none, or it was refused */
} counted;

static inline void *counted_got(void *p) {
    counted.live += p != NULL;
    return p;
}
static inline int counted_refuses(void) {
    return counted.refuse && --counted.refuse == 0;
}
static inline void *counted_malloc(size_t n) {
    return counted_refuses() ? NULL : counted_got(malloc(n));
}
static inline void *counted_calloc(size_t n, size_t bytes) {
    return counted_refuses() ? NULL : counted_got(calloc(n, bytes));
}
static inline void *counted_realloc(void *old, size_t n) {
    if (counted_refuses())
        return NULL;
    counted.live -= old != NULL;
    return counted_got(realloc(old, n));
}
static inline char *counted_strdup(const char *text) {
    return counted_refuses() ? NULL : counted_got(strdup(text));
}
static inline char *counted_strndup(const char *text, size_t n) {
    return counted_refuses() ? NULL : counted_got(strndup(text, n));
}
static inline void counted_free(void *p) {
    counted.live -= p != NULL;
    free(p);
}

#define malloc(n) counted_malloc(n)
#define calloc(n, bytes) counted_calloc(n, bytes)
#define realloc(old, n) counted_realloc(old, n)
#define strdup(text) counted_strdup(text)
#define strndup(text, n) counted_strndup(text, n)
#define free(p) counted_free(p)
#endif
