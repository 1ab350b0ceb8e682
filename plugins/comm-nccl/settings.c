/* SPDX-License-Identifier: BSD-3-Clause */
#include "settings.h"

enum { COMPARE, APART, WINDOWS, ENGINES, SUMS, SHARED_GPU, N_OPTIONS };
TESS_OPTIONS(options) = {
    { sizeof options[0], TESS_OPTION_FLAG, 0, 0, "nccl-compare", "on", "",
      "ranks compare what they post before it is called done: 64 bytes each, in the collective's own group" },
    { sizeof options[0], TESS_OPTION_FLAG, 0, 0, "nccl-apart", "on", "",
      "reductions have a communicator of their own, so that a gather does not wait for the reduction before it" },
    { sizeof options[0], TESS_OPTION_FLAG, 0, 0, "nccl-windows", "off", "",
      "arenas are NCCL's symmetric windows (2.27 or later, one host), so that ranks read and write each other's" },
    { sizeof options[0], TESS_OPTION_FLAG, 0, 0, "nccl-engines", "off", "",
      "gathers in windows go by the GPU's copy engines and leave its multiprocessors to the model (NCCL 2.28 or "
      "later)" },
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "nccl-sums", "fp32", "fp32|native|tree",
      "how 16-bit gradients are summed: by NCCL, widened to fp32 or as they are, or by the engine's tree" },
    { sizeof options[0], TESS_OPTION_FLAG, 0, 0, "nccl-shared-gpu", "off", "",
      "several ranks may be on one GPU (NCCL 2.30 or later, and its NCCL_MULTI_RANK_GPU_ENABLE=1)" },
};

tess_status nccl_settings_init(struct nccl_settings *s, const tess_host *host, tess_error *e) {
    static const kit_options readable = { "nccl", "nccl-", options, N_OPTIONS, NULL };
    kit_option read[N_OPTIONS];
    tess_status status = kit_options_read(&readable, host, read, e);
    s->host = host;
    s->compares = (int)read[COMPARE].value.number;
    s->apart = (int)read[APART].value.number;
    s->windows = (int)read[WINDOWS].value.number;
    s->engines = (int)read[ENGINES].value.number;
    s->shared_gpu = (int)read[SHARED_GPU].value.number;
    s->sums = kit_core_flag(host, "deterministic", 0) ? NCCL_SUMS_TREE : (int)read[SUMS].value.number;
    if (status == TESS_OK && s->engines && !s->windows)
        return tess_plugin_fail(
            e, TESS_E_INVALID,
            "nccl: TESSERA_NCCL_ENGINES=on needs TESSERA_NCCL_WINDOWS=on: copy engines work in windows");
    return status;
}
