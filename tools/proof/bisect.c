/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera bisect: the first step in which two runs differ, by their ledgers; then, by running that step again, the
 * first instruction, tensor and element. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "again.h"
#include "detail.h"
#include "output.h"
#include "tools/commands.h"
#include "tools/support/command_line.h"
#include "tools/support/say.h"

enum { KEY_STEP = 0x100, KEY_JSON };

typedef struct {      /* one of the two runs */
    const char *name; /* its ledger, or A or B */
    const char *path; /* null: only a command */
    char **command;   /* null: only a ledger; ends with null */
    proof_ledger ledger;
    again_place first, again; /* where its command ran first, and in detail */
    detail_step lines, values;
    uint64_t steps;  /* run again */
    uint64_t unlike; /* the first step that has another root when it is run again; 0: none */
} side;

typedef struct {
    side sides[2]; /* the first n_paths have a ledger, the last n_commands a command */
    int n_paths, n_commands;
    uint64_t step; /* 0: the last */
    const char *json;
    proof_output output;
} arguments;

/* ---- arguments ------------------------------------------------------------------------------------- */

/* Commands may have "--" themselves. Two of one kind have as many, so the one in the middle is ours. */
static error_t take_commands(arguments *a, struct argp_state *state, char **words) {
    int n = 0, seen = 0;
    for (char **w = words; *w; w++)
        n += strcmp(*w, "--") == 0;
    int two = a->n_paths != 1 && (a->n_paths == 0 || n > 0);
    if (two && n % 2 == 0)
        return tool_usage_error(state,
                                "where the second command begins cannot be told: %d times '--'; put one with "
                                "'--' of its own into sh -c '…'",
                                n);
    a->n_commands = two ? 2 : 1;
    a->sides[two ? 0 : 1].command = words;
    for (char **w = words; two && *w; w++)
        if (strcmp(*w, "--") == 0 && ++seen == n / 2 + 1) {
            *w = NULL;
            a->sides[1].command = w + 1;
            break;
        }
    if (!two && a->n_paths == 2)
        a->sides[0].command = words;
    return !a->sides[1].command[0] || (a->sides[0].command && !a->sides[0].command[0])
               ? tool_usage_error(state, "a command is empty")
               : 0;
}

static error_t take_step(arguments *a, const struct argp_state *state, const char *text) {
    char *end;
    a->step = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || !a->step)
        return tool_usage_error(state, "--step is '%.40s', expected a step from 1 up", text);
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_STEP: return take_step(a, state, text);
    case KEY_JSON: a->json = text ? text : "1"; return 0;
    case ARGP_KEY_ARG:
        if (strcmp(state->argv[state->next - 2], "--") == 0) {
            char **words = state->argv + state->next - 1;
            state->next = state->argc;
            return take_commands(a, state, words);
        }
        if (a->n_paths == 2)
            return tool_usage_error(state, "unexpected '%s': two runs are compared", text);
        a->sides[a->n_paths++].path = text;
        return 0;
    case ARGP_KEY_END:
        return a->n_paths == 2 || a->n_commands == 2 || (a->n_paths == 1 && a->n_commands)
                   ? 0
                   : tool_usage_error(state, "two runs are compared, %d given: each a ledger, or -- COMMAND",
                                      a->n_paths + a->n_commands);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = { { "step", KEY_STEP, "N", 0, "compares up to this step; unset: all", 0 },
                                              { "json", KEY_JSON, "FILE", OPTION_ARG_OPTIONAL,
                                                "one JSON object, to FILE; no FILE: standard output", 0 },
                                              { NULL, 0, NULL, 0, NULL, 0 } };

static const tool_page page = {
    .command = "bisect",
    .usage = "[OPTION…] LEDGER LEDGER [-- COMMAND [-- COMMAND]]\n[OPTION…] LEDGER -- COMMAND\n[OPTION…] -- COMMAND -- "
             "COMMAND",
    .doc =
        "Finds the first step in which two runs differ, by ledgers of digests, which runs write with --ledger. A run "
        "without a ledger is run. Where both have a command, that step is run again with digests after every "
        "instruction, and the first one that differs is named, with its rank, tensor, element and both values. "
        "Commands save nothing.\n"
        "Exit code 0: the steps that both have are equal; 1: one differs; 6: a ledger is not as it was written.",
    .examples = "tessera bisect a.ledger b.ledger\n"
                "  the first step, unit and kind of value that differ\n"
                "tessera bisect -- tessera train gpt --steps 3 -- tessera train gpt --steps 3 --isa sse41\n"
                "  the first instruction in which another instruction set gives other bits\n",
};

