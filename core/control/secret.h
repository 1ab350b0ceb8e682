/* SPDX-License-Identifier: BSD-3-Clause */
/* The secret that the ranks of a job share. */
#ifndef TESS_SECRET_H
#define TESS_SECRET_H
#include <stddef.h>

#include <tessera/tessera.h>

enum { TESS__SECRET_BYTES = 136, TESS__SECRET_LEAST = 16 }; /* room with the final null; least: beyond the host */
/** The text of TESSERA_SECRET, the first line of the file TESSERA_SECRET_FILE, or that of the open file number
 * TESSERA_SECRET_FD; "" when none is set. An open file is not passed on to programs that this process starts.
 * TESS_E_INVALID: two of them, too long, or a file that others may read. */
tess_status tess__secret_read(char *out, size_t size);
#endif
