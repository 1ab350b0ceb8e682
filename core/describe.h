/* What a program declared, as a file: `tessera plan -- PROGRAM` reads it and plans from it, with other options too.
 * Between a library and a command of one version; the format is nobody else's. Lines of numbers; a text is its length
 * in bytes, a blank and the text, and stands last. */
#ifndef TESS_DESCRIBE_H
#define TESS_DESCRIBE_H
#include <tessera/tessera.h>

#define TESS__DESCRIBE_MAGIC "tessera-plan 1" /* the first line; the last is TESS__DESCRIBE_END */
#define TESS__DESCRIBE_END "end"

/** Writes all that `t`, whose model is finished, was opened with and was told, to a file that exists. */
tess_status tess__describe(const tess *t, const char *path);
#endif
