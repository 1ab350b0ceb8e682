/* SPDX-License-Identifier: BSD-3-Clause */
#include <tessera/tessera.h>
#include <cstdio>

int main() {
    tess *t;
    tess_status status = tess_open(nullptr, &t);
    if (status == TESS_OK) {
        std::printf("%d rank, exit code %d\n", tess_ranks(t), tess_exit_code(TESS_E_PEER));
        status = tess_close(t);
    }
    if (status != TESS_OK)
        std::printf("%s\n", tess_last_error());
    return tess_exit_code(status);
}
