/* SPDX-License-Identifier: BSD-3-Clause */
/* Choices of plugins for each parameter and region, and their refusals, equal those that are kept. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "core/base/status.h"
#include <tessera/plugin_helpers.h>
#include "core/plugin/open.h"
#include "tests/unit/kept.h"

static kept k;

static const tess__plugin *opened(uint32_t kind, const char *selection) {
    static char line[KEPT_LINE];
    tess__plugin *p = NULL;
    tess_status s = tess__plugin_open(kind, selection, NULL, &p);
    if (!s)
        return p;
    const char *said = strstr(tess_last_error(), "open failed: "); /* behind the plugin's path */
    assert_non_null(said);
    snprintf(line, sizeof line, "%s: status %d, %s", selection, s, said);
    kept_line(&k, line);
    return NULL;
}

/* ---- precision ---- */

static void print_choice(const char *selection, const tess__plugin *p, const tess_param_view *v) {
    const tess_precision_ops *ops = p->ops;
    tess_precision_choice c = { .struct_size = sizeof c };
    tess_error e = { .struct_size = sizeof e };
    char line[KEPT_LINE];
    tess_status s = ops->choose(p->ctx, v, &c, &e);
    int at = snprintf(line, sizeof line, "%s, %s%s of kernels %x: ", selection, v->flags ? "frozen " : "",
                      tess_dtype_name(v->dtype), v->compute_mask);
    if (s)
        snprintf(line + at, sizeof line - (size_t)at, "status %d, %s", s, e.message);
    else
        snprintf(line + at, sizeof line - (size_t)at, "%s %s %s %s %s %s, rounding %u, products %u",
                 tess_dtype_name(c.master), tess_dtype_name(c.compute), tess_dtype_name(c.gather),
                 tess_dtype_name(c.grad_local), tess_dtype_name(c.grad_wire), tess_dtype_name(c.accumulate), c.rounding,
                 c.products);
    kept_line(&k, line);
}

static void print_scaling(const char *selection, const tess__plugin *p) {
    const tess_precision_ops *ops = p->ops;
    tess_loss_scaling x = { .struct_size = sizeof x };
    tess_error e = { .struct_size = sizeof e };
    char line[KEPT_LINE];
    if (!TESS_CAN(tess_precision_ops, ops, loss_scaling))
        return;
    assert_int_equal(ops->loss_scaling(p->ctx, &x, &e), TESS_OK);
    snprintf(line, sizeof line, "%s: scale %a, growth %a, backoff %a, least %a, every %u", selection, (double)x.init,
             (double)x.growth, (double)x.backoff, (double)x.least, x.every);
    kept_line(&k, line);
}

static void print_precision(const char *selection) {
    static const uint32_t dtypes[] = { TESS_F32, TESS_F64, TESS_BF16, TESS_F16, TESS_I64 },
                          masks[] = { 0, 1u << TESS_F32, 1u << TESS_BF16 | 1u << TESS_F8E4M3,
                                      1u << TESS_F32 | 1u << TESS_F64 | 1u << TESS_F16 | 1u << TESS_BF16 };
    const tess__plugin *p = opened(TESS_KIND_PRECISION, selection);
    if (!p)
        return;
    for (int i = 0; i < 5 * 4; i++) {
        tess_param_view v = { .struct_size = sizeof v, .name = "h.0.w", .elems = 4096 };
        v.dtype = dtypes[i / 4], v.compute_mask = masks[i % 4], v.flags = i % 3 == 0;
        print_choice(selection, p, &v);
    }
    print_scaling(selection, p);
    tess__plugin_close((tess__plugin *)(uintptr_t)p);
}

static void test_kept_choices__of_precision(void **state) {
    (void)state;
    static const char *const selections[] = { "fp32",
                                              "fp32:x",
                                              "bf16",
                                              "bf16:grad=bf16",
                                              "bf16:wire=fp32",
                                              "bf16:products=fp8",
                                              "bf16:wire=f",
                                              "fp16",
                                              "fp16:grad=fp16,wire=fp32",
                                              "fp16:scale=off",
                                              "fp16:init=1024,growth=4,backoff=0.25,every=7,least=2",
                                              "fp16:init=1000",
                                              "fp16:init=1,least=2",
                                              "fp16:growth=3",
                                              "fp16:backoff=0.3",
                                              "wire8",
                                              "wire8:fp8",
                                              "wire8:format=fp8,compute=bf16",
                                              "wire8:sends=parameters",
                                              "wire8:sends=gradients,compute=bf16",
                                              "wire8:rounding=stochastic",
                                              "wire8:sends=none" };
    k = kept_open("plugins/kept_precision.txt");
    for (size_t i = 0; i < sizeof selections / sizeof *selections; i++)
        print_precision(selections[i]);
    kept_close(&k);
}

/* ---- offload ---- */

enum { UNITS = 5, REGIONS = 5 * UNITS + 1 };

static void list_regions(tess_region *r) {
    static const uint32_t kinds[5][2] = { { TESS_REGION_MASTER, 0 },
                                          { TESS_REGION_MASTER, 1 },
                                          { TESS_REGION_GRAD, 0 },
                                          { TESS_REGION_STATE, 0 },
                                          { TESS_REGION_STATE, 1 } };
    for (int i = 0; i < REGIONS; i++)
        r[i] = (tess_region){ .struct_size = sizeof *r,
                              .region = i < 5 * UNITS ? kinds[i % 5][0] : TESS_REGION_ACTIVATION,
                              .index = i < 5 * UNITS ? kinds[i % 5][1] : 0,
                              .dtype = TESS_F32,
                              .unit = i < 5 * UNITS ? i / 5 : -1,
                              .group = i < 5 * UNITS ? i / 5 : -1,
                              .elems = 1000,
                              .bytes = 4000 };
}

