/* SPDX-License-Identifier: BSD-3-Clause */
/* LD_PRELOAD: the key-value server is a tenth of a second late to accept whoever connects. */
#include <dlfcn.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

typedef int accept4_fn(int, struct sockaddr *, socklen_t *, int);

__attribute__((visibility("default"))) int accept4(int fd, struct sockaddr *at, socklen_t *bytes, int flags) {
    accept4_fn *real = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "accept4");
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    if (strcmp(name, "tess-kv-server") == 0)
        usleep(100000);
    return real(fd, at, bytes, flags);
}