/* ---- the first step -------------------------------------------------------------------------------- */

static void say_words(const proof_ledger *a, const proof_ledger *b) {
    char mine[512], theirs[512];
    if (proof_words_differ(a, b, mine, theirs, sizeof mine) || proof_steps_differ(a, b, mine, theirs, sizeof mine))
        tool_say(SAY_INFO, "the runs differ: %s has %s, %s has %s", a->path, mine, b->path, theirs);
    again_say_doubts(a);
    if (strcmp(a->path, b->path) != 0)
        again_say_doubts(b);
}

static tess_status read_run(const char *path, const char *name, int code, proof_ledger *out) {
    if (access(path, F_OK) != 0)
        return tess_fail(TESS_E_DATA, "the command of %s wrote no ledger; it ended with code %d", name, code);
    return proof_read(path, out);
}

/* The ledger of a run, or of its command. */
static tess_status obtain(side *s, uint64_t step) {
    int code = 0;
    if (s->path)
        return proof_read(s->path, &s->ledger);
    TRY(again_place_make(&s->first));
    again_how how = { .step = step ? step : INT64_MAX, .saves = 1 };
    tool_say(SAY_INFO, "runs %s", s->name);
    TRY(again_run(s->command, &s->first, &how, &code));
    TRY(read_run(s->first.ledger, s->name, code, &s->ledger));
    s->ledger.path = s->name;
    return TESS_OK;
}

/* ---- the first instruction ------------------------------------------------------------------------- */

/* Compares the run again with the ledger's, because what differs between two runs that are others proves nothing. */
static tess_status check_again(side *s, const proof_ledger *again, uint64_t step, int is_first, int code) {
    proof_finding f;
    TRY(again_check(&s->ledger, again, is_first));
    s->steps += again->n_steps;
    if (!proof_find(again, step))
        return tess_fail(TESS_E_DATA, "the command of %s ended with code %d before step %" PRIu64, s->name, code, step);
    TRY(again_compare(&s->ledger, again, step, &f));
    if (f.differs && !s->unlike)
        s->unlike = f.last;
    return TESS_OK;
}

/* Runs the step again in detail; with a key, for the elements of that tensor. */
static tess_status run_again(side *s, uint64_t step, const char *key) {
    const proof_checkpoint *from = again_start(&s->ledger, step);
    again_how how = { .step = step,
                      .from = from              ? from->path
                              : s->ledger.first ? NULL
                                                : "none",
                      .detail = 1,
                      .values = key };
    proof_ledger again = { .path = NULL };
    char what[256];
    int code = 0;
    again_place_remove(&s->again);
    TRY(again_place_make(&s->again));
    snprintf(what, sizeof what, "runs %.200s again", s->name);
    again_say_start(&s->ledger, what, step, from);
    TRY(again_run(s->command, &s->again, &how, &code));
    TRY(read_run(s->again.ledger, s->name, code, &again));
    tess_status status = check_again(s, &again, step, key == NULL, code);
    proof_free(&again);
    return status != TESS_OK ? status : detail_read(s->again.dir, key != NULL, key ? &s->values : &s->lines);
}

static uint64_t steps_again(const arguments *a) {
    return a->sides[0].steps + a->sides[1].steps;
}

/* The first tensor that differs, and its first element. */
typedef struct {
    uint64_t step;
    const detail_line *a, *b;
    int has_element;
    detail_element e;
    char number[2][64], bits[2][32]; /* of the element, or empty and the digest */
    int has_sample;                  /* it is a batch's, in this place of this sample */
    uint64_t sample, place, value_bytes;
    uint32_t value[2];
} difference;

