/* SPDX-License-Identifier: BSD-3-Clause */
/* The command chooses the plugin and the checks, and returns the exit code. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands.h"
#include "internal.h"
#include "tools/plugins/plugin_known.h"
#include "tools/plugins/plugin_unknown.h"

static const char usage[] =
    "Usage: tessera plugins check FILE|NAME[:ARGS] [OPTION…]\n"
    "Tries out what a plugin promises, each check in processes of its own. NAME is one of `tessera plugins list`, or\n"
    "KIND-NAME where two kinds have it. What the plugin does not claim is skipped and counted.\n"
    "\n"
    "  --json             one object per check and a summary, a line each\n"
    "  --tap              the Test Anything Protocol\n"
    "  --only PATTERN     only checks whose SUITE/NAME matches, as file names do; may be given again\n"
    "  --skip PATTERN     all but those; may be given again\n"
    "  --no-skip          what would be skipped fails: for a plugin that claims everything\n"
    "  --launch COMMAND   what starts the ranks of a comm plugin, such as 'mpirun -n %d', where it needs that\n"
    "  --timeout SECONDS  for one check; 60\n"
    "  --list             the names of the checks, without running them\n"
    "\n"
    "Exit code: 0 all passed, 1 a check failed, 2 usage, 3 not usable as a plugin at all.\n";

enum { MOST_PATTERNS = 16, MOST_KINDS = 6 };

typedef struct {
    const char *target, *launch, *only[MOST_PATTERNS], *skip[MOST_PATTERNS];
    int n_only, n_skip, list, no_skip, form;
    double timeout_s;
} request;

/* ---- arguments --------------------------------------------------------------------------------- */

static int bad_usage(const char *what, const char *word) {
    fprintf(stderr, "tessera plugins check: %s%s%s%s; try `tessera plugins check --help`\n", what, word ? " '" : "",
            word ? word : "", word ? "'" : "");
    return TOOL_USAGE;
}

/* Returns the value of "--only X" or "--only=X", or null. It moves *i past the value. */
static const char *value_of(const char *name, int argc, char **argv, int *i) {
    size_t n = strlen(name);
    if (strncmp(argv[*i], name, n) != 0)
        return NULL;
    if (argv[*i][n] == '=')
        return argv[*i] + n + 1;
    return argv[*i][n] == 0 && *i + 1 < argc ? argv[++*i] : NULL;
}

static int take(request *r, int argc, char **argv, int *i) {
    const char *word = argv[*i], *value;
    if (strcmp(word, "--json") == 0 || strcmp(word, "--tap") == 0) {
        r->form = word[2] == 'j' ? CHECK_AS_JSON : CHECK_AS_TAP;
    } else if (strcmp(word, "--list") == 0) {
        r->list = 1;
    } else if (strcmp(word, "--no-skip") == 0) {
        r->no_skip = 1;
    } else if ((value = value_of("--only", argc, argv, i))) {
        if (r->n_only == MOST_PATTERNS)
            return bad_usage("too many --only", NULL);
        r->only[r->n_only++] = value;
    } else if ((value = value_of("--skip", argc, argv, i))) {
        if (r->n_skip == MOST_PATTERNS)
            return bad_usage("too many --skip", NULL);
        r->skip[r->n_skip++] = value;
    } else if ((value = value_of("--launch", argc, argv, i))) {
        if (!strstr(value, "%d"))
            return bad_usage("--launch wants a command with %d for the number of ranks, not", value);
        r->launch = value;
    } else if ((value = value_of("--timeout", argc, argv, i))) {
        char *rest;
        r->timeout_s = strtod(value, &rest);
        if (*rest || !(r->timeout_s > 0 && r->timeout_s < 1e6))
            return bad_usage("--timeout wants seconds, not", value);
    } else if (word[0] == '-') {
        return bad_usage("unknown option, or its value is missing:", word);
    } else if (r->target) {
        return bad_usage("unexpected", word);
    } else {
        r->target = word;
    }
    return TOOL_OK;
}

/* ---- the plugin -------------------------------------------------------------------------------- */

typedef struct {
    check_target *out;
    const char *name;
    size_t chars;
    uint32_t kind; /* kind of the first plugin found; it hides later ones of that kind */
    int clash;
} plugin_choice;

static int is_wanted(const plugin_choice *s, const char *kind, const char *name) {
    char full[64];
    snprintf(full, sizeof full, "%s-%s", kind, name);
    return (strlen(name) == s->chars && memcmp(name, s->name, s->chars) == 0) ||
           (strlen(full) == s->chars && memcmp(full, s->name, s->chars) == 0);
}

static void look_at(void *user, uint32_t kind, const char *name, const char *path) {
    plugin_choice *s = user;
    if (!is_wanted(s, plugin_kind_word(kind), name))
        return;
    s->clash |= s->kind && s->kind != kind;
    if (s->kind)
        return;
    s->kind = kind;
    snprintf(s->out->path, sizeof s->out->path, "%s", path);
    if (*path)
        return;
    s->out->kinds = 1u << kind;
    snprintf(s->out->builtin, sizeof s->out->builtin, "%s", name);
}

static int find_by_name(plugin_choice *s) {
    plugin_each_known(look_at, s);
    if (s->kind && !s->clash)
        return TOOL_OK;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)s->chars, s->name);
    if (!s->clash)
        return plugin_unknown(name);
    fprintf(stderr, "tessera: more than one plugin '%s'; say KIND-NAME or the file\n", name);
    return TOOL_CONFIG;
}

