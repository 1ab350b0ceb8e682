/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_ranks(const char *text, size_t length, int32_t *out) {
    int32_t n = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9' || n > HOST_RANKS_MAX)
            return -1;
        n = 10 * n + (text[i] - '0');
    }
    *out = n;
    return n >= 1 && n <= HOST_RANKS_MAX ? 0 : -1;
}

static int is_name(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("._-@:%", text[i]))
            return 0;
    return length > 0 && length < HOST_NAME_BYTES && text[0] != '-';
}

/* NAME, NAME:RANKS, [ADDRESS] or [ADDRESS]:RANKS. An address of IPv6 needs its brackets. */
static int parse_host(const char *text, size_t length, host_entry *out) {
    const char *close = text[0] == '[' ? memchr(text, ']', length) : NULL;
    const char *name = close ? text + 1 : text, *colon = memchr(text, ':', length);
    size_t n = close ? (size_t)(close - name) : colon ? (size_t)(colon - text) : length;
    const char *rest = close ? close + 1 : text + n;
    size_t left = length - (size_t)(rest - text);
    out->ranks = 0;
    if (!is_name(name, n) || (left && *rest != ':') || (left && read_ranks(rest + 1, left - 1, &out->ranks) != 0))
        return -1;
    snprintf(out->name, sizeof out->name, "%.*s", (int)n, name);
    return 0;
}

/* Names come from files, and terminals take control characters for commands. */
static void make_printable(char *text) {
    for (; *text; text++)
        if (iscntrl((unsigned char)*text))
            *text = '?';
}

static int add(host_list *l, const char *text, size_t length, char why[256]) {
    if (l->n == HOSTS_MAX) {
        snprintf(why, 256, "more than %d hosts", HOSTS_MAX);
        return -1;
    }
    host_entry *more = realloc(l->all, (size_t)(l->n + 1) * sizeof *more);
    if (!more) {
        snprintf(why, 256, "no memory for %d hosts", (int)l->n + 1);
        return -1;
    }
    l->all = more;
    if (parse_host(text, length, &l->all[l->n]) == 0) {
        l->n++;
        return 0;
    }
    snprintf(why, 256, "'%.*s' is no host, expected NAME:RANKS with 1 to %d ranks", length < 100 ? (int)length : 100,
             text, HOST_RANKS_MAX);
    make_printable(why);
    return -1;
}

static int fail(host_list *l) {
    hosts_free(l);
    return -1;
}

int hosts_parse(const char *text, host_list *out, char why[256]) {
    host_list l = { .n = 0 };
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        if (add(&l, at, length, why) != 0)
            return fail(&l);
        at += length;
        if (!*at)
            break;
    }
    *out = l;
    return 0;
}

/* "a slots=4 # comment" */
static int add_line(host_list *l, char *line, char why[256]) {
    line[strcspn(line, "#\r\n")] = 0;
    const char *gap = " \t";
    char *name = line + strspn(line, gap), *more = name + strcspn(name, gap);
    size_t length = (size_t)(more - name);
    more += strspn(more, gap);
    if (!length)
        return 0;
    if (add(l, name, length, why) != 0)
        return -1;
    size_t slots = strcspn(more, gap);
    if (!*more)
        return 0;
    if (slots > 6 && strncmp(more, "slots=", 6) == 0 && !more[slots + strspn(more + slots, gap)] &&
        l->all[l->n - 1].ranks == 0 && read_ranks(more + 6, slots - 6, &l->all[l->n - 1].ranks) == 0)
        return 0;
    snprintf(why, 256, "'%.100s' behind host %.100s, expected slots=RANKS", more, l->all[l->n - 1].name);
    make_printable(why);
    return -1;
}

int hosts_read(const char *path, host_list *out, char why[256]) {
    host_list l = { .n = 0 };
    char line[512], reason[200];
    int number = 0, bad = 0;
    FILE *f = fopen(path, "re");
    if (!f) {
        snprintf(why, 256, "'%.150s' cannot be opened: %s", path, strerror(errno));
        return -1;
    }
    while (!bad && fgets(line, sizeof line, f)) {
        number++;
        bad = add_line(&l, line, why);
    }
    fclose(f);
    snprintf(reason, sizeof reason, "%s", bad ? why : "no host in it");
    if (bad || !l.n) {
        snprintf(why, 256, "%.50s line %d: %s", path, number, reason);
        return fail(&l);
    }
    *out = l;
    return 0;
}

void hosts_free(host_list *l) {
    free(l->all);
    *l = (host_list){ .n = 0 };
}