/* The sample and place of the first byte of a batch that differs. */
static void take_sample(const arguments *a, difference *d) {
    uint64_t at[3], in_element = 0;
    if (strcmp(d->a->stage, "input") != 0 || !d->has_element || !proof_samples(&a->sides[0].ledger, at))
        return;
    while (in_element + 1 < d->e.a->bytes && d->e.value_a[in_element] == d->e.value_b[in_element])
        in_element++;
    uint64_t byte = d->e.element * d->e.a->bytes + in_element;
    if (byte < at[0] || at[2] > d->e.a->bytes)
        return; /* of its header, or no whole value */
    d->has_sample = 1;
    d->sample = (byte - at[0]) / at[1];
    d->place = (byte - at[0]) % at[1] / at[2];
    d->value_bytes = at[2];
    in_element = at[2] == 1 ? in_element : 0;
    memcpy(&d->value[0], d->e.value_a + in_element, at[2]);
    memcpy(&d->value[1], d->e.value_b + in_element, at[2]);
}

static void print_sample(FILE *to, const difference *d) {
    if (d->has_sample)
        fprintf(to, "  sample %" PRIu64 " of the batch, %s %" PRIu64 ": %" PRIu32 " and %" PRIu32 "\n", d->sample,
                d->value_bytes == 1 ? "byte" : "token", d->place, d->value[0], d->value[1]);
}

static void take_values(arguments *a, difference *d) {
    d->has_element = detail_first_element(&a->sides[0].values, &a->sides[1].values, d->a, &d->e);
    if (d->has_element) {
        detail_number(d->e.a, d->e.value_a, d->number[0], d->bits[0], sizeof d->bits[0]);
        detail_number(d->e.b, d->e.value_b, d->number[1], d->bits[1], sizeof d->bits[1]);
        take_sample(a, d);
    } else {
        snprintf(d->bits[0], sizeof d->bits[0], "%016" PRIx64, d->a->digest);
        snprintf(d->bits[1], sizeof d->bits[1], "%016" PRIx64, d->b->digest);
    }
}

static int32_t rank_of(const difference *d) {
    return d->has_element ? d->e.a->rank : d->a->rank;
}

static void print_difference(FILE *to, const arguments *a, const difference *d) {
    fprintf(to, "different: step %" PRIu64 ", rank %d", d->step, rank_of(d));
    if (d->a->microbatch >= 0)
        fprintf(to, ", microbatch %d", d->a->microbatch);
    fprintf(to, ", %s: %s of %s", d->a->instruction, d->a->what, d->a->tensor);
    if (d->has_element)
        fprintf(to, ", element %" PRIu64, d->e.element);
    fputc('\n', to);
    for (int i = 0; i < 2; i++)
        fprintf(to, "  %s: %s (%s, %s)\n", a->sides[i].name, d->has_element ? d->number[i] : "another digest",
                i ? d->b->dtype : d->a->dtype, d->bits[i]);
    print_sample(to, d);
    if (strcmp(d->a->instruction, d->b->instruction) != 0)
        fprintf(to, "  in %s it is: %s\n", a->sides[1].name, d->b->instruction);
    fprintf(to, "  instruction %" PRIu64 " of the step%s%s; %" PRIu64 " steps were run again\n", d->a->n,
            *d->a->unit ? ", unit " : "", d->a->unit, steps_again(a));
}

static void put_pair(json_out *j, const char *key, const char *x, const char *y) {
    json_array_begin(j, key);
    json_string(j, NULL, *x ? x : NULL);
    json_string(j, NULL, *y ? y : NULL);
    json_array_end(j);
}

static void put_difference(json_out *j, const difference *d) {
    json_int(j, "rank", rank_of(d));
    if (d->a->microbatch >= 0)
        json_int(j, "microbatch", d->a->microbatch);
    json_uint(j, "number", d->a->n);
    put_pair(j, "instruction", d->a->instruction, d->b->instruction);
    json_string(j, "of_unit", d->a->unit);
    json_string(j, "what", d->a->what);
    json_string(j, "tensor", d->a->tensor);
    if (d->has_element)
        json_uint(j, "element", d->e.element);
    if (d->has_sample) {
        json_uint(j, "sample", d->sample);
        json_uint(j, "place", d->place);
    }
    put_pair(j, "dtype", d->a->dtype, d->b->dtype);
    put_pair(j, "value", d->number[0], d->number[1]);
    put_pair(j, "bits", d->bits[0], d->bits[1]);
}

/* Null when no step was run again. */
static void put_again(json_out *j, const char *key, const side *s) {
    if (s->steps)
        json_bool(j, key, !s->unlike);
    else
        json_string(j, key, NULL);
}

