/* SPDX-License-Identifier: BSD-3-Clause */
/* hold_port ADDRESS PORT …: listens there until it is killed, and answers nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/control/wire.h"

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        int32_t port = atoi(argv[i + 1]);
        int fd;
        if (tess__wire_listen(argv[i], &port, "PORT", &fd) != TESS_OK) {
            fprintf(stderr, "%s\n", tess_last_error());
            return 1;
        }
    }
    puts("held");
    fflush(stdout);
    pause();
    return 0;
}
