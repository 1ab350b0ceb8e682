/* SPDX-License-Identifier: BSD-3-Clause */
/* A plan as tables for people and as events (docs/json.md). */
#include <inttypes.h>
#include <string.h>

#include "core/readers/last_run.h"
#include "core/readers/ledger.h"
#include "core/readers/planned.h"
#include "core/readers/stated.h"
#include "plan_at_peak.h"
#include "plan_audit.h"
#include "plan_head.h"
#include "plan_matrices.h"
#include "tools/support/progress.h"
#include "tools/support/say.h"
#include <tessera/inspect.h>

typedef struct { /* all facts of a report, collected once */
    const plan_source *source;
    const tess *t;
    const tess__plan *plan;
    const tess__selection *selection;
    tess_stats stats;
    uint64_t resting[TESS__DOMAINS][16];
    uint64_t backend; /* upper bound of the comm plugin's own memory per communicator */
    int32_t communicators;
    tess__last_run last; /* of this program, which holds memory that is in no plan */
    int over;            /* 1: the plan exceeds its budget */
    double seconds;
    plan_fullest fullest;
    plan_alive alive;
    plan_head head;
    uint32_t domain; /* domain of the peak that is described: the device's unless all is on the host */
    int32_t largest; /* the unit with the most unsharded bytes */
    tess_unit_info largest_info;
} facts;

static const char *const domain_names[] = { "", "device memory", "host memory", "disk" };

/* ---- gathering --------------------------------------------------------------------------------- */
static void find_largest(facts *f) {
    uint64_t most = 0;
    for (int32_t i = 0; i < f->plan->layout.n_units; i++) {
        tess_unit_info u = { .struct_size = sizeof u };
        if (tess_ledger_unit(f->t, i, &u) != TESS_OK)
            return;
        uint64_t bytes = u.unsharded_bytes ? u.unsharded_bytes : u.shard_bytes;
        if (bytes <= most)
            continue;
        most = bytes;
        f->largest = i;
        f->largest_info = u;
    }
}

static tess_status gather(const plan_source *s, tess_status over, facts *f) {
    *f = (facts){ .source = s,
                  .t = s->t,
                  .plan = tess__plan_of(s->t),
                  .selection = tess__selection_of(s->t),
                  .over = over == TESS_E_BUDGET,
                  .seconds = NAN,
                  .largest = -1 };
    f->stats.struct_size = sizeof f->stats;
    TRY(tess_stats_get(s->t, &f->stats));
    for (int32_t i = 0; i < f->plan->resident.n_buffers; i++) {
        const tess__buffer *b = &f->plan->resident.buffers[i];
        if (b->role != TESS__SHARD_GRAD)
            f->resting[b->domain][b->category] += b->bytes;
    }
    for (int32_t i = 0; i < f->plan->n_user; i++)
        f->resting[TESS_DOMAIN_DEVICE][TESS_CAT_ACTIVATION] += f->plan->user_bytes[i];
    f->backend = tess__stated_bytes(f->plan);
    if (f->plan->holds)
        f->last = tess__last_run_find(&f->plan->model);
    f->communicators = tess__n_communicators(&f->plan->setup);
    f->domain = f->stats.planned_peak_bytes[TESS_DOMAIN_DEVICE] ? TESS_DOMAIN_DEVICE : TESS_DOMAIN_HOST;
    f->fullest = plan_fullest_find(f->plan, f->domain);
    plan_alive_find(f->plan, f->fullest, f->domain, &f->alive);
    find_largest(f);
    f->head = plan_head_of(s, f->over);
    return TESS_OK;
}

static const tess__program *fullest_program(const facts *f) {
    return f->fullest.program < 0 ? NULL : &f->plan->programs[f->fullest.program];
}

static const tess__point *fullest_point(const facts *f) {
    return f->fullest.point < 0 ? NULL : &fullest_program(f)->points[f->fullest.point];
}

static uint64_t budget_of(const facts *f, uint32_t domain) {
    const tess__setup *s = &f->plan->setup;
    return domain == TESS_DOMAIN_DEVICE ? s->env.device_budget_bytes
           : domain == TESS_DOMAIN_HOST ? s->env.host_budget_bytes
                                        : s->disk_budget_bytes;
}

static const char *activations_of(const tess__plan *p) {
    static const char *const names[] = { "keep", "recompute", "offload", "selective" };
    if (p->activations_text)
        return p->activations_text;
    return p->setup.activation_spec ? p->setup.activation_spec : names[p->setup.activations];
}

