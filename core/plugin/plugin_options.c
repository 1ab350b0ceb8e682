/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "base/status.h"
#include "elf_note.h"

#define REFUSE(status, ...) (snprintf(reason, TESS_REASON_BYTES, __VA_ARGS__), (status))

static tess_status make_known(const tess__plugin *p, char reason[TESS_REASON_BYTES]) {
    tess_status s = tess__options_register(tess__kind_name(p->kind), p->name, p->options, p->n_options);
    return s ? REFUSE(s, "%s", tess_last_error()) : TESS_OK;
}

/* ---- declared ---------------------------------------------------------------------------------- */

/* Whether an option is of another kind that the same file offers. */
static int of_other_kind(const tess__plugin *p, uint32_t kinds, const char *key) {
    if (tess__option_has_prefix(key, p->name) || tess__option_has_prefix(key, tess__kind_name(p->kind)))
        return 0;
    for (uint32_t kind = 1; tess__kind_name(kind); kind++)
        if ((kinds & 1u << kind) && tess__option_has_prefix(key, tess__kind_name(kind)))
            return 1;
    return 0;
}

static void keep_own(tess__plugin *p, const tess_plugin_note *note) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_options; i++) {
        tess_option_spec *o = &p->options[i];
        if (memchr(o->key, 0, sizeof o->key) && of_other_kind(p, note->kinds, o->key))
            continue;
        if (o->type > TESS_OPTION_LIST && note->abi_minor > TESS_ABI_MINOR)
            o->type = TESS_OPTION_TEXT; /* a later header's type, which only the plugin can judge */
        p->options[n++] = *o;
    }
    p->n_options = n;
}

tess_status tess__plugin_options_declared(tess__plugin *p, const tess_plugin_note *note,
                                          char reason[TESS_REASON_BYTES]) {
    if (tess__core_minor < 2)
        return TESS_OK;
    tess_status s = tess__elf_options_file(p->path, &p->options, &p->n_options, reason, TESS_REASON_BYTES);
    p->options_declared = p->n_options > 0;
    if (s || !p->options_declared)
        return s;
    keep_own(p, note);
    return make_known(p, reason);
}

/* ---- asked ------------------------------------------------------------------------------------- */

static void copy_text(char *out, size_t room, const char *text) {
    snprintf(out, room, "%s", text ? text : "");
}

/* One option of ABI 1.0, whose choices stand in `fallback`. A list too long to hold is not checked. */
static tess_option_spec spec_of(const tess_option *o) {
    tess_option_spec spec = { .struct_size = sizeof spec, .type = o->type };
    const char *fallback = o->fallback ? o->fallback : "";
    tess_option_value value;
    copy_text(spec.key, sizeof spec.key, o->key);
    copy_text(spec.help, sizeof spec.help, o->help);
    if (o->type == TESS_OPTION_CHOICE && (!*fallback || strlen(fallback) >= sizeof spec.choices))
        spec.type = TESS_OPTION_TEXT;
    if (spec.type == TESS_OPTION_CHOICE) {
        copy_text(spec.choices, sizeof spec.choices, fallback);
        copy_text(spec.fallback, sizeof spec.fallback, fallback);
        spec.fallback[strcspn(spec.fallback, "|")] = 0;
    } else if (strlen(fallback) < sizeof spec.fallback && tess_option_parse(&spec, fallback, &value)) {
        copy_text(spec.fallback, sizeof spec.fallback, fallback);
    }
    return spec;
}

static tess_status copy_list(tess__plugin *p, const tess_option *first, uint32_t n, char reason[TESS_REASON_BYTES]) {
    if (n == 0)
        return TESS_OK;
    if (!first || first->struct_size < sizeof *first || n > 1000)
        return REFUSE(TESS_E_INVALID, "its options slot gives %u options of %u bytes each, expected at least %zu", n,
                      first ? first->struct_size : 0, sizeof *first);
    p->options = calloc(n, sizeof *p->options);
    if (!p->options)
        return REFUSE(TESS_E_NOMEM, "no memory for its options");
    for (; p->n_options < n; p->n_options++) {
        const tess_option *o = (const void *)((const char *)first + (size_t)p->n_options * first->struct_size);
        if (o->type > TESS_OPTION_CHOICE)
            return REFUSE(TESS_E_INVALID, "declares option '%s' of unknown type %u", o->key ? o->key : "(null)",
                          o->type);
        p->options[p->n_options] = spec_of(o);
    }
    return TESS_OK;
}

/* Built-in plugins without options are not registered: another plugin may use the same prefix, and its variables must
 * not be refused as unknown. */
tess_status tess__plugin_options_asked(tess__plugin *p, char reason[TESS_REASON_BYTES]) {
    const tess__common_ops *ops = p->ops;
    const tess_option *list = NULL;
    uint32_t n = 0;
    if (p->options_declared)
        return TESS_OK;
    tess_status s = TESS_CAN(tess__common_ops, ops, options) ? ops->options(p->ctx, &list, &n) : TESS_OK;
    if (s)
        return REFUSE(TESS_E_INVALID, "its options slot returned %s", tess__status_name(s));
    s = copy_list(p, list, n, reason);
    return s || (!p->library && n == 0) ? s : make_known(p, reason);
}
