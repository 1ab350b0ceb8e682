/* SPDX-License-Identifier: BSD-3-Clause */
/* Reports the checks as a table, as JSON lines or as TAP. */
#include <string.h>
#include <unistd.h>

#include "internal.h"
#include "tools/support/json_out.h"
#include "tools/plugins/plugin_known.h"

static const char *word(int outcome) {
    return outcome == CHECK_DONE ? "passed" : outcome == CHECK_SKIPPED ? "skipped" : "failed";
}

static void kinds_of(uint32_t kinds, char *out, size_t bytes) {
    size_t n = 0;
    *out = 0;
    for (uint32_t k = 1; plugin_kind_word(k); k++)
        if (kinds >> k & 1 && n < bytes)
            n += (size_t)snprintf(out + n, bytes - n, "%s%s", n ? ", " : "", plugin_kind_word(k));
}

void check_report_begin(check_report *r, const check_target *t) {
    char kinds[64];
    r->target = *t->path ? t->path : t->builtin;
    kinds_of(t->kinds, kinds, sizeof kinds);
    if (r->form == CHECK_AS_TAP) {
        printf("TAP version 13\n1..%d\n", r->n_planned);
    } else if (r->form == CHECK_AS_TABLE && *t->path) {
        printf("%s: %s %.32s %.24s, ABI %u.%u\n", t->path, kinds, t->note.name, t->note.version, t->note.abi_major,
               t->note.abi_minor);
    } else if (r->form == CHECK_AS_TABLE) {
        printf("%s %s, built in\n", kinds, t->builtin);
    }
    fflush(stdout);
}

static void as_json(const char *suite, const char *test, const check_outcome *o) {
    json_out j;
    json_init(&j, stdout);
    json_object_begin(&j, NULL);
    json_string(&j, "event", "check");
    json_string(&j, "suite", suite);
    json_string(&j, "name", test);
    json_string(&j, "status", word(o->outcome));
    json_string(&j, "message", *o->message ? o->message : NULL);
    json_double(&j, "seconds", o->seconds);
    if (*o->output)
        json_string(&j, "output", o->output);
    json_object_end(&j);
    json_line(&j);
}

/* Prints the ranks' output with `mark` before each line. */
static void print_output(const char *text, const char *mark) {
    while (*text) {
        size_t n = strcspn(text, "\n");
        printf("%s%.*s\n", mark, (int)n, text);
        text += n + (text[n] == '\n');
    }
}

static void as_tap(int number, const char *suite, const char *test, const check_outcome *o) {
    printf("%s %d - %s/%s", o->outcome == CHECK_FAILED ? "not ok" : "ok", number, suite, test);
    if (o->outcome == CHECK_SKIPPED)
        printf(" # SKIP %s", o->message);
    putchar('\n');
    if (o->outcome != CHECK_SKIPPED)
        print_output(o->message, "# ");
    print_output(o->output, "#   ");
}

static void as_row(const char *suite, const char *test, const check_outcome *o) {
    const char *shown = o->outcome == CHECK_FAILED ? "FAILED" : word(o->outcome);
    if (*o->message)
        printf("%-9s  %-27s  %-7s  %s\n", suite, test, shown, o->message);
    else
        printf("%-9s  %-27s  %s\n", suite, test, shown);
    print_output(o->output, "    | ");
}

void check_report_case(check_report *r, const char *suite, const char *test, const check_outcome *o) {
    r->n_told++;
    r->seconds += o->seconds;
    *(o->outcome == CHECK_DONE      ? &r->count.passed
      : o->outcome == CHECK_SKIPPED ? &r->count.skipped
                                    : &r->count.failed) += 1;
    if (r->form == CHECK_AS_JSON)
        as_json(suite, test, o);
    else if (r->form == CHECK_AS_TAP)
        as_tap(r->n_told, suite, test, o);
    else
        as_row(suite, test, o);
    fflush(stdout);
}

int check_report_end(check_report *r) {
    if (r->form == CHECK_AS_JSON) {
        json_out j;
        json_init(&j, stdout);
        json_object_begin(&j, NULL);
        json_string(&j, "event", "summary");
        json_string(&j, "plugin", r->target);
        json_int(&j, "passed", r->count.passed);
        json_int(&j, "failed", r->count.failed);
        json_int(&j, "skipped", r->count.skipped);
        json_double(&j, "seconds", r->seconds);
        json_object_end(&j);
        return json_line(&j);
    }
    printf("%s%d passed, %d failed, %d skipped, in %.1f s\n", r->form == CHECK_AS_TAP ? "# " : "", r->count.passed,
           r->count.failed, r->count.skipped, r->seconds);
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : -1;
}