/* ---- tables ------------------------------------------------------------------------------------ */
static void print_domain(FILE *out, const facts *f, uint32_t d) {
    char peak[32], rest[32];
    uint64_t resting = f->stats.resting_bytes[d], planned = f->stats.planned_peak_bytes[d];
    if (d == TESS_DOMAIN_DEVICE)
        resting += f->resting[d][TESS_CAT_ACTIVATION];
    if (!planned)
        return;
    fprintf(out, "%-24s %14s %14s   (%" PRIu64 " bytes)\n", d == TESS_DOMAIN_DEVICE ? "device memory" : "host memory",
            tool_bytes_text(planned, peak), tool_bytes_text(resting, rest), planned);
    for (uint32_t c = 1; c < 16; c++)
        if (f->stats.category_peak_bytes[d][c] || f->resting[d][c])
            fprintf(out, "  %-22s %14s %14s\n", tess__category_name(c),
                    tool_bytes_text(f->stats.category_peak_bytes[d][c], peak),
                    f->resting[d][c] ? tool_bytes_text(f->resting[d][c], rest) : "");
}

/* Only what rests is there, so that the peak is the rest. */
static void print_disk(FILE *out, const facts *f) {
    char size[32];
    uint64_t planned = f->stats.planned_disk_peak_bytes;
    if (!planned)
        return;
    fprintf(out, "%-24s %14s   (%" PRIu64 " bytes)\n", "disk", tool_bytes_text(planned, size), planned);
    for (uint32_t c = 1; c < 16; c++)
        if (f->stats.disk_category_bytes[c])
            fprintf(out, "  %-22s %14s\n", tess__category_name(c),
                    tool_bytes_text(f->stats.disk_category_bytes[c], size));
}

static void print_peak(FILE *out, const facts *f) {
    const tess__program *p = fullest_program(f);
    const tess__point *point = fullest_point(f);
    char text[256];
    if (!p)
        return;
    tess__program_text(p, &f->plan->model, &f->plan->layout, f->fullest.instr, text, sizeof text);
    fprintf(out, "the peak: in pass %s", tess__pass_name(p->kind));
    if (point)
        fprintf(out, ", from %s of unit %s on", tess__point_name(point->point),
                f->plan->layout.units[point->unit].name);
    fprintf(out, ": %s\n", text);
    plan_alive_print(out, f->plan, &f->alive);
}

static void print_budget(FILE *out, const facts *f) {
    char a[32], b[32];
    for (uint32_t d = 1; d < TESS__DOMAINS; d++) {
        uint64_t budget = budget_of(f, d);
        uint64_t need = d == TESS_DOMAIN_DISK ? f->stats.planned_disk_peak_bytes : f->stats.planned_peak_bytes[d];
        if (!budget)
            continue;
        int fits = need <= budget;
        fprintf(out, "%s: %s of %s are allowed, %s %s (%" PRIu64 " bytes)\n", fits ? "fits" : "does not fit",
                tool_bytes_text(budget, a), domain_names[d], tool_bytes_text(fits ? budget - need : need - budget, b),
                fits ? "are left" : "are missing", fits ? budget - need : need - budget);
    }
}

/* An alternative that fits: the command's options that change. */
static void print_advice(FILE *out, const tess__advice *a) {
    char change[400], device[32], host[32], disk[32];
    if (!a->n_planned)
        return;
    if (!a->n)
        fprintf(out, "nothing fits of %d alternatives that were planned%s\n", (int)a->n_planned,
                a->least.change.n ? "; least takes:" : "");
    else
        fprintf(out, "%d of %d alternatives that were planned fit:\n", (int)a->n, (int)a->n_planned);
    for (int32_t i = 0; i < (a->n ? a->n : a->least.change.n > 0); i++) {
        const tess__remedy *r = a->n ? &a->list[i] : &a->least;
        tess__change_text(&r->change, change, sizeof change);
        fprintf(out, "  %14s device %14s host   %s", tool_bytes_text(r->bytes[TESS_DOMAIN_DEVICE], device),
                tool_bytes_text(r->bytes[TESS_DOMAIN_HOST], host), change);
        if (r->bytes[TESS_DOMAIN_DISK])
            fprintf(out, "   %s of disk", tool_bytes_text(r->bytes[TESS_DOMAIN_DISK], disk));
        if (r->seconds >= 0)
            fprintf(out, "   %.4g s per step", r->seconds);
        fputc('\n', out);
    }
}

static uint64_t backend_total(const facts *f) {
    return f->backend * (uint64_t)f->communicators;
}

