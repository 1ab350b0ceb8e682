/* SPDX-License-Identifier: BSD-3-Clause */
/* A plugin as it was written for the first release: built against that header, plugin-1.0.h, which is kept beside it
 * and never changed. Three kinds in one file, each the least that does something. */
#include "plugin-1.0.h"
#include <stdlib.h>
#include <string.h>

const tess_plugin_note tess_plugin_note_v1 __attribute__((section(".tessera.plugin"), used)) = {
    .magic = "TESSPLG",
    .struct_size = sizeof(tess_plugin_note),
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .kinds = 1u << TESS_KIND_WRAP | 1u << TESS_KIND_PRECISION | 1u << TESS_KIND_OFFLOAD,
    .name = "old",
    .version = "1.0.0",
    .license = "MIT",
};

/* Out structs: up to the caller's size, but for their struct_size. */
static void give(void *out, uint32_t size, const void *from, uint32_t bytes) {
    uint32_t both = size < bytes ? size : bytes;
    memcpy((char *)out + 4, (const char *)from + 4, both - 4);
    memset((char *)out + both, 0, size - both);
}

/* wrap: everything in one unit */
static tess_status assign(void *ctx, const tess_model_view *model, const tess_plan_env *env, int32_t *unit,
                          int32_t *n_units, tess_status (*plan)(void *, const int32_t *, int32_t, tess_plan_result *),
                          void *host, tess_error *error) {
    (void)ctx, (void)env, (void)plan, (void)host, (void)error;
    for (uint32_t i = 0; i < model->n_params; i++)
        unit[i] = 0;
    *n_units = 1;
    return TESS_OK;
}

/* precision: as declared. Casts of its own, which no core asks for. */
static tess_status cast_need(void *ctx, uint32_t mem, const tess_cast *x, tess_need *out) {
    (void)ctx, (void)mem, (void)x, (void)out;
    abort();
}
static tess_status create_casts(void *ctx, uint32_t mem, tess_precision **out, tess_error *error) {
    (void)ctx, (void)mem, (void)out, (void)error;
    abort();
}
static void destroy_casts(tess_precision *p) {
    (void)p;
    abort();
}
static tess_status cast(tess_precision *p, const tess_cast *x, const tess_stream *stream, tess_error *error) {
    (void)p, (void)x, (void)stream, (void)error;
    abort();
}

static tess_status choose(void *ctx, const tess_param_view *p, tess_precision_choice *out, tess_error *error) {
    tess_precision_choice c = { 0, p->dtype, p->dtype, p->dtype, p->dtype, p->dtype, TESS_F32, 0, 1, 0 };
    (void)ctx, (void)error;
    give(out, out->struct_size, &c, sizeof c);
    return TESS_OK;
}

/* offload: optimizer state to the host. Slots for storage of its own, which no core calls. */
static tess_status create(void *ctx, const tess_plan_env *env, int32_t rank, int32_t numa_node,
                          const tess_buffer *host_arena, tess_offload **out, tess_error *error) {
    (void)ctx, (void)env, (void)rank, (void)numa_node, (void)host_arena, (void)out, (void)error;
    abort();
}
static void destroy(tess_offload *o) {
    (void)o;
    abort();
}
static tess_status post(tess_offload *o, const tess_transfer *t, uint32_t n, tess_request **out, tess_error *error) {
    (void)o, (void)t, (void)n, (void)out, (void)error;
    abort();
}
static tess_status step(tess_offload *o, const tess_region *r, uint32_t n, const tess_optimizer *s, tess_request **out,
                        tess_error *error) {
    (void)o, (void)r, (void)n, (void)s, (void)out, (void)error;
    abort();
}

static tess_status place(void *ctx, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                         tess_placement *out, tess_error *error) {
    uint32_t size = n ? out->struct_size : 0;
    (void)ctx, (void)env, (void)error;
    for (uint32_t i = 0; i < n; i++) {
        const tess_region *r = (const void *)((const char *)regions + (size_t)i * regions->struct_size);
        tess_placement p = { .rest = TESS_REST_DEVICE, .align = 64 };
        if (r->region == TESS_REGION_STATE || r->region == TESS_REGION_ACTIVATION) {
            p.rest = TESS_REST_HOST;
            p.host_bytes = r->bytes;
        }
        give((char *)out + (size_t)i * size, size, &p, sizeof p);
    }
    return TESS_OK;
}

static const tess_wrap_ops wrap = { sizeof wrap, TESS_ABI_MAJOR, TESS_ABI_MINOR, .assign = assign };
static const tess_precision_ops precision = { sizeof precision,         TESS_ABI_MAJOR,
                                              TESS_ABI_MINOR,           .choose = choose,
                                              .cast_need = cast_need,   .create = create_casts,
                                              .destroy = destroy_casts, .cast = cast };
static const tess_offload_ops offload = { sizeof offload,   TESS_ABI_MAJOR,     TESS_ABI_MINOR, .place = place,
                                          .create = create, .destroy = destroy, .post = post,   .step = step };

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **ops, void **ctx, tess_error *error) {
    (void)error;
    if (host->struct_size < sizeof *host) /* of 1.0 */
        return TESS_E_VERSION;
    *ctx = NULL;
    *ops = kind == TESS_KIND_WRAP        ? (const void *)&wrap
           : kind == TESS_KIND_PRECISION ? (const void *)&precision
           : kind == TESS_KIND_OFFLOAD   ? (const void *)&offload
                                         : NULL;
    return *ops ? TESS_OK : TESS_E_UNSUPPORTED;
}
