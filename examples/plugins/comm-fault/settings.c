/* SPDX-License-Identifier: BSD-3-Clause */
#include "settings.h"

#include <stdlib.h>

static const char *const ops[] = { "any",       "all_gather", "reduce_scatter", "all_reduce",
                                   "broadcast", "all_to_all", "barrier" };

const char *settings_op_name(uint32_t op) {
    return op < sizeof ops / sizeof ops[0] ? ops[op] : "?";
}

static int is(const char *text, size_t n, const char *word) {
    return strlen(word) == n && memcmp(text, word, n) == 0;
}

static tess_status bad(const char *text, size_t n, tess_error *error) {
    return tess_plugin_fail(
        error, TESS_E_INVALID,
        "comm fault: \"%.*s\" is no setting; expected delay=MS, drop, corrupt=data|tag, kill, op=NAME, "
        "at=N, rank=R, and last over=PLUGIN",
        (int)(n < 60 ? n : 60), text);
}

/* A number that ends where the setting ends. */
static int number(const char *text, size_t n, int64_t *out) {
    char *end;
    *out = strtoll(text, &end, 10);
    return n && *text >= '0' && *text <= '9' && end == text + n && *out < INT32_MAX;
}

static int read_op(const char *text, size_t n, uint32_t *out) {
    for (uint32_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (is(text, n, ops[i])) {
            *out = i;
            return 1;
        }
    return 0;
}

static int read_one(const char *text, size_t n, settings *s) {
    const char *equals = memchr(text, '=', n), *value = equals ? equals + 1 : text + n;
    size_t word = equals ? (size_t)(equals - text) : n, rest = n - word - (equals != NULL);
    int64_t x;
    if (is(text, word, "delay") && number(value, rest, &s->delay_ms))
        s->fault = DELAY;
    else if (is(text, n, "drop"))
        s->fault = DROP;
    else if (is(text, n, "corrupt=data"))
        s->fault = CORRUPT_DATA;
    else if (is(text, n, "corrupt=tag"))
        s->fault = CORRUPT_TAG;
    else if (is(text, n, "kill"))
        s->fault = KILL;
    else if (is(text, word, "at") && number(value, rest, &x))
        s->at = (uint64_t)x;
    else if (is(text, word, "rank") && number(value, rest, &x))
        s->rank = (int32_t)x;
    else
        return is(text, word, "op") && read_op(value, rest, &s->op);
    return 1;
}

tess_status settings_read(const char *args, settings *out, tess_error *error) {
    *out = (settings){ .rank = -1, .at = 1, .over = "shm" };
    while (*args) {
        size_t n = strcspn(args, ",");
        if (strncmp(args, "over=", 5) == 0) {
            out->over = args + 5;
            return TESS_OK;
        }
        if (!read_one(args, n, out))
            return bad(args, n, error);
        args += n + (args[n] == ',');
    }
    return TESS_OK;
}
