/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks of the file alone. None of its code runs here. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "elf_reader.h"
#include "internal.h"
#include "suites.h"
#include "tools/plugins/plugin_known.h"

static void open_file(check *c, check_elf *f) {
    check_that(c, check_elf_open(c->path, f) == 0, "cannot be read");
}

/* Names joined in one line. */
typedef struct {
    char text[CHECK_TEXT - 160];
    size_t n;
    int count;
} names;
static void add(names *l, const char *name) {
    if (l->count++ < 12)
        l->n += (size_t)snprintf(l->text + l->n, sizeof l->text - l->n, "%s%.60s", l->n ? ", " : "", name);
    if (l->n >= sizeof l->text)
        l->n = sizeof l->text - 1;
}

/* Builds for tests may import symbols of the sanitizers. */
static int is_instrumentation(const char *name) {
    static const char *const prefixes[] = { "__asan_", "__odr_asan", "__ubsan_",     "__tsan_",
                                            "__lsan_", "__msan_",    "__sanitizer_", "__gcov" };
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return 1;
    return 0;
}

/* ---- the descriptor ---------------------------------------------------------------------------- */

static void name_fits_file(check *c, const tess_plugin_note *note) {
    const char *file = strrchr(c->path, '/');
    char kind[16], name[64], rest[8];
    file = file ? file + 1 : c->path;
    if (sscanf(file, "libtessera-%15[a-z]-%63[a-z0-9_-]%7s", kind, name, rest) != 3 || strcmp(rest, ".so") != 0)
        return;
    check_that(c, strcmp(name, note->name) == 0, "the file is named %s, but the descriptor says '%s'", file,
               note->name);
    for (uint32_t k = 1; plugin_kind_word(k); k++)
        if (strcmp(plugin_kind_word(k), kind) == 0)
            check_that(c, note->kinds >> k & 1, "the file is named %s, but the descriptor's kinds (0x%x) lack it", file,
                       note->kinds);
}

static void descriptor(check *c) {
    tess_plugin_note note;
    char reason[PLUGIN_REASON_BYTES] = "";
    tess_status s = plugin_read_note(c->path, &note, reason);
    check_that(c, s == TESS_OK, "%s", reason);
    s = plugin_judge_note(&note, c->kind, reason);
    check_that(c, s == TESS_OK, "%s", reason);
    check_that(c, note.kinds >> 31 == 0 && !(note.kinds & 1), "the descriptor's kinds are 0x%x", note.kinds);
    name_fits_file(c, &note);
    check_elf f;
    ElfW(Shdr) section;
    open_file(c, &f);
    for (unsigned i = 0; check_elf_section(&f, i, &section) == 0; i++) {
        if (strcmp(check_elf_section_name(&f, &section), ".tessera.plugin") != 0)
            continue;
        check_that(c, !(section.sh_flags & SHF_WRITE), "section .tessera.plugin can be written: make the note const");
        check_that(c, section.sh_size == note.struct_size,
                   "section .tessera.plugin has %llu bytes, the note %u: it lies there alone",
                   (unsigned long long)section.sh_size, note.struct_size);
    }
    if (!*note.license)
        check_note(c, "no license is named");
}

/* Checks who can write the file, because a writer can change the code that runs. */
static void trusted_path(check *c) {
    char reason[PLUGIN_REASON_BYTES] = "";
    tess_status s = plugin_judge_file(c->path, reason);
    check_that(c, s == TESS_OK, "the loader would refuse it: %s", reason);
}

/* ---- symbols ----------------------------------------------------------------------------------- */

typedef struct {
    names found;
    int note, open;
} exported;

static void look_at_export(void *user, const check_symbol *s) {
    static const char *const linkers[] = { "_init", "_fini", "_edata", "_end", "__bss_start" };
    exported *x = user;
    if (!s->defined || s->binding == STB_LOCAL || s->visibility == STV_HIDDEN || s->visibility == STV_INTERNAL)
        return;
    int is_note = strcmp(s->name, "tess_plugin_note_v1") == 0, is_open = strcmp(s->name, "tess_plugin_open_v1") == 0;
    x->note |= is_note;
    x->open |= is_open;
    for (size_t i = 0; i < sizeof linkers / sizeof linkers[0]; i++)
        if (strcmp(s->name, linkers[i]) == 0)
            return;
    if (!is_note && !is_open && !is_instrumentation(s->name))
        add(&x->found, s->name);
}