/* Finds ":ARGS" where the loader does, after ".so" or after the name. */
static const char *args_of(const char *target) {
    const char *slash = strrchr(target, '/'), *colon = strstr(target, ".so:");
    if (colon)
        return colon + 3;
    return strchr(slash ? slash : target, ':');
}

static int find_target(const char *text, check_target *out) {
    const char *colon = args_of(text);
    size_t chars = colon ? (size_t)(colon - text) : strlen(text);
    char given[sizeof out->path], reason[PLUGIN_REASON_BYTES] = "";
    snprintf(out->args, sizeof out->args, "%s", colon ? colon + 1 : "");
    if (!memchr(text, '/', chars)) {
        plugin_choice s = { out, text, chars, 0, 0 };
        int code = find_by_name(&s);
        if (code || !*out->path)
            return code;
    } else if (chars >= sizeof given) {
        return bad_usage("the path is too long", NULL);
    } else {
        memcpy(given, text, chars);
        given[chars] = 0;
        if (!realpath(given, out->path))
            snprintf(out->path, sizeof out->path, "%s", given);
    }
    if (plugin_read_note(out->path, &out->note, reason)) {
        fprintf(stderr, "tessera: '%s' is not usable as a plugin: %s\n", out->path, reason);
        return TOOL_CONFIG;
    }
    for (uint32_t k = 1; plugin_kind_word(k); k++)
        out->kinds |= out->note.kinds & 1u << k;
    if (out->kinds)
        return TOOL_OK;
    fprintf(stderr, "tessera: '%s' is not usable as a plugin: its descriptor names no kind that this Tessera knows\n",
            out->path);
    return TOOL_CONFIG;
}

/* ---- running them ------------------------------------------------------------------------------ */

static int matches(const request *r, const char *suite, const char *test) {
    char full[128];
    int yes = r->n_only == 0;
    snprintf(full, sizeof full, "%s/%s", suite, test);
    for (int i = 0; i < r->n_only; i++)
        yes |= fnmatch(r->only[i], full, 0) == 0;
    for (int i = 0; i < r->n_skip; i++)
        yes &= fnmatch(r->skip[i], full, 0) != 0;
    return yes;
}

/* A suite for any kind runs once for each kind of the plugin. */
static int applies(const check_target *t, const check_suite *s, uint32_t kind) {
    return (t->kinds >> kind & 1) && (!s->kind || s->kind == kind) && (*t->path || !s->needs_file);
}

typedef void (*each_fn)(void *user, uint32_t kind, const check_suite *, const check_case *);
static void each(const request *r, const check_target *t, each_fn call, void *user) {
    for (uint32_t kind = 1; plugin_kind_word(kind); kind++)
        for (const check_suite *s = check_suites; s->name; s++)
            for (const check_case *k = s->cases; applies(t, s, kind) && k->name; k++)
                if (matches(r, s->name, k->name))
                    call(user, kind, s, k);
}

typedef struct {
    const check_target *target;
    check_report report;
    int64_t limit_ns;
    int no_skip;
    const char *launch, *broken; /* broken: the essential check that failed, or null */
} session;

static void count_one(void *user, uint32_t kind, const check_suite *s, const check_case *k) {
    (void)kind, (void)s, (void)k;
    ((session *)user)->report.n_planned++;
}

static void name_one(void *user, uint32_t kind, const check_suite *s, const check_case *k) {
    (void)user, (void)kind;
    printf("%s/%s\n", s->name, k->name);
}

static void run_one(void *user, uint32_t kind, const check_suite *s, const check_case *k) {
    session *x = user;
    check_outcome o = { .outcome = CHECK_SKIPPED };
    if (x->broken)
        snprintf(o.message, sizeof o.message, "not tried: %s failed", x->broken);
    else
        check_run_case(x->target, kind, s, k, x->limit_ns, x->launch, &o);
    if (o.outcome == CHECK_SKIPPED && x->no_skip)
        o.outcome = CHECK_FAILED;
    if (o.outcome == CHECK_FAILED && k->essential)
        x->broken = k->name;
    check_report_case(&x->report, s->name, k->name, &o);
}

static int run(const request *r, const check_target *t) {
    double slower = 1;
#ifdef TESSERA_SANITIZED
    slower = 4;
#endif
    session x = {
        .target = t, .limit_ns = (int64_t)(r->timeout_s * slower * 1e9), .no_skip = r->no_skip, .launch = r->launch
    };
    x.report.form = r->form;
    each(r, t, count_one, &x);
    if (!x.report.n_planned)
        return bad_usage("no check matches", NULL);
    if (r->list) {
        each(r, t, name_one, &x);
        return TOOL_OK;
    }
    check_report_begin(&x.report, t);
    each(r, t, run_one, &x);
    if (check_report_end(&x.report) != 0) {
        fprintf(stderr, "tessera: cannot write the report\n");
        return TOOL_CONFIG;
    }
    return x.report.count.failed ? TOOL_FAILED : TOOL_OK;
}

int check_main(int argc, char **argv) {
    request r = { .timeout_s = 60 };
    static check_target target;
    if (argc == 2 && strncmp(argv[1], "--child=", 8) == 0)
        return check_rank_main(argv[1] + 8);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "-?") == 0) {
            fputs(usage, stdout);
            return TOOL_OK;
        }
        int code = take(&r, argc, argv, &i);
        if (code)
            return code;
    }
    if (!r.target)
        return bad_usage("say which plugin", NULL);
    int code = find_target(r.target, &target);
    return code ? code : run(&r, &target);
}
