/* SPDX-License-Identifier: BSD-3-Clause */
/* The structs with which a program declares, field by field: one table for what turns them into settings, for the file
 * of `tessera plan -- PROGRAM`, and for its reader. */
#ifndef TESS_OPTION_FIELDS_H
#define TESS_OPTION_FIELDS_H
#include "options.h"

enum {                   /* kinds of fields */
       TESS__FIELD_NONE, /* no part of a plan */
       TESS__FIELD_TEXT,
       TESS__FIELD_NUMBER, /* of 4 or 8 bytes */
       TESS__FIELD_FLAG    /* int32_t: 1 on, -1 off, 0 unset */
};
typedef struct {
    const char *name, *key; /* key: of the option (docs/variables.md) that the field is; null: none */
    uint32_t type, offset, bytes;
} tess__field;
/** Every field of the struct in its order; they end with a null name. */
extern const tess__field tess__fields_of_options[], tess__fields_of_param[], tess__fields_of_block[];

/** The numbers of a struct that are no options, in the table's order, each behind a blank. */
void tess__fields_write(FILE *, const tess__field *, const void *of);
/** Reads them back; 0 when one is missing or too large. */
int tess__fields_read(FILE *, const tess__field *, void *to);

/** Copies a struct of the program's to one of ours as far as both go; the rest is zero, which means the default.
 * TESS_E_INVALID, naming the call, when it is missing or its struct_size cannot be. */
tess_status tess__copy_options(const char *call, void *own, uint32_t own_bytes, uint32_t least, const void *given);
/** Bytes of a struct up to a field of its first release, below which none is taken. */
#define TESS__UP_TO(type, field) ((uint32_t)(offsetof(type, field) + sizeof(((type *)0)->field)))

/** Copies every field that is an option and set, then tess_options.settings; freed by tess__given_free. */
tess_status tess__given_of(const tess_options *, tess__given *out);
void tess__given_free(tess__given *);
#endif
