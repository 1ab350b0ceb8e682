/* SPDX-License-Identifier: BSD-3-Clause */
/* libFuzzer: any bytes as module patterns of a wrap policy, as its size (after an s), or as activations (after an a).
 */
#include "core/builtin/builtins.h"
#include "core/plan/activations.h"
#include "core/layout/wrap.h"
#include "fuzz_input.h"

static tess__model model;

static void declare(void) {
    static const char *const scopes[] = { "", "h.0", "h.1", "h.1.mlp", "head" };
    static const char *const names[] = { "wte", "h.0.attn.w", "h.0.mlp.w", "h.1.attn.w", "h.1.mlp.w", "head.w" };
    static const int64_t shape = 64;
    for (size_t i = 0; i < sizeof scopes / sizeof *scopes; i++)
        tess__model_add_scope(&model, scopes[i], 0, NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        tess_param_options o = {
            .struct_size = sizeof o, .dtype = TESS_F32, .name = names[i], .shape = &shape, .ndim = 1
        };
        if (tess__model_add_param(&model, &o, NULL) != TESS_OK)
            abort();
    }
    if (tess__model_finish(&model) != TESS_OK)
        abort();
}

static void wrap(int by_size, const char *args) {
    tess_host host = { .struct_size = sizeof host, .args = args };
    tess_plan_env env = { .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = 2 };
    const void *ops = NULL;
    void *ctx = NULL;
    tess_error e = { .struct_size = sizeof e };
    int32_t unit[64], n = 0;
    tess_status s =
        by_size ? tess__wrap_size_open(&host, &ops, &ctx, &e) : tess__wrap_module_open(&host, &ops, &ctx, &e);
    if (s != TESS_OK && !*e.message)
        abort();
    if (s != TESS_OK)
        return;
    uint64_t before = tess__fail_count();
    s = tess__wrap_apply_planned(&model, ops, ctx, "module", &env, NULL, NULL, unit, &n);
    fuzz_check(s != TESS_OK, before);
    for (int i = 0; s == TESS_OK && i < model.n_params; i++)
        if (unit[i] < 0 || unit[i] >= n)
            abort();
    if (TESS_CAN(tess_wrap_ops, (const tess_wrap_ops *)ops, close))
        ((const tess_wrap_ops *)ops)->close(ctx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!model.finished)
        declare();
    if (size < 1)
        return 0;
    char *text = fuzz_text(data + 1, size - 1);
    uint64_t before = tess__fail_count();
    if (data[0] == 'a')
        fuzz_check(tess__activations_check(text) != TESS_OK, before);
    else
        wrap(data[0] == 's', text);
    free(text);
    return 0;
}
