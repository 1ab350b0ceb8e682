/* SPDX-License-Identifier: BSD-3-Clause */
#include "group_settings.h"

#include <stdio.h>
#include <string.h>

#include <tessera/plugin_options.h>
#include "tools/support/say.h"

tess_status group_settings_check(const char *model, const char *where, const train_group *g) {
    int is_step = strcmp(g->schedule, "step") == 0;
    if (is_step && strcmp(model, "mnist") != 0)
        return tess_fail(TESS_E_INVALID, "%sschedule is step, which falls with each epoch, but %s counts steps", where,
                         model);
    if (g->min_lr < 0)
        return TESS_OK;
    if (is_step || strcmp(g->schedule, "constant") == 0)
        return tess_fail(TESS_E_INVALID,
                         "%smin-lr is set, but only linear, cosine and wsd end with it and schedule is %s", where,
                         g->schedule);
    if (!(g->min_lr <= g->lr))
        return tess_fail(TESS_E_INVALID, "%smin-lr is %g, expected a rate from 0 to lr, %g", where, g->min_lr, g->lr);
    return TESS_OK;
}

static tess_status refuse(const train_group *g, const char *what, const char *item) {
    return tess_fail(
        TESS_E_INVALID,
        "groups '%.*s': %s%s; expected NAMES:KEY=VALUE,… with lr, schedule, warmup, min-lr or weight-decay, "
        "and ';' between groups",
        (int)g->names_bytes, g->names, what, item);
}

static int find_schedule(const char *text, const char **out) {
    static const char *const names[] = { "constant", "linear", "cosine", "wsd", "step" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], text) == 0) {
            *out = names[i];
            return 1;
        }
    return 0;
}

static int read_rate(const char *text, double *out) {
    double value;
    if (!tess_option_parse_real(text, &value) || value < 0 || value > 1e6)
        return 0;
    *out = value;
    return 1;
}

static tess_status read_item(train_group *g, const char *item) {
    const char *value = strchr(item, '=');
    const size_t key = value ? (size_t)(value++ - item) : 0;
#define IS(name) (key == sizeof name - 1 && memcmp(item, name, key) == 0)
    int good = 0;
    if (IS("lr"))
        good = read_rate(value, &g->lr);
    else if (IS("schedule"))
        good = find_schedule(value, &g->schedule);
    else if (IS("warmup"))
        good = tess_option_parse_int(value, &g->warmup) && g->warmup >= 0;
    else if (IS("min-lr"))
        good = read_rate(value, &g->min_lr);
    else if (IS("weight-decay"))
        good = read_rate(value, &g->weight_decay);
    else
        return refuse(g, "unknown setting ", item);
#undef IS
    return good ? TESS_OK : refuse(g, "bad value in ", item);
}

/* Reads the settings from `p` to `end`. */
static tess_status read_items(train_group *g, const char *p, const char *end) {
    char item[64];
    while (p < end) {
        const char *comma = memchr(p, ',', (size_t)(end - p)), *to = comma ? comma : end;
        snprintf(item, sizeof item, "%.*s", (int)(to - p), p); /* one that is cut is no setting either */
        TRY(read_item(g, item));
        p = to + (to < end);
    }
    return TESS_OK;
}

static tess_status read_group(const char *model, const char *p, const char *end, train_group *g) {
    const char *colon = memchr(p, ':', (size_t)(end - p));
    char where[96];
    g->names = p;
    g->names_bytes = (int32_t)((colon ? colon : end) - p);
    snprintf(where, sizeof where, "groups '%.*s': ", g->names_bytes < 64 ? (int)g->names_bytes : 64, p);
    if (!colon || colon == p || colon + 1 == end)
        return refuse(g, "names or settings are missing", "");
    TRY(read_items(g, colon + 1, end));
    return group_settings_check(model, where, g);
}

tess_status group_settings_read(const char *model, const char *text, const train_group *run,
                                train_group out[TRAIN_GROUPS], int32_t *n) {
    *n = 0;
    while (text && *text) {
        const char *end = text + strcspn(text, ";");
        if (*n == TRAIN_GROUPS)
            return tess_fail(TESS_E_INVALID, "groups: more than %d", TRAIN_GROUPS);
        out[*n] = *run;
        TRY(read_group(model, text, end, &out[*n]));
        ++*n;
        text = end + (*end == ';');
        text += strspn(text, " ");
    }
    return TESS_OK;
}
