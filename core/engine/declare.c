/* SPDX-License-Identifier: BSD-3-Clause */
/* Declarations of a program: scopes, parameters, blocks. */
#include "state.h"

tess_status tess_scope_add(tess *t, const char *name, int64_t stack, tess_scope *first) {
    TESS__PUBLIC(t, tess__model_add_scope(&t->plan.model, name, stack, first));
}

static tess_status add_param(tess *t, tess_param_options *o, const tess_param_options *given, tess_param *first) {
    tess_status s = tess__copy_options("tess_param_add", o, sizeof *o, TESS__UP_TO(tess_param_options, tag), given);
    return s ? s : tess__model_add_param(&t->plan.model, o, first);
}

static tess_status add_block(tess *t, tess_block_options *o, const tess_block_options *given, tess_scope *scope) {
    tess_status s = tess__copy_options("tess_block_add", o, sizeof *o, TESS__UP_TO(tess_block_options, user), given);
    return s ? s : tess__model_add_block(&t->plan.model, o, scope);
}

tess_status tess_param_add(tess *t, const tess_param_options *options, tess_param *first) {
    tess_param_options o;
    TESS__PUBLIC(t, add_param(t, &o, options, first));
}

tess_status tess_param_tie(tess *t, const char *alias, const char *of) {
    TESS__PUBLIC(t, tess__model_tie(&t->plan.model, alias, of));
}

tess_status tess_block_add(tess *t, const tess_block_options *options, tess_scope *scope) {
    tess_block_options o;
    TESS__PUBLIC(t, add_block(t, &o, options, scope));
}