static void print_offload(const char *selection) {
    const tess_plan_env env = { .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = 2 };
    tess_region regions[REGIONS];
    tess_placement out[REGIONS];
    tess_error e = { .struct_size = sizeof e };
    char line[KEPT_LINE];
    const tess__plugin *p = opened(TESS_KIND_OFFLOAD, selection);
    if (!p)
        return;
    list_regions(regions);
    for (int i = 0; i < REGIONS; i++)
        out[i] = (tess_placement){ .struct_size = sizeof *out };
    tess_status s = ((const tess_offload_ops *)p->ops)->place(p->ctx, &env, regions, REGIONS, out, &e);
    int at = snprintf(line, sizeof line, "%s: status %d %s", selection, s, s ? e.message : "");
    for (int i = 0; !s && i < REGIONS; i++)
        at += snprintf(line + at, sizeof line - (size_t)at, "%s%u/%llu/%llu/%llu", i % 5 ? " " : ", ", out[i].rest,
                       (unsigned long long)out[i].host_bytes, (unsigned long long)out[i].pinned_bytes,
                       (unsigned long long)out[i].align);
    kept_line(&k, line);
    tess__plugin_close((tess__plugin *)(uintptr_t)p);
}

static void test_kept_choices__of_offload(void **state) {
    (void)state;
    static const char *const selections[] = { "none",
                                              "none:x",
                                              "cpu",
                                              "cpu:params",
                                              "cpu:grads",
                                              "cpu:what=optimizer",
                                              "cpu:fraction=0.5",
                                              "cpu:fraction=0.3,what=grads",
                                              "cpu:params,optimizer",
                                              "cpu:fraction=0",
                                              "cpu:pinned=0",
                                              "cpu:pinned=7999",
                                              "cpu:pinned=8000",
                                              "cpu:fraction=1.5",
                                              "disk",
                                              "disk:/tmp",
                                              "disk:/tmp,what=all",
                                              "disk:/tmp,what=params",
                                              "disk:/tmp,what=grads",
                                              "disk:dir=/tmp,fraction=0.6",
                                              "disk:/tmp,depth=0",
                                              "disk:/tmp,threads=65" };
    k = kept_open("plugins/kept_offload.txt");
    for (size_t i = 0; i < sizeof selections / sizeof *selections; i++)
        print_offload(selections[i]);
    kept_close(&k);
}

/* ---- optimizers ---- */

static void print_step(const char *selection, const tess__plugin *p, const tess_param_view *v, uint32_t flags) {
    tess_grain g = { .struct_size = sizeof g };
    tess_error e = { .struct_size = sizeof e };
    char line[KEPT_LINE];
    tess_status s = ((const tess_optimizer_ops *)p->ops)->describe(p->ctx, v, flags, &g, &e);
    int at = snprintf(line, sizeof line, "%s, %s of %llu in %d dimensions%s: ", selection, v->name,
                      (unsigned long long)v->elems, v->ndim, flags ? ", momentum" : "");
    if (s)
        snprintf(line + at, sizeof line - (size_t)at, "status %d, %s", s, e.message);
    else
        at += snprintf(line + at, sizeof line - (size_t)at,
                       "grain %u, block %u, kernel %u, %llu x %llu, scratch %llu, whole %u", g.grain, g.block, g.kernel,
                       (unsigned long long)g.rows, (unsigned long long)g.cols, (unsigned long long)g.scratch_bytes,
                       g.whole);
    for (uint32_t i = 0; !s && i < g.n_states; i++)
        at += snprintf(line + at, sizeof line - (size_t)at, ", %s %s for %u", g.state[i].name,
                       tess_dtype_name(g.state[i].dtype), g.state[i].every);
    kept_line(&k, line);
}

static void print_optimizer(const char *selection) {
    static const int64_t shapes[][3] = { { 64, 0, 0 },   { 64, 32, 0 },  { 100, 300, 0 }, { 3, 64, 48 },
                                         { 8192, 1, 0 }, { 1, 5000, 0 }, { 4096, 0, 0 } };
    static const char *const names[] = { "h.0.mlp.w", "wte.weight", "lm_head.weight" };
    const tess__plugin *p = opened(TESS_KIND_OPTIMIZER, selection);
    if (!p)
        return;
    for (int i = 0; i < 7 * 3; i++) {
        const int64_t *x = shapes[i / 3];
        tess_param_view v = { .struct_size = sizeof v, .dtype = TESS_F32, .name = names[i % 3], .shape = x };
        v.ndim = x[2] ? 3 : x[1] ? 2 : 1;
        v.elems = (uint64_t)(x[0] * (x[1] ? x[1] : 1) * (x[2] ? x[2] : 1));
        print_step(selection, p, &v, i % 4 == 1 ? TESS_STEPS_MOMENTUM : 0);
    }
    tess__plugin_close((tess__plugin *)(uintptr_t)p);
}

static void test_kept_choices__of_optimizers(void **state) {
    (void)state;
    static const char *const selections[] = { "adamw8bit",
                                              "adamw8bit:least=0",
                                              "adamw8bit:least=8193",
                                              "adamw8bit:least=-1",
                                              "lion",
                                              "lion:beta1=1",
                                              "muon",
                                              "muon:adamw=none",
                                              "muon:adamw=wte*|lm_head*",
                                              "muon:steps=21",
                                              "muon:scale=original" };
    k = kept_open("plugins/kept_optimizers.txt");
    for (size_t i = 0; i < sizeof selections / sizeof *selections; i++)
        print_optimizer(selections[i]);
    kept_close(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept_choices__of_precision),
        cmocka_unit_test(test_kept_choices__of_offload),
        cmocka_unit_test(test_kept_choices__of_optimizers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
