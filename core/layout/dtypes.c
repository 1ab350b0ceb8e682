/* SPDX-License-Identifier: BSD-3-Clause */
#include "dtypes.h"

#include "grain.h"
#include "base/status.h"

enum { NARROW_FLOATS = 1 << TESS_F16 | 1 << TESS_BF16 | 1 << TESS_F8E4M3 | 1 << TESS_F8E5M2 };

/* Opaque bytes have no precision to choose. */
static tess_precision_choice opaque_choice(void) {
    return (tess_precision_choice){ .struct_size = sizeof(tess_precision_choice),
                                    .master = TESS_U8,
                                    .compute = TESS_U8,
                                    .gather = TESS_U8,
                                    .grad_local = TESS_F32,
                                    .grad_wire = TESS_F32,
                                    .accumulate = TESS_F32 };
}

int tess__draws_of(const tess_precision_choice *c) {
    return c->rounding == TESS_ROUND_STOCHASTIC &&
           (tess_dtype_is_blocks(c->gather) || tess_dtype_is_blocks(c->grad_wire));
}

/* Blocks of 8 bits are made of fp32, by the device. */
static tess_status check_blocks(const tess__setup *s, const tess__param *p, const tess_precision_choice *c) {
    int gathers = tess_dtype_is_blocks(c->gather), sends = tess_dtype_is_blocks(c->grad_wire);
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_CAST,
                      .in_dtype = TESS_F32,
                      .out_dtype = gathers ? c->gather : c->grad_wire };
    tess_need need = { .struct_size = sizeof need };
    tess_device_info info = { .struct_size = sizeof info };
    const tess_rounding draws = { .struct_size = sizeof draws };
    if (!gathers && !sends)
        return TESS_OK;
    if (c->master != TESS_F32 || c->grad_local != TESS_F32)
        return tess__fail(TESS_E_UNSUPPORTED,
                          "parameter \"%s\": the precision plugin sends %s and %s in blocks of 8 bits, expected fp32",
                          p->name, tess_dtype_name(c->master), tess_dtype_name(c->grad_local));
    k.n_in = 1;
    k.rounding = tess__draws_of(c) ? &draws : NULL;
    if (s->device->kernel_need(s->device_ctx, &k, &need) == TESS_OK)
        return TESS_OK;
    s->device->describe(s->device_ctx, -1, &info, NULL);
    return tess__fail(TESS_E_UNSUPPORTED,
                      "parameter \"%s\": TESSERA_PRECISION sends blocks of 8 bits%s, which device %s does not make: "
                      "TESSERA_DEVICE=cpu, or TESSERA_PRECISION=bf16",
                      p->name, k.rounding ? " by draws" : "", info.name);
}

tess_status tess__param_dtypes(const tess__setup *s, const tess__param *p, tess_precision_choice *c) {
    tess_param_view v = tess__param_view_of(p);
    tess_error e = { .struct_size = sizeof e };
    *c = p->dtype == TESS_U8 ? opaque_choice() : (tess_precision_choice){ .struct_size = sizeof *c };
    if (p->dtype == TESS_U8)
        return TESS_OK;
    tess_status status = s->precision->choose(s->precision_ctx, &v, c, &e);
    if (status)
        return tess__fail(status, "parameter \"%s\": %s", p->name, e.message);
    uint32_t readable = p->compute_dtypes ? p->compute_dtypes : 1u << p->dtype;
    if (!(readable >> c->compute & 1))
        return tess__fail(TESS_E_UNSUPPORTED,
                          "parameter \"%s\": TESSERA_PRECISION asks for compute in %s, which this program's kernels do "
                          "not read",
                          p->name, tess_dtype_name(c->compute));
    if (c->gather != c->compute && !tess_dtype_is_blocks(c->gather))
        return tess__fail(TESS_E_UNSUPPORTED, "parameter \"%s\": the precision plugin gathers in a format of its own",
                          p->name);
    TRY(check_blocks(s, p, c));
    if (c->rounding > TESS_ROUND_STOCHASTIC)
        return tess__fail(TESS_E_UNSUPPORTED,
                          "parameter \"%s\": the precision plugin asks for rounding %u, which is none", p->name,
                          c->rounding);
    if (c->products && (c->products != TESS_F8E4M3 || !(readable >> TESS_F8E4M3 & 1)))
        return tess__fail(
            TESS_E_UNSUPPORTED,
            "parameter \"%s\": the precision plugin asks for products in %s, which this program's kernels "
            "do not round to",
            p->name, tess_dtype_name(c->products));
    if (1u << c->accumulate & NARROW_FLOATS)
        return tess__fail(TESS_E_UNSUPPORTED,
                          "parameter \"%s\": the precision plugin asks for sums in %s, expected fp32", p->name,
                          tess_dtype_name(c->accumulate));
    return TESS_OK;
}