static void print_backend(FILE *out, const facts *f) {
    char size[32], each[32] = "";
    if (!f->backend)
        return;
    if (f->communicators > 1)
        snprintf(each, sizeof each, ", in %d communicators", f->communicators);
    fprintf(out, "beside it, for comm %s itself: at most %s%s\n", f->selection->text[TESS_KIND_COMM],
            tool_bytes_text(backend_total(f), size), each);
}

static void print_held(FILE *out, const facts *f) {
    char size[32];
    if (!f->plan->holds)
        return;
    fprintf(out, "not planned: activations and other memory that the program's library allocates; ");
    if (f->last.ranks)
        fprintf(out, "rank 0 of the last run, of %" PRId32 ", held at most %s\n", f->last.ranks,
                tool_bytes_text(f->last.held_bytes, size));
    else
        fprintf(out, "no run is known that says how much\n");
}

static void put_held(json_out *j, const facts *f) {
    json_bool(j, "unplanned", f->plan->holds);
    if (!f->last.ranks)
        return;
    json_uint(j, "last_run_held_bytes", f->last.held_bytes);
    json_uint(j, "last_run_ranks", (uint64_t)f->last.ranks);
}

static void put_backend(json_out *j, const facts *f) {
    json_uint(j, "backend_bytes", f->backend);
    json_uint(j, "backend_total_bytes", backend_total(f));
    json_uint(j, "communicators", (uint64_t)f->communicators);
    put_held(j, f);
}

static void print_tables(FILE *out, const facts *f) {
    const tess__plan *p = f->plan;
    const tess__selection *x = f->selection;
    char size[32];
    fprintf(out, "%s: %" PRIu64 " parameters in %" PRIu64 " unit%s, per rank of %d\n", f->source->name,
            f->stats.param_elems, f->stats.n_units, f->stats.n_units == 1 ? "" : "s", p->setup.nranks);
    fprintf(out,
            "comm %s, offload %s, precision %s, wrap %s, strategy %s, activations %s, accum %d, threads %d, prefetch "
            "%d\n\n",
            x->text[TESS_KIND_COMM], x->text[TESS_KIND_OFFLOAD], x->text[TESS_KIND_PRECISION], x->text[TESS_KIND_WRAP],
            p->setup.strategy, activations_of(p), p->setup.accum, p->setup.threads, p->setup.prefetch);
    fprintf(out, "%-24s %14s %14s\n", "", "at the peak", "at rest");
    for (uint32_t d = 1; d < 3; d++)
        print_domain(out, f, d);
    print_disk(out, f);
    fprintf(out, "\n");
    if (f->source->note[0])
        fprintf(out, "%s\n", f->source->note);
    print_backend(out, f);
    print_held(out, f);
    plan_audit_print(out, p);
    plan_head_print(out, &f->head);
    print_peak(out, f);
    if (f->largest >= 0)
        fprintf(out, "the largest unit: %s, %s unsharded\n", f->largest_info.name,
                tool_bytes_text(f->largest_info.unsharded_bytes, size));
    plan_matrices_print(out, p);
    fprintf(out, "planned in %.1f ms\n", f->source->plan_seconds * 1e3);
    print_budget(out, f);
    print_advice(out, tess__advice_of(f->t));
}

/* ---- events ------------------------------------------------------------------------------------ */
static void put_point(void *user, const tess_ledger_point *p) {
    ledger_json_point(user, "planned", p);
}

static void put_domains(json_out *j, const char *key, const uint64_t bytes[3][16], const uint64_t disk[16]) {
    json_object_begin(j, key);
    ledger_json_bytes(j, "device", bytes[TESS_DOMAIN_DEVICE]);
    ledger_json_bytes(j, "host", bytes[TESS_DOMAIN_HOST]);
    if (disk)
        ledger_json_bytes(j, "disk", disk);
    json_object_end(j);
}

static void put_peak(json_out *j, const facts *f) {
    const tess__program *p = fullest_program(f);
    const tess__point *point = fullest_point(f);
    char text[256] = "";
    if (p)
        tess__program_text(p, &f->plan->model, &f->plan->layout, f->fullest.instr, text, sizeof text);
    json_object_begin(j, "peak");
    json_string(j, "pass", p ? tess__pass_name(p->kind) : NULL);
    json_string(j, "point", point ? tess__point_name(point->point) : NULL);
    json_string(j, "unit", point ? f->plan->layout.units[point->unit].name : NULL);
    json_string(j, "instruction", p ? text : NULL);
    json_object_end(j);
}

