/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera plugins: lists plugins, says whether each can be used, and shows the variables it reads. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/plugins/check/check.h"
#include "tools/commands.h"
#include "tools/support/json_out.h"
#include "core/plugin/open.h"
#include "tools/support/options.h"
#include <tessera/plugin_options.h>
#include "plugin_caps.h"
#include "plugin_known.h"
#include "plugin_unknown.h"
#include "tools/support/command_line.h"
#include "core/plugin/trial.h"
#include "plugins_new.h"

static const char usage[] =
    "Usage: tessera plugins list [--json]\n"
    "       tessera plugins info NAME|PATH [--json]\n"
    "       tessera plugins check FILE|NAME [OPTION…]\n"
    "       tessera plugins new KIND NAME DIR [--grain element|block|row|matrix]\n"
    "\n"
    "  list    every plugin that can be found, and why one cannot be used\n"
    "  info    one plugin: its capabilities, and the variables that it reads\n"
    "  check   tries out what a plugin promises; `tessera plugins check --help` has the options\n"
    "  new     writes a project into DIR that builds against an installed Tessera: KIND is comm,\n"
    "          offload, precision, wrap, device or optimizer, NAME is [a-z0-9_-]+\n"
    "          --grain block: an optimizer whose states rest in blocks, of 8 bits with a scale;\n"
    "          row: one with a value for each row; matrix: one that needs whole matrices\n"
    "\n"
    "Plugins are searched in TESSERA_PLUGIN_PATH, then where Tessera is installed.\n"
    "\n"
    "Examples:\n"
    "  tessera plugins new wrap mine mine\n"
    "    a wrap policy that trains as it is, in the folder mine\n"
    "  tessera plugins check ./mine/build/libtessera-wrap-mine.so\n"
    "    what it promises, one line per check\n";

typedef struct {
    int as_json;
    json_out json;
    const char *wanted; /* info: NAME or KIND-NAME */
    int found;
    tess_status failed;
} view;

static const char *version_of(const tess__plugin_row *row) {
    return *row->version ? row->version : "-";
}

/* ---- capabilities ------------------------------------------------------------------------------ */

static void capability(void *user, const char *key, const char *const *words, int n) {
    view *v = user;
    if (v->as_json)
        json_array_begin(&v->json, key);
    else
        printf("%-10s ", key);
    for (int i = 0; i < n; i++)
        if (v->as_json)
            json_string(&v->json, NULL, words[i]);
        else
            printf("%s%s", i ? ", " : "", words[i]);
    if (v->as_json)
        json_array_end(&v->json);
    else
        puts(n ? "" : "none");
}

static tess__plugin *open_row(const tess__plugin_row *row) {
    tess__plugin *p = NULL;
    if (!row->usable || tess__plugin_open(row->kind, *row->path ? row->path : row->name, NULL, &p))
        return NULL; /* not an error: a built-in plugin may need arguments */
    return p;
}

/* Writes an object of arrays. It is empty if the plugin could not be opened. */
static void capabilities_as_json(view *v, const tess__plugin *p) {
    json_object_begin(&v->json, "capabilities");
    if (p)
        plugin_capabilities(p->kind, p->ops, p->ctx, capability, v);
    json_object_end(&v->json);
}

/* ---- list -------------------------------------------------------------------------------------- */

static void row_as_json(json_out *j, const char *event, const tess__plugin_row *row) {
    char abi[16];
    snprintf(abi, sizeof abi, "%u.%u", row->abi_major, row->abi_minor);
    json_object_begin(j, NULL);
    json_string(j, "event", event);
    json_string(j, "kind", plugin_kind_word(row->kind));
    json_string(j, "name", row->name);
    json_string(j, "version", *row->version ? row->version : NULL);
    json_string(j, "abi", row->abi_major ? abi : NULL);
    json_string(j, "path", *row->path ? row->path : NULL);
    json_bool(j, "built_in", !*row->path);
    json_bool(j, "usable", row->usable);
    json_string(j, "reason", row->usable ? NULL : row->reason);
}

static tess_status list_row(void *user, const tess__plugin_row *row, tess__plugin **opened) {
    (void)opened;
    view *v = user;
    if (v->as_json) {
        tess__plugin *p = open_row(row);
        row_as_json(&v->json, "plugin", row);
        capabilities_as_json(v, p);
        tess__plugin_close(p);
        json_object_end(&v->json);
        return json_line(&v->json) ? TESS_E_SYSTEM : TESS_OK;
    }
    char abi[16] = "-";
    if (row->abi_major)
        snprintf(abi, sizeof abi, "%u.%u", row->abi_major, row->abi_minor);
    printf("%-9s  %-12s  %-8s  %-4s  %s\n", plugin_kind_word(row->kind), row->name, version_of(row), abi,
           *row->path ? row->path : "built in");
    if (!row->usable)
        printf("%-9s  not usable: %s\n", "", row->reason);
    return TESS_OK;
}