static tess_status end_json(arguments *a) {
    if (a->output.file) {
        put_again(&a->output.json, "a_comes_again", &a->sides[0]);
        put_again(&a->output.json, "b_comes_again", &a->sides[1]);
        json_uint(&a->output.json, "steps_again", steps_again(a));
    }
    return proof_json_end(&a->output);
}

/* A difference of runs that are not the ledgers' may be another. */
static void say_unlike(FILE *to, const arguments *a, int is_found) {
    for (int i = 0; i < 2; i++) {
        const side *s = &a->sides[i];
        if (s->unlike)
            fprintf(to,
                    "  %s: run again, step %" PRIu64
                    " has another root: %s a bit flipped in memory or in a core, or the "
                    "command, its data or its checkpoint are not the run's\n",
                    s->name, s->unlike,
                    is_found ? "the difference may not be the run's;" : "what differs does not come again;");
    }
}

static tess_status say_instruction(arguments *a, const proof_finding *f, const detail_line *l,
                                   const detail_line *other) {
    difference d = { .step = f->last, .a = l, .b = other };
    for (int i = 0; i < 2; i++)
        TRY(run_again(&a->sides[i], f->last, l->key));
    take_values(a, &d);
    if (a->output.text)
        print_difference(a->output.text, a, &d);
    if (a->output.text)
        say_unlike(a->output.text, a, 1);
    proof_json_begin(&a->output, "bisect", f);
    if (a->output.file)
        put_difference(&a->output.json, &d);
    return end_json(a);
}

/* A difference that does not come again is no difference of the commands. */
static tess_status say_none(arguments *a, const proof_finding *f, size_t unlike) {
    FILE *to = a->output.text;
    if (to)
        proof_print(to, f, &a->sides[0].ledger);
    if (to)
        say_unlike(to, a, 0);
    if (to && !a->sides[0].unlike && !a->sides[1].unlike)
        fprintf(to, "  no instruction differs; %zu tensors are of the first program alone\n", unlike);
    if (to)
        fprintf(to, "  %" PRIu64 " steps were run again\n", steps_again(a));
    proof_json_begin(&a->output, "bisect", f);
    return end_json(a);
}

static tess_status look_closer(arguments *a, const proof_finding *f) {
    const detail_line *other;
    size_t unlike;
    for (int i = 0; i < 2; i++)
        TRY(run_again(&a->sides[i], f->last, NULL));
    const detail_line *l = detail_compare(&a->sides[0].lines, &a->sides[1].lines, &other, &unlike);
    return l ? say_instruction(a, f, l, other) : say_none(a, f, unlike);
}

static tess_status bisect(arguments *a, int *code) {
    proof_finding found;
    for (int i = 0; i < 2; i++)
        TRY(obtain(&a->sides[i], a->step));
    say_words(&a->sides[0].ledger, &a->sides[1].ledger);
    TRY(proof_compare(&a->sides[0].ledger, &a->sides[1].ledger, a->step ? a->step : UINT64_MAX, &found));
    *code = found.differs ? TOOL_FAILED : TOOL_OK;
    if (found.differs && a->sides[0].command && a->sides[1].command)
        return look_closer(a, &found);
    *code = proof_say(&a->output, &found, &a->sides[0].ledger);
    proof_json_begin(&a->output, "bisect", &found);
    return end_json(a);
}

int cmd_bisect(int argc, char **argv) {
    const struct argp argp = { options, parse, NULL, NULL, NULL, NULL, NULL };
    arguments a = { .n_paths = 0 };
    int code = tool_parse_page(&page, &argp, ARGP_IN_ORDER, argc, argv, &a);
    if (code != TOOL_OK)
        return code;
    a.sides[0].name = a.sides[0].path ? a.sides[0].path : "A";
    a.sides[1].name = a.sides[1].path ? a.sides[1].path : "B";
    tess_status status = proof_output_open(a.json, &a.output);
    if (status == TESS_OK)
        status = bisect(&a, &code);
    proof_output_close(&a.output);
    for (int i = 0; i < 2; i++) {
        again_place_remove(&a.sides[i].first);
        again_place_remove(&a.sides[i].again);
        detail_free(&a.sides[i].lines);
        detail_free(&a.sides[i].values);
        proof_free(&a.sides[i].ledger);
    }
    return status == TESS_OK ? code : tool_report(status);
}
