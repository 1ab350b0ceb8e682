/* SPDX-License-Identifier: BSD-3-Clause */
#include <tessera/gpu.h>
#include <tessera/inspect.h>
#include <cstdio>

int main() {
    tess *t;
    tess_status status = tess_open(nullptr, &t);
    if (status == TESS_OK) {
        tess_info info = {};
        info.struct_size = sizeof info;
        status = tess_info_get(t, &info);
        std::printf("%d rank, exit code %d\n", info.ranks, tess_exit_code(tess_stream_get(t) ? TESS_OK : TESS_E_PEER));
        tess_close(t);
    }
    if (status != TESS_OK)
        std::printf("%s\n", tess_last_error());
    return tess_exit_code(status);
}
