/* SPDX-License-Identifier: BSD-3-Clause */
/* A pass that deviates from the compiled order: the compiler goes on one event at a time, and the order that was seen
 * becomes the compiled one. */
#include "state.h"

#include "base/log.h"
#include "base/status.h"

/* Marks what lives now as taken, so that room for more is found around it. */
static tess_status take_live(tess *t) {
    const tess__compiler *b = &t->plan.compiler;
    tess__first_fit_reset(&t->memory.first_fit, t->memory.arena_bytes[TESS_DOMAIN_DEVICE][TESS__STEP]);
    for (size_t i = 0; i < (size_t)TESS__N_ROLES * (size_t)b->stride; i++)
        if (b->buffer_of[i] >= 0 && b->p->buffers[b->buffer_of[i]].arena == TESS__STEP &&
            b->p->buffers[b->buffer_of[i]].domain == TESS_DOMAIN_DEVICE)
            TRY(tess__first_fit_take(&t->memory.first_fit, b->p->buffers[b->buffer_of[i]].offset,
                                     b->p->buffers[b->buffer_of[i]].bytes));
    return TESS_OK;
}

static const char *event_words(uint8_t type) {
    return type == TESS__FORWARD_BEGIN    ? "begin of forward of"
           : type == TESS__FORWARD_END    ? "end of forward of"
           : type == TESS__BACKWARD_BEGIN ? "begin of backward of"
                                          : "end of backward of";
}

/* With TESSERA_STRICT=1 an unexpected event is an error. A negative scope stands for the end of the pass. */
static tess_status refuse(const tess *t, uint8_t type, int32_t scope) {
    char missing[400] = "", expected[256] = "the end of the pass";
    if (scope < 0)
        tess__missing_scope(t, missing, sizeof missing);
    if (missing[0])
        return tess__fail(TESS_E_MISMATCH, "the pass deviates from the declared order: %s (TESSERA_STRICT=1)", missing);
    if (t->pass.pc < t->pass.program->n_instrs)
        tess__program_text(t->pass.program, &t->plan.model, &t->plan.layout, t->pass.pc, expected, sizeof expected);
    if (scope < 0)
        return tess__fail(TESS_E_MISMATCH,
                          "the pass deviates from the declared order: expected %s, got the end of the pass "
                          "(TESSERA_STRICT=1)",
                          expected);
    return tess__fail(TESS_E_MISMATCH,
                      "the pass deviates from the declared order: expected %s, got %s \"%s\" (TESSERA_STRICT=1)",
                      expected, event_words(type), t->plan.model.scopes[scope].name);
}

tess_status tess__deviate(tess *t, uint8_t type, int32_t scope) {
    TRY(tess__execute(t, &t->pass.pc, TESS__TO_EVENT));
    if (t->settings.strict)
        return refuse(t, type, scope);
    TRY(tess__compile_again(&t->plan.compiler, t->pass.program, t->pass.pc, &t->pass.deviating_program));
    TRY(take_live(t));
    t->pass.program = &t->pass.deviating_program;
    t->memory.deviating = 1;
    return TESS_OK;
}

tess_status tess__recompile_pass(tess *t, uint32_t pass_kind, tess__program *slot) {
    tess__program fresh = { 0 };
    uint32_t kind = t->pass.deviating_program.kind;
    char missing[400];
    t->pass.kind = t->comms.pass_kind = pass_kind;
    tess__missing_scope(t, missing, sizeof missing);
    t->pass.kind = t->comms.pass_kind = 0;
    tess_status s = tess__compile_pass(&t->plan.compiler, kind, &t->pass.deviating_program, 0, &fresh);
    if (s) {
        tess__program_free(&fresh);
        return s;
    }
    tess__program_free(slot);
    *slot = fresh;
    t->pass.n_recompiles++;
    if (t->comms.world.rank == 0)
        tess__log(TESS_LOG_INFO,
                  "the order of scopes deviates from the declared one%s%s: recompiled (%s pass, time %llu)",
                  missing[0] ? ", as " : "", missing, kind == TESS_PASS_EVAL ? "evaluation" : "training",
                  (unsigned long long)t->pass.n_recompiles);
    TRY(tess__handshake_programs(t, slot, 1));
    TRY(tess__plan_check_budget(&t->plan));
    tess__graphs_drop(&t->graphs, &t->device);
    TRY(tess__step_arena_grow(&t->memory));
    if (tess__comms_share_memory(&t->comms))
        TRY(tess__streams_sync(&t->streams));
    return tess__memory_share(&t->memory);
}
