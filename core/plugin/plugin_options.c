/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "base/status.h"
#include "elf_note.h"

#define REFUSE(status, ...) (snprintf(reason, TESS_REASON_BYTES, __VA_ARGS__), (status))

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

tess_status tess__plugin_options(tess__plugin *p, const tess_plugin_note *note, char reason[TESS_REASON_BYTES]) {
    TRY(tess__elf_options_file(p->path, &p->options, &p->n_options, reason, TESS_REASON_BYTES));
    keep_own(p, note);
    tess_status s = tess__options_register(tess__kind_name(p->kind), p->name, p->options, p->n_options);
    return s ? REFUSE(s, "%s", tess_last_error()) : TESS_OK;
}
