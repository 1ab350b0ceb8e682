/* SPDX-License-Identifier: BSD-3-Clause */
/* The sockets that ranks of one host meet at, in a directory of the user's own. */
#ifndef TESS_LOCAL_H
#define TESS_LOCAL_H
#include <stddef.h>

#include <tessera/tessera.h>

enum { TESS__LOCAL_PATH = 108 }; /* what an address of a Unix socket holds */
/** The path of the socket `name`, in XDG_RUNTIME_DIR/tessera, else /tmp/tessera-UID: mode 0700, made when missing.
 * Removes the sockets there that nobody listens on any more. TESS_E_INVALID: the directory is somebody else's. */
tess_status tess__local_path(const char *name, char out[TESS__LOCAL_PATH]);
/** A socket that listens there; takes the place of one that nobody listens on. */
tess_status tess__local_listen(const char *path, int *fd);
/** 0, or an errno. Fails with EACCES when another user listens there. */
int tess__local_connect(const char *path, int *fd);
/** 1: the other side runs as our user. */
int tess__local_is_ours(int fd);
#endif
