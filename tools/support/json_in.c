/* SPDX-License-Identifier: BSD-3-Clause */
/* Wraps the core's scanner, which also reads the headers of checkpoints. */
#include "json_in.h"

#include "core/base/json_scan.h"

static json_scan scanner(const json_in *in) {
    return (json_scan){ .text = in->text, .bytes = in->bytes, .at = in->at, .expected = in->expected };
}

static int move_on(json_in *in, const json_scan *s, int result) {
    in->at = s->at;
    in->expected = s->expected;
    return result;
}

int json_in_char(json_in *in, char c) {
    json_scan s = scanner(in);
    int result = json_scan_char(&s, c);
    return move_on(in, &s, result);
}

int json_in_if(json_in *in, char c) {
    json_scan s = scanner(in);
    int result = json_scan_if(&s, c);
    return move_on(in, &s, result);
}

int json_in_string(json_in *in, char *out, size_t capacity) {
    json_scan s = scanner(in);
    int result = json_scan_string(&s, out, capacity);
    return move_on(in, &s, result);
}

int json_in_uint(json_in *in, uint64_t *out) {
    json_scan s = scanner(in);
    int result = json_scan_uint(&s, out);
    return move_on(in, &s, result);
}

int json_in_skip(json_in *in) {
    json_scan s = scanner(in);
    int result = json_scan_skip(&s);
    return move_on(in, &s, result);
}

int json_in_end(json_in *in) {
    json_scan s = scanner(in);
    int result = json_scan_end(&s);
    return move_on(in, &s, result);
}
