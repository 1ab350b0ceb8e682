/* SPDX-License-Identifier: BSD-3-Clause */
#include "plan_time.h"

#include <stdlib.h>
#include <string.h>

#include "tools/support/command_line.h"
#include "tools/support/settings.h"
#include "tools/support/say.h"
#include "core/plugin/open.h"
#include "core/readers/ledger.h"
#include "core/readers/planned.h"
#include "tools/models/model.h"
#include "tools/support/options.h"
#include <tessera/tessera.h>

/* ---- what a scope costs ------------------------------------------------------------------------ */
static void put_measured(scope_cost *c, const machine_block *t) {
    c->forward_seconds = t->forward_seconds;
    c->backward_seconds = t->backward_seconds;
}

/* A reference model counts its own work, unless its blocks were measured. */
static void cost_of_models(const tess__plan *p, const model *m, const machine_desc *machine, scope_cost *costs) {
    char key[96];
    model_key(m, key, sizeof key);
    for (int32_t i = 0; i < m->desc.n_blocks && i < p->model.n_blocks; i++) {
        scope_cost *c = &costs[p->model.blocks[i].scope];
        model_cost of = model_block_cost(m, i);
        *c = (scope_cost){ .forward_flops = of.forward_flops,
                           .backward_flops = of.backward_flops,
                           .forward_fp8 = of.forward_fp8,
                           .backward_fp8 = of.backward_fp8,
                           .forward_bytes = of.forward_bytes,
                           .backward_bytes = of.backward_bytes,
                           .forward_kernels = of.forward_kernels,
                           .backward_kernels = of.backward_kernels };
        const machine_block *measured = machine_find_block(machine, key, m->desc.blocks[i].name);
        if (measured)
            put_measured(c, measured);
    }
}

/* Rows of a table that is looked up in cost nothing. */
static int is_looked_up(const char *name) {
    return strstr(name, "embed") || strstr(name, "wte") || strstr(name, "wpe");
}

/* A program that is only declared: every matrix is applied once per token, forward; twice in backward. */
static void cost_of_parameters(const tess__plan *plan, double tokens, scope_cost *costs) {
    for (int32_t k = 0; k < plan->model.n_scopes; k++) {
        const tess__scope *scope = &plan->model.scopes[k];
        double elems = 0, bytes = 0;
        for (int32_t i = 0; i < scope->n_params; i++) {
            const tess__param *p = &plan->model.params[scope->params[i]];
            bytes += (double)p->elems * (p->group >= 0 ? tess_dtype_bytes(plan->layout.groups[p->group].compute) : 4);
            elems += p->ndim > 1 && (!is_looked_up(p->name) || p->tied_to != scope->params[i]) ? (double)p->elems : 0;
        }
        if (scope->block >= 0) {
            const tess_block_options *o = &plan->model.blocks[scope->block].options;
            bytes += 2 * (double)o->output_bytes + (double)o->saved_bytes;
        }
        costs[k] = (scope_cost){ .forward_flops = 2 * elems * tokens,
                                 .backward_flops = 4 * elems * tokens,
                                 .forward_bytes = bytes,
                                 .backward_bytes = 2 * bytes,
                                 .forward_kernels = 1,
                                 .backward_kernels = 2 };
    }
}

/* Returns the tokens per microbatch that the plan assumes, if the source knows them. */
static double tokens(const plan_source *s) {
    int64_t batch = 1, context = 1;
    if (s->tokens > 0)
        return s->tokens;
    tool_option_int("batch", &batch);
    tool_option_int("context", &context);
    return (double)batch * (double)context;
}

/* ---- the step ---------------------------------------------------------------------------------- */
static tess_status simulate(const plan_source *s, const machine_desc *machine, const scope_cost *costs,
                            simulated_step *out) {
    const tess__plan *p = tess__plan_of(s->t);
    int32_t n = tess__ledger_programs(p, s->of, NULL);
    int32_t *slots = calloc((size_t)n + 1, sizeof *slots);
    const tess__program **programs = calloc((size_t)n + 1, sizeof *programs);
    tess_status status = slots && programs ? TESS_OK : tess_fail(TESS_E_NOMEM, "no memory to simulate a step");
    if (status == TESS_OK) {
        tess__ledger_programs(p, s->of, slots);
        for (int32_t i = 0; i < n; i++)
            programs[i] = &p->programs[slots[i]];
        simulation in = { .setup = &p->setup,
                          .model = &p->model,
                          .layout = &p->layout,
                          .machine = machine,
                          .costs = costs,
                          .comm = tess__selection_of(s->t)->text[TESS_KIND_COMM],
                          .apart = tess__sums_apart(&p->setup),
                          .threads = p->setup.threads,
                          .programs = programs,
                          .n_programs = n };
        status = simulate_step(&in, out);
    }
    free(slots);
    free(programs);
    return status;
}

tess_status plan_time(const plan_source *s, const machine_desc *machine, simulated_step *out) {
    const tess__plan *p = tess__plan_of(s->t);
    scope_cost *costs = calloc((size_t)p->model.n_scopes + 1, sizeof *costs);
    if (!costs)
        return tess_fail(TESS_E_NOMEM, "no memory to simulate a step");
    if (s->is_model)
        cost_of_models(p, s->state, machine, costs);
    else
        cost_of_parameters(p, tokens(s), costs);
    tess_status status = simulate(s, machine, costs, out);
    free(costs);
    return status;
}

/* ---- the options ------------------------------------------------------------------------------- */
typedef struct {
    uint32_t kind;
    const char *name;
    int found;
} wanted_plugin;

