/* SPDX-License-Identifier: BSD-3-Clause */
#include "fabric.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"

void switch_fabric_init(switch_fabric *f, int ports) {
    memset(f, 0, sizeof *f);
    f->n = ports;
    for (int from = 0; from < ports; from++)
        for (int to = 0; to < ports; to++)
            switch_link_init(&f->links[from][to], (uint64_t)(from * SWITCH_PORTS + to + 1));
}

static void end_capture(switch_fabric *f) {
    if (f->capture)
        fclose(f->capture);
    f->capture = NULL;
}

void switch_fabric_clear(switch_fabric *f) {
    end_capture(f);
    switch_queue_clear(&f->queue);
}

void switch_fabric_address(int port, unsigned char out[SWITCH_ADDRESS]) {
    memset(out, 0, SWITCH_ADDRESS);
    out[0] = 2;
    out[SWITCH_ADDRESS - 1] = (unsigned char)(port + 1);
}

/* ---- frames ---------------------------------------------------------------------------------------- */

/* The port of an address, or -1: a group address or none of ours, which goes to all. */
static int port_of(const switch_fabric *f, const unsigned char *address) {
    static const unsigned char ours[SWITCH_ADDRESS - 1] = { 2 };
    int port = address[SWITCH_ADDRESS - 1] - 1;
    return memcmp(address, ours, sizeof ours) == 0 && port >= 0 && port < f->n ? port : -1;
}

static void send_on(switch_fabric *f, int from, int to, int64_t now_ns, const unsigned char *frame, size_t bytes) {
    switch_link *link = &f->links[from][to];
    int64_t due_ns = switch_link_pass(link, now_ns, bytes);
    if (due_ns >= 0 && switch_queue_add(&f->queue, due_ns, to, frame, bytes) != 0)
        link->lost++;
}

void switch_fabric_take(switch_fabric *f, int from, int64_t now_ns, const unsigned char *frame, size_t bytes) {
    if (bytes < 2 * SWITCH_ADDRESS)
        return;
    if (f->capture && switch_capture_add(f->capture, frame, bytes) != 0)
        end_capture(f);
    int port = port_of(f, frame);
    for (int to = 0; to < f->n; to++)
        if (to != from && (port < 0 || to == port))
            send_on(f, from, to, now_ns, frame, bytes);
}

/* ---- orders ---------------------------------------------------------------------------------------- */

typedef struct {
    int first, last;
} range;

static int read_range(const switch_fabric *f, const char *word, range *out) {
    char *end;
    *out = (range){ 0, f->n - 1 };
    if (!word)
        return -1;
    if (strcmp(word, "all") == 0)
        return 0;
    long port = strtol(word, &end, 10);
    *out = (range){ (int)port, (int)port };
    return end == word || *end || port < 0 || port >= f->n ? -1 : 0;
}

static const char *set_rule(switch_fabric *f, range from, range to, const char *word) {
    const char *wrong = NULL;
    for (int i = from.first; i <= from.last && !wrong; i++)
        for (int k = to.first; k <= to.last && !wrong; k++)
            wrong = switch_rules_set(&f->links[i][k].rules, word);
    return wrong;
}

static int order_link(switch_fabric *f, range from, range to, char **rest, char *answer, size_t size) {
    for (char *word; (word = strtok_r(NULL, " ", rest));) {
        const char *wrong = set_rule(f, from, to, word);
        if (wrong) {
            snprintf(answer, size, "%s: %s", word, wrong);
            return -1;
        }
    }
    snprintf(answer, size, "ok");
    return 0;
}

static int order_count(const switch_fabric *f, range from, range to, char *answer, size_t size) {
    uint64_t frames = 0, bytes = 0, lost = 0;
    for (int i = from.first; i <= from.last; i++)
        for (int k = to.first; k <= to.last; k++) {
            frames += f->links[i][k].frames;
            bytes += f->links[i][k].bytes;
            lost += f->links[i][k].lost;
        }
    snprintf(answer, size, "%" PRIu64 " %" PRIu64 " %" PRIu64, frames, bytes, lost);
    return 0;
}

static int order_capture(switch_fabric *f, const char *path, char *answer, size_t size) {
    end_capture(f);
    if (path && strcmp(path, "off") != 0)
        f->capture = switch_capture_open(path);
    int failed = !path || (!f->capture && strcmp(path, "off") != 0);
    snprintf(answer, size, "%s", !path ? "capture FILE, or off" : failed ? strerror(errno) : "ok");
    return failed ? -1 : 0;
}

int switch_fabric_order(switch_fabric *f, char *text, char *answer, size_t size) {
    char *rest = NULL, *word = strtok_r(text, " ", &rest);
    range from, to;
    if (word && strcmp(word, "capture") == 0)
        return order_capture(f, strtok_r(NULL, " ", &rest), answer, size);
    int links = word && strcmp(word, "link") == 0, counts = word && strcmp(word, "count") == 0;
    if (!links && !counts) {
        snprintf(answer, size, "%.40s: expected link, count or capture", word ? word : "nothing");
        return -1;
    }
    if (read_range(f, strtok_r(NULL, " ", &rest), &from) != 0 || read_range(f, strtok_r(NULL, " ", &rest), &to) != 0) {
        snprintf(answer, size, "%s FROM TO: each a port from 0 to %d, or all", word, f->n - 1);
        return -1;
    }
    return links ? order_link(f, from, to, &rest, answer, size) : order_count(f, from, to, answer, size);
}
