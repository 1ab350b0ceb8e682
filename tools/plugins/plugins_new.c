/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugins_new.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/support/command_line.h"
#include "plugin_known.h"

enum { NAME_MOST = 31, PATH_BYTES = 4096 };

static const struct kind {
    const char *word;
    const char *sources, *ranks, *files, *says; /* texts of the shared files that differ between kinds */
} kinds[] = {
    { "comm", "SOURCES plugin.c KIT", "-n 2",
      "| `plugin.c` | how the ranks connect and exchange bytes; the collectives are of Tessera's comm kit, "
      "`comm_kit.h` |\n",
      "It takes no arguments and reads no variables." },
    { "offload", "SOURCES plugin.c", "-n 1", "| `plugin.c` | where what rests |\n",
      "`:all` behind the name moves the parameters' shards to the host too." },
    { "precision", "SOURCES plugin.c KIT", "-n 1", "| `plugin.c` | the dtypes of every parameter |\n",
      "`TESSERA_@VARIABLE@_WIRE=fp32` sends gradients in fp32 instead of bf16." },
    { "wrap", "SOURCES plugin.c", "-n 1", "| `plugin.c` | which parameters are gathered together |\n",
      "`:K` behind the name makes a unit of every K scopes." },
    { "device", "SOURCES plugin.c kernels.c KIT", "-n 1",
      "| `plugin.c` | memory, copies, the table |\n"
      "| `kernels.c` | the five kernels, as loops around Tessera's formulas, `formulas.h` |\n",
      "It takes no arguments and reads no variables." },
    { "optimizer", NULL, NULL, NULL, NULL }, /* each grain has its own */
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

#define BETA_SAYS                                                                                                      \
    "`TESSERA_@VARIABLE@_BETA=0.95` sets how much the momentum keeps; so does `:beta=0.95` behind the name."
#define FILE_SAYS(what) "| `plugin.c` | " what " |\n"

/* Templates of optimizers, by `--grain`. The first is the kind's own. */
static const struct grain {
    const char *word, *folder;
    struct kind kind;
} grains[] = {
    { "element",
      "optimizer",
      { "optimizer", "SOURCES plugin.c KIT", "-n 1", FILE_SAYS("what a step makes of a piece of a parameter"),
        BETA_SAYS } },
    { "block",
      "optimizer-block",
      { "optimizer", "SOURCES plugin.c KIT", "-n 1",
        FILE_SAYS("how a block's states rest, and what a step makes of it"), BETA_SAYS } },
    { "row",
      "optimizer-row",
      { "optimizer", "SOURCES plugin.c KIT", "-n 1",
        FILE_SAYS("which parameters are stepped row by row, and what a step makes of whole rows"),
        BETA_SAYS " `beta2` is of the rows' second moments." } },
    { "matrix",
      "optimizer-matrix",
      { "optimizer", "SOURCES plugin.c KIT", "-n 1",
        FILE_SAYS("which parameters are matrices, and what a step makes of a whole one"), BETA_SAYS } },
};
enum { GRAINS = sizeof grains / sizeof grains[0] };

/* The last lines of test.sh. */
static const char run_plain[] = "\"$tessera\" train mnist @RANKS@ --steps 3 --quiet --@KIND@ \"$plugin\"\n";
static const char run_twice[] =
    "# A batch is a rank's: one rank takes two of them in a step, as two ranks do, and ends in the same bits.\n"
    "digest() {\n"
    "  \"$tessera\" train mnist --steps 3 --deterministic --quiet --json --@KIND@ \"$plugin\" \"$@\" |\n"
    "    sed -n 's/.*\"params_digest\":\"\\([0-9a-f]*\\)\".*/\\1/p' | tail -n 1\n"
    "}\n"
    "one=$(digest -n 1 --accum 2) two=$(digest -n 2)\n"
    "if [ -z \"$one\" ] || [ \"$one\" != \"$two\" ]; then\n"
    "  echo \"one rank ends in the digest '$one', two ranks in '$two'\" >&2\n"
    "  exit 1\n"
    "fi\n";

typedef struct {
    const struct kind *kind;
    const char *name, *folder; /* folder: of the templates */
    char id[NAME_MOST + 8], key[NAME_MOST + 1], variable[NAME_MOST + 1], upper_kind[16];
} project;

static int refuse(int code, const char *format, const char *a, const char *b) {
    fputs("tessera plugins new: ", stderr);
    fprintf(stderr, format, a, b);
    fputc('\n', stderr);
    return code;
}

/* ---- what was asked for ------------------------------------------------------------------------- */

static void upper(char *out, size_t size, const char *text) {
    size_t i = 0;
    for (; text[i] && i + 1 < size; i++)
        out[i] = text[i] == '-' ? '_' : (char)(text[i] >= 'a' && text[i] <= 'z' ? text[i] - 32 : text[i]);
    out[i] = 0;
}

typedef struct {
    const struct kind *kind;
    const char *name;
    int found;
} name_search;

static void look_at(void *user, uint32_t kind, const char *name, const char *path) {
    name_search *s = user;
    s->found |= !*path && strcmp(plugin_kind_word(kind), s->kind->word) == 0 && strcmp(name, s->name) == 0;
}

static int is_builtin(const struct kind *kind, const char *name) {
    name_search s = { kind, name, strcmp(name, "auto") == 0 };
    plugin_each_known(look_at, &s);
    return s.found;
}

static int read_kind(const char *word, const struct kind **out) {
    const char *names[KINDS];
    for (int i = 0; i < KINDS; i++) {
        names[i] = kinds[i].word;
        if (strcmp(word, kinds[i].word) == 0) {
            *out = &kinds[i];
            return TOOL_OK;
        }
    }
    const char *near = tool_suggestion(word, names, KINDS);
    return refuse(TOOL_USAGE, "unknown kind '%s'%s", word,
                  *near ? near : "; expected comm, offload, precision, wrap, device or optimizer");
}

/* C identifiers begin with no digit, and keys of options have no underscore. */
static int read_name(project *p, const char *name) {
    if (!*name || strlen(name) > NAME_MOST || name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-")])
        return refuse(TOOL_USAGE, "'%s' is not a plugin's name, which is [a-z0-9_-]+ of at most 31 characters%s", name,
                      "");
    if (is_builtin(p->kind, name))
        return refuse(TOOL_USAGE, "%s '%s' is built in, a plugin of that name would never be found", p->kind->word,
                      name);
    p->name = name;
    snprintf(p->id, sizeof p->id, "%s%s", *name < 'a' ? "plugin_" : "", name);
    for (char *c = p->id; *c; c++)
        if (*c == '-')
            *c = '_';
    snprintf(p->key, sizeof p->key, "%s", strchr(name, '_') || *name == '-' ? p->kind->word : name);
    upper(p->variable, sizeof p->variable, p->key);
    upper(p->upper_kind, sizeof p->upper_kind, p->kind->word);
    return TOOL_OK;
}

/* ---- writing ------------------------------------------------------------------------------------ */

static void fill_in(FILE *out, const project *p, const char *text);

/* Returns the value of a word between two @, or null if the word is not one of ours. */
static const char *value_of(const project *p, const char *word, size_t n) {
    const int steps = strcmp(p->kind->word, "optimizer") == 0, two = strcmp(p->kind->ranks, "-n 2") == 0;
    const struct {
        const char *word, *value;
    } values[] = { { "NAME", p->name },
                   { "ID", p->id },
                   { "KEY", p->key },
                   { "VARIABLE", p->variable },
                   { "KIND", p->kind->word },
                   { "ARTICLE", p->kind->word[0] == 'o' ? "an" : "a" },
                   { "UPPERKIND", p->upper_kind },
                   { "SOURCES", p->kind->sources },
                   { "RANKS", p->kind->ranks },
                   { "RUN", steps ? run_twice : run_plain },
                   { "TRAINS", two     ? " on two ranks"
                               : steps ? ", with the same bits on one rank and on two"
                                       : "" },
                   { "FILES", p->kind->files },
                   { "SAYS", p->kind->says } };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (strlen(values[i].word) == n && memcmp(values[i].word, word, n) == 0)
            return values[i].value;
    return NULL;
}

static void fill_in(FILE *out, const project *p, const char *text) {
    while (*text) {
        size_t plain = strcspn(text, "@");
        fwrite(text, 1, plain, out);
        text += plain;
        if (!*text)
            break;
        size_t n = strcspn(text + 1, "@");
        const char *value = text[1 + n] == '@' ? value_of(p, text + 1, n) : NULL;
        if (!value) {
            fputc(*text++, out);
            continue;
        }
        fill_in(out, p, value); /* some values contain words themselves */
        text += n + 2;
    }
}

static int is_ours(const project *p, const plugin_template *t) {
    return strcmp(t->folder, "shared") == 0 || strcmp(t->folder, p->folder) == 0;
}

static int write_file(const project *p, const plugin_template *t, const char *folder) {
    char path[PATH_BYTES + 300];
    snprintf(path, sizeof path, "%s/%s", folder, t->name);
    FILE *out = fopen(path, "wx");
    if (!out)
        return -1;
    fill_in(out, p, t->text);
    int failed = ferror(out);
    return fclose(out) != 0 || failed ? -1 : 0;
}

static void remove_all(const project *p, const char *folder) {
    char path[PATH_BYTES + 300];
    for (const plugin_template *t = tool_plugin_templates; t->name; t++)
        if (is_ours(p, t)) {
            snprintf(path, sizeof path, "%s/%s", folder, t->name);
            unlink(path);
        }
    rmdir(folder);
}

static int write_all(const project *p, const char *folder) {
    mode_t mask = umask(0);
    umask(mask);
    if (chmod(folder, 0777 & ~mask) != 0)
        return -1;
    for (const plugin_template *t = tool_plugin_templates; t->name; t++)
        if (is_ours(p, t) && write_file(p, t, folder) != 0)
            return -1;
    return 0;
}

/* Writes all files into a temporary folder beside DIR and renames it, so DIR is complete or absent. The rename replaces
 * an empty folder and refuses one with files. */
static int create(const project *p, const char *dir) {
    char beside[PATH_BYTES + 16];
    snprintf(beside, sizeof beside, "%s.new-XXXXXX", dir);
    if (!mkdtemp(beside))
        return refuse(TOOL_CONFIG, "cannot create %s: %s", dir, strerror(errno));
    if (write_all(p, beside) == 0 && rename(beside, dir) == 0)
        return TOOL_OK;
    int why = errno;
    remove_all(p, beside);
    if (why == ENOTEMPTY || why == EEXIST)
        return refuse(TOOL_CONFIG, "%s is there and not empty%s", dir, "");
    return refuse(TOOL_CONFIG, "cannot create %s: %s", dir, strerror(why));
}

static int read_dir(const char *text, char dir[PATH_BYTES]) {
    size_t n = strlen(text);
    while (n > 1 && text[n - 1] == '/')
        n--;
    const char *last = text + n;
    while (last > text && last[-1] != '/')
        last--;
    size_t tail = (size_t)(text + n - last);
    if (!n || n > PATH_BYTES - 32 || (n == 1 && *text == '/') || (tail == 1 && *last == '.') ||
        (tail == 2 && memcmp(last, "..", 2) == 0))
        return refuse(TOOL_USAGE, "'%s' is not a folder that can be created%s", text, "");
    memcpy(dir, text, n);
    dir[n] = 0;
    return TOOL_OK;
}

/* Takes `--grain X` or `--grain=X` out of the arguments. */
static int read_grain(int *argc, char **argv, const char **grain) {
    int n = 0;
    for (int i = 0; i < *argc; i++) {
        if (strncmp(argv[i], "--grain=", 8) == 0)
            *grain = argv[i] + 8;
        else if (strcmp(argv[i], "--grain") != 0)
            argv[n++] = argv[i];
        else if (++i < *argc)
            *grain = argv[i];
        else
            return refuse(TOOL_USAGE, "--grain needs a value%s%s", "", ", element, block, row or matrix");
    }
    *argc = n;
    return TOOL_OK;
}

static int choose_template(project *p, const char *grain) {
    if (strcmp(p->kind->word, "optimizer") != 0) {
        p->folder = p->kind->word;
        return !grain ? TOOL_OK
                      : refuse(TOOL_USAGE, "--grain is of an optimizer, and '%s' is none%s", p->kind->word, "");
    }
    for (int i = 0; i < GRAINS; i++)
        if (strcmp(grain ? grain : grains[0].word, grains[i].word) == 0) {
            p->kind = &grains[i].kind;
            p->folder = grains[i].folder;
            return TOOL_OK;
        }
    return refuse(TOOL_USAGE, "--grain is '%s'%s", grain, ", expected element, block, row or matrix");
}

int plugins_new(int argc, char **argv) {
    project p = { .kind = NULL };
    char dir[PATH_BYTES];
    const char *grain = NULL;
    int code = read_grain(&argc, argv, &grain);
    if (code == TOOL_OK && argc != 4)
        return refuse(TOOL_USAGE, "expected KIND NAME DIR%s%s", "", "; try `tessera plugins --help`");
    if (code == TOOL_OK)
        code = read_kind(argv[1], &p.kind);
    if (code == TOOL_OK)
        code = choose_template(&p, grain);
    if (code == TOOL_OK)
        code = read_name(&p, argv[2]);
    if (code == TOOL_OK)
        code = read_dir(argv[3], dir);
    if (code == TOOL_OK)
        code = create(&p, dir);
    if (code != TOOL_OK)
        return code;
    printf("%s: %s %s plugin\n\n"
           "  cmake -S %s -B %s/build -DCMAKE_PREFIX_PATH=<where Tessera is installed>\n"
           "  cmake --build %s/build\n"
           "  ctest --test-dir %s/build\n",
           dir, *p.kind->word == 'o' ? "an" : "a", p.kind->word, dir, dir, dir, dir);
    return fflush(stdout) == 0 ? TOOL_OK : TOOL_CONFIG;
}
