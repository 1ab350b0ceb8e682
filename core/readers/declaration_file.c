/* SPDX-License-Identifier: BSD-3-Clause */
#include "declaration_file.h"

#include "base/option_fields.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static void put_text(FILE *f, const char *t) {
    fprintf(f, " %zu %s\n", strlen(t), t);
}

static void put_option(FILE *f, const char *key) {
    const char *value = tess__option_text(key);
    if (!value)
        return;
    fprintf(f, "option %s", key);
    put_text(f, value);
}

static int is_field(const char *key) {
    for (const tess__field *o = tess__fields_of_options; o->name; o++)
        if (o->key && strcmp(o->key, key) == 0)
            return 1;
    return 0;
}

/* Writes options that are in force here as texts, whoever set them, and the rest as numbers. */
static void write_options(FILE *f, const tess__given *given, const tess_options *o) {
    for (const tess__field *field = tess__fields_of_options; field->name; field++)
        if (field->key && strcmp(field->key, "log") != 0)
            put_option(f, field->key);
    for (uint32_t i = 0; i < given->n; i++)
        if (!is_field(given->list[i].key))
            put_option(f, given->list[i].key);
    if (o->group) {
        fprintf(f, "group %d", o->group->ranks);
        put_text(f, o->group->name ? o->group->name : "");
    }
    fprintf(f, "open");
    tess__fields_write(f, tess__fields_of_options, o);
    fprintf(f, "\n");
}

static void write_scope(FILE *f, const tess__plan *p, const tess__scope *s) {
    if (s->block < 0) {
        fprintf(f, "scope");
        put_text(f, s->name);
        return;
    }
    const tess_block_options *o = &p->model.blocks[s->block].options;
    if (o->also) { /* of the block in the next line */
        fprintf(f, "also");
        put_text(f, o->also);
    }
    fprintf(f, "block");
    tess__fields_write(f, tess__fields_of_block, o);
    put_text(f, s->name);
}

static void write_param(FILE *f, const tess__plan *plan, int32_t i) {
    const tess__param *p = &plan->model.params[i];
    if (p->tied_to != i) {
        fprintf(f, "tie %d", p->tied_to);
        put_text(f, p->name);
        return;
    }
    tess_param_options o = { .dtype = p->dtype,
                             .flags = p->flags,
                             .compute_dtypes = p->compute_dtypes,
                             .ndim = p->ndim,
                             .optimizer_group = p->optimizer_group };
    fprintf(f, "param");
    tess__fields_write(f, tess__fields_of_param, &o);
    for (int32_t d = 0; d < p->ndim; d++)
        fprintf(f, " %" PRId64, p->shape[d]);
    put_text(f, p->name);
}

static atomic_int expected;

void tess__describe_expect(int change) {
    expected += change;
}

void tess__describe_path(const char *path, int32_t number, char *out, size_t n) {
    if (number > 1)
        snprintf(out, n, "%s.%d", path, number);
    else
        snprintf(out, n, "%s", path);
}

static tess_status write_all(FILE *f, const tess__plan *p, const tess__given *given, const tess_options *o) {
    fprintf(f, TESS__DESCRIBE_MAGIC "\n");
    write_options(f, given, o);
    fprintf(f, "engines %d\n", (int)expected);
    for (int32_t i = 0; i < p->model.n_scopes; i++)
        write_scope(f, p, &p->model.scopes[i]);
    for (int32_t i = 0; i < p->model.n_params; i++)
        write_param(f, p, i);
    for (int32_t i = 0; i < p->n_user; i++)
        fprintf(f, "alloc %" PRIu64 "\n", p->user_bytes[i]);
    if (p->holds)
        fprintf(f, "held\n");
    fprintf(f, TESS__DESCRIBE_END "\n");
    int bad = ferror(f);
    return fclose(f) != 0 || bad ? TESS_E_SYSTEM : TESS_OK;
}

tess_status tess__describe(const tess__plan *p, const tess__given *given, const tess_options *o, int explores,
                           const char *path) {
    static atomic_int described;
    char own[PATH_MAX];
    int32_t number = explores ? 1 : ++described;
    if (explores && described)
        return TESS_OK;
    tess__describe_path(path, number, own, sizeof own);
    int fd = open(own, O_WRONLY | O_CLOEXEC | O_TRUNC | O_NOFOLLOW | (number > 1 ? O_CREAT : 0), 0600);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f)
        return tess__fail(TESS_E_SYSTEM, "TESSERA_PLAN_FILE=%s: %s", own, strerror(errno));
    if (write_all(f, p, given, o))
        return tess__fail(TESS_E_SYSTEM, "TESSERA_PLAN_FILE=%s: not everything could be written", own);
    return TESS_OK;
}