static int list(view *v) {
    if (!v->as_json)
        printf("%-9s  %-12s  %-8s  %-4s  %s\n", "KIND", "NAME", "VERSION", "ABI", "FILE");
    tess_status s = tess__plugin_list(0, NULL, list_row, v);
    if (s == TESS_OK && fflush(stdout) == 0)
        return TOOL_OK;
    fprintf(stderr, "tessera: %s\n", s == TESS_E_SYSTEM || s == TESS_OK ? "cannot write the list" : tess_last_error());
    return s ? tess_exit_code(s) : TOOL_CONFIG;
}

/* ---- info -------------------------------------------------------------------------------------- */

static const char *type_word(uint32_t type) {
    static const char *const words[] = { "?", "integer", "number", "text", "bytes", "choice", "flag", "list" };
    return type < sizeof words / sizeof words[0] ? words[type] : "?";
}

static const char *or_null(const char *text) {
    return *text ? text : NULL;
}

static int is_bounded(const tess_option_spec *o) {
    return o->least != 0 || o->most != 0;
}

static void option_as_json(json_out *j, const tess_option_spec *o) {
    char variable[80];
    json_object_begin(j, NULL);
    json_string(j, "variable", tool_option_variable(o->key, variable));
    json_string(j, "type", type_word(o->type));
    json_string(j, "fallback", or_null(o->fallback));
    json_string(j, "choices", or_null(o->choices));
    if (is_bounded(o))
        json_double(j, "least", o->least);
    if (is_bounded(o) && isfinite(o->most))
        json_double(j, "most", o->most);
    json_string(j, "help", or_null(o->help));
    json_object_end(j);
}

static void option_as_text(const tess_option_spec *o) {
    char variable[80], expected[200];
    printf("  %s (%s", tool_option_variable(o->key, variable), type_word(o->type));
    if (is_bounded(o) || *o->choices)
        printf(": %s", tess_option_expected(o, expected, sizeof expected));
    printf("%s%s)\n      %s\n", *o->fallback ? ", default " : "", o->fallback, o->help);
}

static void show_options(view *v, const tess__plugin *p) {
    if (!v->as_json)
        puts(p->n_options ? "variables:" : "variables: none");
    for (uint32_t i = 0; i < p->n_options; i++)
        if (v->as_json)
            option_as_json(&v->json, &p->options[i]);
        else
            option_as_text(&p->options[i]);
}

static void show_note(view *v, const tess__plugin_row *row) {
    tess_plugin_note note = { .license = "" };
    char reason[PLUGIN_REASON_BYTES] = "";
    if (!*row->path || plugin_read_note(row->path, &note, reason) || plugin_judge_note(&note, row->kind, reason))
        return;
    if (v->as_json) {
        json_string(&v->json, "license", note.license);
        json_string(&v->json, "needs", note.needs);
        return;
    }
    printf("license    %s\n", *note.license ? note.license : "not said");
    if (*note.needs)
        printf("needs      %s\n", note.needs);
}

static void show_head(view *v, const tess__plugin_row *row) {
    if (v->as_json) {
        row_as_json(&v->json, "plugin_info", row);
    } else {
        printf("kind       %s\nname       %s\nversion    %s\nABI        %u.%u\nfile       %s\n",
               plugin_kind_word(row->kind), row->name, version_of(row), row->abi_major, row->abi_minor,
               *row->path ? row->path : "built in");
        if (!row->usable)
            printf("not usable: %s\n", row->reason);
    }
    show_note(v, row);
}

static tess_status show(view *v, const tess__plugin_row *row, const tess__plugin *p) {
    if (!v->as_json && v->found)
        putchar('\n');
    v->found = 1;
    show_head(v, row);
    if (v->as_json)
        capabilities_as_json(v, p);
    else if (p)
        plugin_capabilities(p->kind, p->ops, p->ctx, capability, v);
    if (v->as_json)
        json_array_begin(&v->json, "options");
    if (p)
        show_options(v, p);
    if (v->as_json) {
        json_array_end(&v->json);
        json_object_end(&v->json);
        return json_line(&v->json) ? TESS_E_SYSTEM : TESS_OK;
    }
    return TESS_OK;
}

