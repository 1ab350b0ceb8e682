/* SPDX-License-Identifier: BSD-3-Clause */
#include "settings.h"

enum { COMPARE, APART, WINDOWS, N_OPTIONS };
TESS_OPTIONS(options) = {
    { sizeof options[0], TESS_OPTION_FLAG, 0, 0, "nccl-compare", "on", "",
      "ranks compare what they post before it is called done: 64 bytes each, in the collective's own group" },
    { sizeof options[0], TESS_OPTION_FLAG, 0, 0, "nccl-apart", "on", "",
      "reductions have a communicator of their own, so that a gather does not wait for the reduction before it" },
    { sizeof options[0], TESS_OPTION_FLAG, 0, 0, "nccl-windows", "off", "",
      "arenas are NCCL's symmetric windows (2.27 or later, one host), so that ranks read and write each other's" },
};

tess_status nccl_settings_init(struct nccl_settings *s, const tess_host *host, tess_error *e) {
    static const kit_options readable = { "nccl", "nccl-", options, N_OPTIONS, NULL };
    kit_option read[N_OPTIONS];
    tess_status status = kit_options_read(&readable, host, read, e);
    s->host = host;
    s->deterministic = kit_core_flag(host, "deterministic", 0);
    s->compares = (int)read[COMPARE].value.number;
    s->apart = (int)read[APART].value.number;
    s->windows = (int)read[WINDOWS].value.number;
    return status;
}
