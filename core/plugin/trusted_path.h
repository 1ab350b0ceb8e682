/* SPDX-License-Identifier: BSD-3-Clause */
/* Which files may run inside this process: those that only root and the effective user can change. */
#ifndef TESS_TRUSTED_PATH_H
#define TESS_TRUSTED_PATH_H
#include <tessera/tessera.h>

enum { TESS_PATH_FILE = 1, TESS_PATH_DIRECTORY };

/** Resolves `path`, following links, into real[4096]. TESS_E_INVALID, and one clause in `reason`, when it does not
 * exist or is not what is wanted, or when someone other than root and the effective user could change it: every link
 * and directory on the way belongs to one of the two; no directory is writable for others, save sticky ones above the
 * last. A group counts as others unless its number is its owner's (a user's private group). Sets no message. */
tess_status tess__trusted_path(const char *path, uint32_t want, char real[4096], char *reason, size_t reason_bytes);
#endif