static void put_remedy(json_out *j, const tess__remedy *r) {
    json_object_begin(j, NULL);
    json_object_begin(j, "options");
    for (int32_t i = 0; i < r->change.n; i++)
        json_string(j, r->change.set[i].key, r->change.set[i].value);
    json_object_end(j);
    json_uint(j, "planned_peak_device_bytes", r->bytes[TESS_DOMAIN_DEVICE]);
    json_uint(j, "planned_peak_host_bytes", r->bytes[TESS_DOMAIN_HOST]);
    json_uint(j, "planned_peak_disk_bytes", r->bytes[TESS_DOMAIN_DISK]);
    if (r->seconds >= 0)
        json_double(j, "seconds", r->seconds);
    json_object_end(j);
}

static void put_budgets(json_out *j, const facts *f) {
    static const char *const keys[] = { "", "device_memory_bytes", "host_memory_bytes", "disk_memory_bytes" };
    int any = 0;
    for (uint32_t d = 1; d < TESS__DOMAINS; d++)
        if (budget_of(f, d)) {
            json_uint(j, keys[d], budget_of(f, d));
            any = 1;
        }
    if (any)
        json_bool(j, "fits", !f->over);
}

static void put_plan(json_out *j, const facts *f) {
    const tess__plan *p = f->plan;
    const tess__selection *x = f->selection;
    json_object_begin(j, NULL);
    json_string(j, "event", "plan");
    json_string(j, "model", f->source->name);
    json_int(j, "ranks", p->setup.nranks);
    json_string(j, "comm", x->text[TESS_KIND_COMM]);
    json_string(j, "offload", x->text[TESS_KIND_OFFLOAD]);
    json_string(j, "precision", x->text[TESS_KIND_PRECISION]);
    json_string(j, "wrap", x->text[TESS_KIND_WRAP]);
    json_string(j, "strategy", p->setup.strategy);
    json_string(j, "device", x->text[TESS_KIND_DEVICE]);
    json_string(j, "activations", activations_of(p));
    json_int(j, "accum", p->setup.accum);
    json_int(j, "threads", p->setup.threads);
    json_int(j, "prefetch", p->setup.prefetch);
    json_uint(j, "parameters", f->stats.param_elems);
    json_uint(j, "units", f->stats.n_units);
    json_uint(j, "planned_peak_device_bytes", f->stats.planned_peak_bytes[TESS_DOMAIN_DEVICE]);
    json_uint(j, "planned_peak_host_bytes", f->stats.planned_peak_bytes[TESS_DOMAIN_HOST]);
    json_uint(j, "planned_peak_disk_bytes", f->stats.planned_disk_peak_bytes);
    const int stores = f->stats.planned_disk_peak_bytes > 0;
    put_domains(j, "categories", f->stats.category_peak_bytes, stores ? f->stats.disk_category_bytes : NULL);
    put_domains(j, "resting", f->resting, stores ? f->resting[TESS_DOMAIN_DISK] : NULL);
    put_peak(j, f);
    plan_alive_json(j, p, &f->alive);
    if (f->largest >= 0) {
        json_object_begin(j, "largest_unit");
        json_string(j, "name", f->largest_info.name);
        json_uint(j, "bytes", f->largest_info.unsharded_bytes);
        json_object_end(j);
    }
    plan_matrices_json(j, p);
    put_backend(j, f);
    plan_audit_json(j, p);
    plan_head_json(j, &f->head);
    put_budgets(j, f);
    if (f->over) {
        json_array_begin(j, "remedies");
        for (int32_t i = 0; i < tess__advice_of(f->t)->n; i++)
            put_remedy(j, &tess__advice_of(f->t)->list[i]);
        json_array_end(j);
    }
    json_bool(j, "estimate", f->source->estimate);
    json_double(j, "plan_seconds", f->source->plan_seconds);
    if (!isnan(f->seconds))
        json_double(j, "seconds", f->seconds);
    json_object_end(j);
}

static tess_status put_events(json_out *j, const facts *f) {
    TRY(tess_ledger_plan(f->t, f->source->of, put_point, j));
    put_plan(j, f);
    return json_line(j) ? tess_fail(TESS_E_SYSTEM, "--json: not everything could be written") : TESS_OK;
}

tess_status plan_report(const plan_source *source, tess_status over, const plan_output *out) {
    facts f;
    tess_status status = gather(source, over, &f);
    if (status != TESS_OK)
        return status;
    if (out->json)
        ledger_json_units(out->json, f.t);
    if (out->spans)
        status = out->spans(source, out->json, &f.seconds);
    if (status == TESS_OK && out->text)
        print_tables(out->text, &f);
    if (status == TESS_OK && out->json)
        status = put_events(out->json, &f);
    plan_alive_free(&f.alive);
    return status;
}