static void exports(check *c) {
    exported x = { .note = 0 };
    check_elf f;
    open_file(c, &f);
    check_elf_symbols(&f, SHT_DYNSYM, look_at_export, &x);
    check_that(c, x.note, "does not export tess_plugin_note_v1");
    check_that(c, x.open, "does not export tess_plugin_open_v1");
    check_that(c, !x.found.count,
               "exports %d more than the descriptor and the open function: %s (link with -fvisibility=hidden and a "
               "version script)",
               x.found.count, x.found.text);
}

typedef struct {
    void *libraries[64];
    int n;
    check *c;
    names missing, borrowed;
} resolver;

static void load_needed(void *user, int64_t tag, uint64_t value, const char *text) {
    resolver *r = user;
    (void)value;
    if (tag != DT_NEEDED || !text || r->n == 64)
        return;
    void *library = dlopen(text, RTLD_LAZY | RTLD_LOCAL);
    check_that(r->c, library, "needs %s, which cannot be loaded: %s", text, dlerror());
    r->libraries[r->n++] = library;
}

static void resolve(void *user, const check_symbol *s) {
    resolver *r = user;
    if (s->defined || s->binding != STB_GLOBAL || is_instrumentation(s->name))
        return;
    for (int i = 0; i < r->n; i++)
        if (dlsym(r->libraries[i], s->name))
            return;
    add(dlsym(RTLD_DEFAULT, s->name) ? &r->borrowed : &r->missing, s->name);
}

static void undefined_symbols(check *c) {
    static resolver r;
    check_elf f;
    r.c = c;
    open_file(c, &f);
    check_elf_dynamic(&f, load_needed, &r);
    check_elf_symbols(&f, SHT_DYNSYM, resolve, &r);
    check_that(c, !r.missing.count, "%d symbols are in none of the libraries it names: %s", r.missing.count,
               r.missing.text);
    check_that(c, !r.borrowed.count, "%d symbols are only in libraries that the host program happens to have: %s",
               r.borrowed.count, r.borrowed.text);
}

/* ---- forbidden imports ------------------------------------------------------------------------- */

static const struct {
    const char *name, *why;
} forbidden[] = {
    { "getenv", "options come from host->option" },
    { "secure_getenv", "options come from host->option" },
    { "setenv", "the environment is the host's" },
    { "putenv", "the environment is the host's" },
    { "unsetenv", "the environment is the host's" },
    { "clearenv", "the environment is the host's" },
    { "atexit", "nothing of it runs while the host exits" },
    { "on_exit", "nothing of it runs while the host exits" },
    { "__cxa_atexit", "atexit, or a static object with a destructor: nothing of it runs while the host exits" },
    { "exit", "it never ends the host" },
    { "_exit", "it never ends the host" },
    { "_Exit", "it never ends the host" },
    { "quick_exit", "it never ends the host" },
    { "abort", "it never ends the host" },
    { "__assert_fail", "a failed assert ends the host: build with -DNDEBUG" },
    { "raise", "it raises no signal" },
    { "signal", "signal handlers are the host's" },
    { "bsd_signal", "signal handlers are the host's" },
    { "sigaction", "signal handlers are the host's" },
    { "sigprocmask", "in threads it is pthread_sigmask; restore what was there" },
    { "alarm", "it raises no signal" },
    { "setitimer", "it raises no signal" },
};

typedef struct {
    names found;
    const char *why;
} imported;

static void look_at_import(void *user, const check_symbol *s) {
    imported *x = user;
    for (size_t i = 0; !s->defined && i < sizeof forbidden / sizeof forbidden[0]; i++)
        if (strcmp(s->name, forbidden[i].name) == 0) {
            add(&x->found, s->name);
            x->why = forbidden[i].why;
        }
}

static void imports(check *c) {
    imported x = { .why = "" };
    check_elf f;
    open_file(c, &f);
    check_elf_symbols(&f, SHT_DYNSYM, look_at_import, &x);
    check_that(c, !x.found.count, "imports %s: %s", x.found.text, x.why);
}