static int is_wanted(const view *v, const tess__plugin_row *row) {
    char full[64];
    snprintf(full, sizeof full, "%s-%s", plugin_kind_word(row->kind), row->name);
    return strcmp(v->wanted, row->name) == 0 || strcmp(v->wanted, full) == 0;
}

static tess_status info_row(void *user, const tess__plugin_row *row, tess__plugin **opened) {
    (void)opened;
    view *v = user;
    if (!is_wanted(v, row))
        return TESS_OK;
    tess__plugin *p = open_row(row);
    if (!row->usable)
        v->failed = TESS_E_INVALID;
    tess_status s = show(v, row, p);
    tess__plugin_close(p);
    return s;
}

/* A file's descriptor says which kinds it offers, so this needs no kind. */
static tess_status info_path(view *v) {
    const tess_host services = tess__plugin_services(NULL);
    tess_plugin_note note;
    char reason[PLUGIN_REASON_BYTES] = "";
    tess_status s = plugin_read_note(v->wanted, &note, reason);
    if (s) {
        fprintf(stderr, "tessera: plugin '%s': %s\n", v->wanted, reason);
        return s;
    }
    for (uint32_t kind = 1; s == TESS_OK && plugin_kind_word(kind); kind++) {
        tess__plugin_row row = { .kind = kind, .usable = 1 };
        tess__plugin *p;
        if (!(note.kinds & 1u << kind))
            continue;
        s = tess__plugin_trial(kind, v->wanted, &services, reason);
        if (s) {
            fprintf(stderr, "tessera: %s plugin '%s': %s\n", plugin_kind_word(kind), v->wanted, reason);
            return s;
        }
        s = tess__plugin_open(kind, v->wanted, NULL, &p);
        if (s) {
            fprintf(stderr, "tessera: %s\n", tess_last_error());
            return s;
        }
        row.abi_major = p->abi_major;
        row.abi_minor = p->abi_minor;
        memcpy(row.name, p->name, sizeof row.name);
        memcpy(row.version, p->version, sizeof row.version);
        memcpy(row.path, p->path, sizeof row.path);
        s = show(v, &row, p);
        tess__plugin_close(p);
    }
    if (!v->found && s == TESS_OK)
        fprintf(stderr, "tessera: plugin '%s': its descriptor names no kind that this Tessera knows\n", v->wanted);
    return v->found ? s : TESS_E_INVALID;
}

static int info(view *v) {
    if (strchr(v->wanted, '/'))
        return tess_exit_code(info_path(v));
    tess_status s = tess__plugin_list(0, NULL, info_row, v);
    if (s == TESS_OK && !v->found)
        return plugin_unknown(v->wanted);
    return tess_exit_code(s ? s : v->failed);
}

/* ---- the command ------------------------------------------------------------------------------- */

static int bad_usage(const char *what, const char *word) {
    fprintf(stderr, "tessera plugins: %s%s%s%s; try `tessera plugins --help`\n", what, word ? " '" : "",
            word ? word : "", word ? "'" : "");
    return TOOL_USAGE;
}

static int bad_action(const char *word) {
    static const char *const actions[] = { "list", "info", "check", "new" };
    const char *near = tool_suggestion(word, actions, 4);
    if (!*near)
        return bad_usage("unknown action", word);
    fprintf(stderr, "tessera plugins: unknown action '%s'%s\n", word, near);
    return TOOL_USAGE;
}

static int is_help(const char *word) {
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "-?") == 0;
}

int cmd_plugins(int argc, char **argv) {
    view v = { .as_json = 0 };
    const char *words[2] = { NULL, NULL };
    int n = 0;
    if (argc > 1 && strcmp(argv[1], "check") == 0)
        return check_main(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "new") == 0 && !(argc > 2 && is_help(argv[2])))
        return plugins_new(argc - 1, argv + 1);
    json_init(&v.json, stdout);
    for (int i = 1; i < argc; i++) {
        if (is_help(argv[i])) {
            fputs(usage, stdout);
            return TOOL_OK;
        }
        if (strcmp(argv[i], "--json") == 0)
            v.as_json = 1;
        else if (argv[i][0] == '-')
            return bad_usage("unknown option", argv[i]);
        else if (n == 2)
            return bad_usage("unexpected", argv[i]);
        else
            words[n++] = argv[i];
    }
    if (n == 0)
        return bad_usage("say list or info", NULL);
    if (strcmp(words[0], "list") == 0)
        return n == 1 ? list(&v) : bad_usage("list takes no name, not", words[1]);
    if (strcmp(words[0], "info") != 0)
        return bad_action(words[0]);
    v.wanted = words[1];
    return n == 2 ? info(&v) : bad_usage("info takes the name of a plugin", NULL);
}
