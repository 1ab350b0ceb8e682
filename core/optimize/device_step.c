/* SPDX-License-Identifier: BSD-3-Clause */
/* The step of an optimizer plugin on a device's stream: one piece for each parameter that this rank has a part of. */
#include "step.h"

#include "base/crash.h"
#include "base/status.h"
#include "plugin/open.h"

static tess_status failed(tess_status status, const tess__plugin *plugin, const tess_error *e) {
    return status ? tess__plugin_failed(status, TESS_KIND_OPTIMIZER, plugin, e) : TESS_OK;
}

tess_status tess__device_steps_open(const tess__plugin *plugin, const tess_stream *stream, void **out) {
    const tess_optimizer_ops *ops = plugin->ops;
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    return failed(ops->device_open(plugin->ctx, stream->mem, stream, out, &e), plugin, &e);
}

void tess__device_steps_close(const tess__plugin *plugin, void *opened) {
    if (!opened)
        return;
    const tess_optimizer_ops *ops = plugin->ops;
    ops->device_close(opened);
}

tess_status tess__step_on_device(const tess__step *step, const tess__memory *memory, const tess__plugin *plugin,
                                 void *opened, int32_t g, const tess_stream *stream) {
    const tess__plan *plan = memory->plan;
    const tess__group *group = &plan->layout.groups[g];
    const tess_optimizer_ops *ops = plugin->ops;
    tess_optimizer_piece piece = tess__piece_of_step(step, TESS_PHASE_WHOLE);
    tess_device_piece on = { .struct_size = sizeof on,
                             .piece = &piece,
                             .clip = step->kernel.clip,
                             .grad_scale = step->kernel.grad_scale,
                             .not_finite = step->kernel.not_finite };
    for (int32_t i = 0; i < group->n_params; i++) {
        const tess__param *p = &plan->model.params[plan->layout.order[group->first_param + i]];
        const tess_param_view view = tess__param_view_of(p);
        tess__piece own = tess__layout_piece(&plan->layout, p, memory->comms->shard_rank);
        tess_error e = { .struct_size = sizeof e, .rank = -1 };
        if (!own.elems)
            continue;
        piece.param = &view;
        piece.first = own.in_param;
        piece.elems = own.elems;
        tess__piece_settings(step, g, own.in_shard, &piece);
        piece.master = (float *)tess__master_address(memory, g) + own.in_shard;
        piece.grad = (const float *)tess__grad_address(memory, g) + own.in_shard;
        for (uint32_t k = 0; k < group->step.n_states; k++)
            piece.state[k] = (char *)tess__state_address(memory, (int)k, g) +
                             own.in_shard / group->step.state[k].every * tess_dtype_bytes(group->step.state[k].dtype);
        const tess__crash_place place = { "optimizer", plugin->name, "device_step", p->name };
        tess__crash_now = &place;
        tess_status status = ops->device_step(opened, &on, stream, &e);
        tess__crash_now = NULL;
        TRY(failed(status, plugin, &e));
    }
    return TESS_OK;
}