static void look_for_core(void *user, const check_symbol *s) {
    if (!s->defined && strncmp(s->name, "tess_", 5) == 0)
        add(user, s->name);
}
static void look_for_core_library(void *user, int64_t tag, uint64_t value, const char *text) {
    (void)value;
    if (tag == DT_NEEDED && text && strncmp(text, "libtessera.so", 13) == 0)
        add(user, text);
}

static void no_link_to_core(check *c) {
    static names found;
    check_elf f;
    open_file(c, &f);
    check_elf_dynamic(&f, look_for_core_library, &found);
    check_elf_symbols(&f, SHT_DYNSYM, look_for_core, &found);
    check_that(c, !found.count, "links the core (%s): what it needs comes through the host table", found.text);
}

/* ---- how it is linked -------------------------------------------------------------------------- */

static void look_at_path(void *user, int64_t tag, uint64_t value, const char *text) {
    check *c = user;
    char reason[PLUGIN_REASON_BYTES] = "", copy[4096];
    (void)value;
    if ((tag != DT_RPATH && tag != DT_RUNPATH) || !text)
        return;
    const char *which = tag == DT_RPATH ? "RPATH" : "RUNPATH";
    check_that(c, *text && text[0] != ':' && text[strlen(text) - 1] != ':' && !strstr(text, "::"),
               "%s '%.200s' has an empty part, which is the working directory", which, text);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *part = strtok(copy, ":"); part; part = strtok(NULL, ":")) {
        check_that(c, *part == '/', "%s '%.200s': libraries are searched in a directory that is not absolute", which,
                   text);
        check_that(c, plugin_judge_directory(part, reason) == TESS_OK, "%s '%.200s': %s", which, text, reason);
    }
    check_note(c, "%s is %.150s", which, text);
}

static void rpath(check *c) {
    check_elf f;
    open_file(c, &f);
    check_elf_dynamic(&f, look_at_path, c);
}

static void executable_stack(check *c) {
    check_elf f;
    ElfW(Phdr) p;
    int said = 0;
    open_file(c, &f);
    for (unsigned i = 0; check_elf_segment(&f, i, &p) == 0; i++) {
        said |= p.p_type == PT_GNU_STACK;
        check_that(c, p.p_type != PT_GNU_STACK || !(p.p_flags & PF_X),
                   "asks for an executable stack (link with -Wl,-z,noexecstack)");
        check_that(c, p.p_type != PT_LOAD || !(p.p_flags & PF_X) || !(p.p_flags & PF_W),
                   "has a segment that is both written and executed");
    }
    check_that(c, said, "does not say that its stack is not executable (link with -Wl,-z,noexecstack)");
}

static void look_at_flags(void *user, int64_t tag, uint64_t value, const char *text) {
    (void)text;
    if (tag == DT_TEXTREL || (tag == DT_FLAGS && (value & DF_TEXTREL)))
        check_fail(user, "has relocations in its code (compile with -fPIC)");
}

static void text_relocations(check *c) {
    check_elf f;
    open_file(c, &f);
    check_elf_dynamic(&f, look_at_flags, c);
}

static void look_for_fast_math(void *user, const check_symbol *s) {
    if (s->defined && strcmp(s->name, "set_fast_math") == 0)
        check_fail(user, "its start-up code sets flush to zero (linked with -ffast-math, -Ofast or similar)");
}

/* Looks for crtfastmath.o by its symbol. A stripped file has none, but abi/load sees the mode change. */
static void fast_math(check *c) {
    check_elf f;
    open_file(c, &f);
    check_elf_symbols(&f, SHT_SYMTAB, look_for_fast_math, c);
}

const check_case check_cases_static[] = {
    { "descriptor", 1, descriptor, 0, 1 },
    { "trusted_path", 1, trusted_path, 0, 0 },
    { "exports", 1, exports, 0, 0 },
    { "undefined_symbols", 1, undefined_symbols, 0, 0 },
    { "imports", 1, imports, 0, 0 },
    { "no_link_to_core", 1, no_link_to_core, 0, 0 },
    { "rpath", 1, rpath, 0, 0 },
    { "executable_stack", 1, executable_stack, 0, 0 },
    { "text_relocations", 1, text_relocations, 0, 0 },
    { "fast_math", 1, fast_math, 0, 0 },
    { 0 },
};
