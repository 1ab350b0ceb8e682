/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "narrow.h"

#include <stdlib.h>

void kit_narrow_close(void *ctx) {
    free(ctx);
}

tess_status kit_narrow_choose(void *ctx, const tess_param_view *param, tess_precision_choice *out, tess_error *error) {
    const kit_narrow *s = ctx;
    const kit_narrow_plugin *p = s->plugin;
    uint32_t dtype = param->dtype, readable = param->compute_mask ? param->compute_mask : 1u << dtype;
    int sixteen = dtype == TESS_F16 || dtype == TESS_BF16;
    tess_precision_choice choice = { .master = dtype,
                                     .compute = dtype,
                                     .gather = dtype,
                                     .grad_local = dtype,
                                     .grad_wire = dtype == TESS_F64 ? TESS_F32 : dtype,
                                     .accumulate = sixteen ? TESS_F32 : dtype };
    if (dtype == TESS_F32 && (readable >> p->dtype & 1u)) {
        choice.compute = choice.gather = p->dtype;
        choice.grad_local = s->grad;
        choice.grad_wire = s->wire;
        choice.products = s->products && (readable >> s->products & 1u) ? s->products : 0;
    } else if (dtype == TESS_F32 && !s->keep) {
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED,
                                "the program does not read it in %s, which TESSERA_PRECISION=%s needs "
                                "(%s_UNREADABLE=keep leaves such parameters in fp32)",
                                p->name, p->name, p->variables);
    } else if (dtype < 32 && !(readable >> dtype & 1u)) {
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "the program does not read its own dtype %s",
                                tess_dtype_name(dtype));
    }
    TESS_GIVE(out, &choice);
    return TESS_OK;
}

static tess_status read_options(const kit_narrow_plugin *p, const tess_host *host, kit_narrow *s, tess_error *error) {
    kit_option read[KIT_NARROW_MOST];
    tess_status status = kit_options_read(p->options, host, read, error);
    if (status < 0)
        return status;
    s->plugin = p;
    s->wire = read[KIT_NARROW_WIRE].value.number ? TESS_F32 : p->dtype;
    s->grad = read[KIT_NARROW_GRAD].value.number ? p->dtype : TESS_F32;
    s->keep = (int)read[KIT_NARROW_UNREADABLE].value.number;
    if (p->take)
        p->take(s, read);
    return TESS_OK;
}

tess_status kit_narrow_open(const kit_narrow_plugin *p, const tess_host *host, uint32_t kind, const void **out,
                            void **ctx, tess_error *error) {
    if (kind != TESS_KIND_PRECISION)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "plugin %s offers precision only", p->name);
    kit_narrow *s = calloc(1, p->bytes);
    if (!s)
        return tess_plugin_fail(error, TESS_E_NOMEM, "precision %s: no memory to open", p->name);
    tess_status status = read_options(p, host, s, error);
    if (status < 0) {
        free(s);
        return status;
    }
    *out = p->ops;
    *ctx = s;
    return TESS_OK;
}
