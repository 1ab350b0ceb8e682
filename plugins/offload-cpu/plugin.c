/* SPDX-License-Identifier: BSD-3-Clause */
/* offload-cpu: what rests where. The core moves things and steps the optimizer on the host by itself. */
#include "plugin_base.h"

#include <stdlib.h>

TESS_DESCRIPTOR(1u << TESS_KIND_OFFLOAD, "cpu", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "");

enum { WHOLE = 1000000000 }; /* counts a fraction in billionths, so that every machine rounds the same way */

typedef struct {
    uint32_t regions; /* bits (1 << TESS_REGION_…) of the regions that go to the host */
    uint64_t fraction, pinned_bytes;
} settings;

/* ---- settings ---------------------------------------------------------------------------------- */

enum { WHAT, FRACTION, PINNED, N_OPTIONS };
TESS_OPTIONS(options) = {
    { sizeof options[0], TESS_OPTION_LIST, 0, 0, "offload-what", "all", "params|grads|optimizer|all",
      "what rests in host memory" },
    { sizeof options[0], TESS_OPTION_REAL, 0, 1, "offload-fraction", "1", "",
      "part of the units whose shards rest there" },
    { sizeof options[0], TESS_OPTION_BYTES, 0, 0, "offload-pinned", "", "",
      "most bytes to lock in memory; unset: all, where the system lets" },
};
static const kit_options readable = { "offload cpu", "offload-", options, N_OPTIONS, NULL };

static uint32_t regions_of(uint64_t words) {
    static const uint32_t regions[] = { 1u << TESS_REGION_MASTER, 1u << TESS_REGION_GRAD, 1u << TESS_REGION_STATE };
    uint32_t all = 0;
    for (int i = 0; i < 3; i++)
        all |= words >> i & 1 || words >> 3 ? regions[i] : 0;
    return all;
}

static tess_status read_settings(const tess_host *host, settings *s, tess_error *error) {
    kit_option read[N_OPTIONS];
    tess_status status = kit_options_read(&readable, host, read, error);
    if (status < 0)
        return status;
    s->regions = regions_of(read[WHAT].value.number);
    s->fraction = (uint64_t)(read[FRACTION].value.real * WHOLE + 0.5);
    s->pinned_bytes = read[PINNED].is_set ? read[PINNED].value.number : UINT64_MAX;
    return TESS_OK;
}

/* ---- place ------------------------------------------------------------------------------------- */

/* Spreads the chosen units evenly: of the first u units, fraction · u rounded down rest on the host. */
static int is_chosen(const settings *s, int32_t unit) {
    uint64_t u = unit < 0 ? 0 : (uint64_t)unit;
    return unit < 0 || (u + 1) * s->fraction / WHOLE > u * s->fraction / WHOLE;
}

/* Regions are locked in their order until the budget is used up. Activations come here only when the core has been told
 * to keep them on the host, so for them the budget is the only question. */
static tess_status cpu_place(void *ctx, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                             tess_placement *out, tess_error *error) {
    const settings *s = ctx;
    uint64_t left = s->pinned_bytes;
    uint32_t size = n ? out->struct_size : 0;
    (void)env, (void)error;
    for (uint32_t i = 0; i < n; i++) {
        const tess_region *r = TESS_AT(regions, i);
        tess_placement p = { .rest = TESS_REST_DEVICE, .align = 64 };
        int wanted = r->region < 32 && (s->regions >> r->region & 1u) && is_chosen(s, r->unit);
        if (wanted || r->region == TESS_REGION_ACTIVATION) {
            p.rest = TESS_REST_HOST;
            p.host_bytes = r->bytes;
            p.pinned_bytes = r->bytes <= left ? r->bytes : 0;
            left -= p.pinned_bytes;
        }
        tess_plugin_give((char *)out + (size_t)i * size, size, &p, sizeof p);
    }
    return TESS_OK;
}

static void cpu_close(void *ctx) {
    free(ctx);
}

static const tess_offload_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = cpu_close,
    .place = cpu_place,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_OFFLOAD)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "plugin cpu offers offload only");
    settings *s = calloc(1, sizeof *s);
    if (!s)
        return tess_plugin_fail(error, TESS_E_NOMEM, "offload cpu: no memory to open");
    tess_status status = read_settings(host, s, error);
    if (status < 0) {
        free(s);
        return status;
    }
    *out = &ops;
    *ctx = s;
    return TESS_OK;
}
