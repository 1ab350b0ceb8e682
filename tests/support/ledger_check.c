/* SPDX-License-Identifier: BSD-3-Clause */
#include "ledger_check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/readers/ledger.h"

static void count(void *user, const tess_ledger_point *p) {
    (void)p;
    ++*(size_t *)user;
}

static void take(void *user, const tess_ledger_point *p) {
    ledger_check *c = user;
    c->planned[c->n_planned++] = *p;
}

tess_status ledger_check_open(ledger_check *c, tess *t, uint32_t of, uint64_t (*allocations)(void)) {
    size_t n = 0;
    *c = (ledger_check){ .t = t, .allocations = allocations };
    tess_status s = tess_ledger_plan(t, of, count, &n);
    if (s)
        return s;
    c->planned = calloc(n, sizeof *c->planned);
    return c->planned ? tess_ledger_plan(t, of, take, c) : TESS_E_NOMEM;
}

static void differ(ledger_check *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (!c->differ++)
        vsnprintf(c->first, sizeof c->first, format, args);
    va_end(args);
}

static void compare_bytes(ledger_check *c, const tess_ledger_point *p, const char *whose, const char *domain,
                          const uint64_t found[16], const uint64_t planned[16]) {
    for (uint32_t k = 0; k < 16; k++)
        if (found[k] != planned[k])
            differ(c, "point %llu, %s of %s in %s, %s %s of %s: %llu bytes measured, %llu planned",
                   (unsigned long long)p->index, tess__point_name(p->point), p->name ? p->name : "-",
                   p->pass ? p->pass : "-", domain, tess__category_name(k), whose, (unsigned long long)found[k],
                   (unsigned long long)planned[k]);
}

static void compare_domains(ledger_check *c, const tess_ledger_point *p, const tess_ledger_point *q) {
    static const char *const names[] = { "", "device", "host" };
    for (uint32_t d = 1; d < 3; d++) {
        compare_bytes(c, p, "all", names[d], p->bytes[d], q->bytes[d]);
        compare_bytes(c, p, "the unit", names[d], p->unit_bytes[d], q->unit_bytes[d]);
    }
    compare_bytes(c, p, "all", "disk", p->disk_bytes, q->disk_bytes);
    compare_bytes(c, p, "the unit", "disk", p->disk_unit_bytes, q->disk_unit_bytes);
}

static int same_text(const char *a, const char *b) {
    return a == b || (a && b && strcmp(a, b) == 0);
}

static void compare(void *user, const tess_ledger_point *p) {
    ledger_check *c = user;
    if (c->at >= c->n_planned) {
        differ(c, "point %llu is one more than planned", (unsigned long long)p->index);
        return;
    }
    const tess_ledger_point *q = &c->planned[c->at++];
    c->points++;
    if (p->point != q->point || p->unit != q->unit || p->index != q->index || !same_text(p->name, q->name))
        differ(c, "point %llu is %s of unit %d, planned is %s of unit %d", (unsigned long long)p->index,
               tess__point_name(p->point), p->unit, tess__point_name(q->point), q->unit);
    if (p->point != TESS_LEDGER_PEAK && !same_text(p->pass, q->pass))
        differ(c, "point %llu is in pass %s, planned is %s", (unsigned long long)p->index, p->pass, q->pass);
    compare_domains(c, p, q);
    if (c->allocations && c->allocations() != c->outside)
        differ(c, "point %llu, %s of %s: %llu allocations beside the arenas", (unsigned long long)p->index,
               tess__point_name(p->point), p->name ? p->name : "-",
               (unsigned long long)(c->allocations() - c->outside));
}

void ledger_check_start(ledger_check *c) {
    c->at = 0;
    c->outside = c->allocations ? c->allocations() : 0;
    tess_ledger_reset(c->t);
    tess_ledger_hook(c->t, compare, c);
}

void ledger_check_stop(ledger_check *c) {
    tess_ledger_point peak = { .struct_size = sizeof peak };
    tess_ledger_hook(c->t, NULL, NULL);
    if (tess_ledger_peak(c->t, &peak))
        differ(c, "%s", tess_last_error());
    compare(c, &peak);
    memcpy(c->measured_peak, peak.total_bytes, sizeof c->measured_peak);
    if (c->at != c->n_planned)
        differ(c, "%zu points were reached, %zu are planned", c->at, c->n_planned);
}

void ledger_check_close(ledger_check *c) {
    free(c->planned);
    c->planned = NULL;
}