static tess_status is_wanted(void *user, const tess__plugin_row *row, tess__plugin **opened) {
    wanted_plugin *w = user;
    (void)opened;
    w->found |= row->kind == w->kind && row->usable && strcmp(row->name, w->name) == 0;
    return TESS_OK;
}

static int has_plugin(uint32_t kind, const char *name) {
    wanted_plugin w = { kind, name, 0 };
    return tess__plugin_list(kind, NULL, is_wanted, &w) == TESS_OK && w.found;
}

/* A machine of GPUs is planned with the plugins that run there, unless the user chose others. */
static void use_gpu_plugins(const char *machine) {
    int64_t ranks = 1;
    tool_option_int("ranks", &ranks);
    if (tool_option_text("device") || tool_option_text("comm"))
        return;
    int have = has_plugin(TESS_KIND_DEVICE, "cuda") && has_plugin(TESS_KIND_COMM, "nccl");
    if (!have) {
        tool_say(SAY_WARNING, "%s has GPUs, but device-cuda and comm-nccl are not here: planned for the cpu device",
                 machine);
        return;
    }
    tool_settings_set("device", "cuda");
    if (ranks > 1)
        tool_settings_set("comm", "nccl");
}

int plan_time_machine(const char *command, machine_desc *out, int *code) {
    const char *word = tool_option_text("machine"), *from = tool_option_text("from");
    *out = (machine_desc){ .name = "" };
    if (!word && from) {
        fprintf(stderr, "tessera %s: --from gives times of blocks; --machine is needed for all else\n", command);
        *code = TOOL_USAGE;
        return -1;
    }
    if (!word)
        return 0;
    tess_status status = machine_open(word, out);
    if (status == TESS_OK && out->is_gpu)
        use_gpu_plugins(out->name);
    if (status == TESS_OK && from)
        status = machine_add_events(out, from, 0);
    if (status == TESS_OK)
        return 1;
    machine_close(out);
    *code = tool_report(status);
    if (status == TESS_E_INVALID) /* a name that is none is a slip on the command line */
        *code = TOOL_USAGE;
    return -1;
}

/* ---- spans and tables -------------------------------------------------------------------------- */
static struct { /* times of the plan that is being printed */
    const machine_desc *machine;
    double seconds, exposed[TESS__N_TRACKS], critical[TESS__N_TRACKS], busy[TESS__N_TRACKS];
} shown;

void plan_time_use(const machine_desc *m) {
    memset(&shown, 0, sizeof shown);
    shown.machine = m;
}

const machine_desc *plan_time_in_use(void) {
    return shown.machine;
}

static void put_span(json_out *j, const tess__span *s, const tess__plan *p) {
    const char *unit = tess__span_unit(s, &p->model, &p->layout);
    json_object_begin(j, NULL);
    json_string(j, "event", "span");
    json_string(j, "source", "simulated");
    json_int(j, "step", 1);
    json_string(j, "lane", tess__track_name(s->track));
    json_string(j, "op", tess__span_op(s));
    json_string(j, "unit", unit[0] ? unit : NULL);
    json_double(j, "start", s->start);
    json_double(j, "seconds", s->seconds);
    json_bool(j, "critical", s->critical);
    json_object_end(j);
    json_line(j);
}

static void put_lanes(json_out *j, const char *key, const double seconds[TESS__N_TRACKS]) {
    json_object_begin(j, key);
    for (uint32_t i = 0; i < TESS__N_TRACKS; i++)
        if (seconds[i] > 0)
            json_double(j, tess__track_name(i), seconds[i]);
    json_object_end(j);
}

static void put_time(json_out *j) {
    json_object_begin(j, NULL);
    json_string(j, "event", "time");
    json_string(j, "machine", shown.machine->name);
    json_double(j, "seconds", shown.seconds);
    json_double(j, "exposed_communication_seconds", shown.exposed[TESS__TRACK_COMM]);
    put_lanes(j, "exposed", shown.exposed);
    put_lanes(j, "critical_path", shown.critical);
    put_lanes(j, "busy", shown.busy);
    json_object_end(j);
    json_line(j);
}

tess_status plan_time_spans(const plan_source *s, json_out *json, double *seconds) {
    simulated_step line;
    TRY(plan_time(s, shown.machine, &line));
    *seconds = shown.seconds = line.seconds;
    memcpy(shown.exposed, line.exposed, sizeof shown.exposed);
    memcpy(shown.critical, line.critical, sizeof shown.critical);
    memcpy(shown.busy, line.busy, sizeof shown.busy);
    for (int32_t i = 0; json && i < line.n_spans; i++)
        put_span(json, &line.spans[i], tess__plan_of(s->t));
    if (json)
        put_time(json);
    simulated_free(&line);
    return TESS_OK;
}

static void print_lanes(FILE *out, const char *what, const double seconds[TESS__N_TRACKS]) {
    double all = 0;
    fprintf(out, "  %-22s", what);
    for (uint32_t i = 0; i < TESS__N_TRACKS; i++) {
        if (seconds[i] > 0)
            fprintf(out, "%s%s %.4g s", all > 0 ? ", " : " ", tess__track_name(i), seconds[i]);
        all += seconds[i];
    }
    fputs(all > 0 ? "\n" : " nothing\n", out);
}

void plan_time_print(FILE *out) {
    if (!shown.machine || !(shown.seconds > 0))
        return;
    fprintf(out, "time on %s: %.6g s per step\n", shown.machine->name[0] ? shown.machine->name : "this machine",
            shown.seconds);
    print_lanes(out, "critical path", shown.critical);
    print_lanes(out, "waited for, exposed", shown.exposed);
    print_lanes(out, "busy", shown.busy);
}
