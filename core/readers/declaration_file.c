/* SPDX-License-Identifier: BSD-3-Clause */
#include "declaration_file.h"

#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void put_text(FILE *f, const char *t) {
    fprintf(f, " %zu %s\n", strlen(t), t);
}

static void put_option(FILE *f, const char *key, const char *value) {
    fprintf(f, "option %s", key);
    put_text(f, value);
}

/* Texts as they were chosen; the environment, which wins, is the same for the reader. */
static void write_options(FILE *f, const tess__plan *p, const tess__selection *x, const tess_options *o,
                          const char *optimizer) {
    static const char *const keys[] = { "", "comm", "offload", "precision", "wrap", "device" };
    for (int kind = TESS_KIND_COMM; kind <= TESS_KIND_DEVICE; kind++)
        put_option(f, keys[kind], kind == TESS_KIND_COMM && x->comm_picked ? "auto" : x->text[kind]);
    put_option(f, "strategy", p->setup.strategy);
    put_option(f, "optimizer", optimizer);
    if (p->setup.step_in_pass)
        put_option(f, "step-in-pass", "1");
    if (p->setup.no_clip)
        put_option(f, "no-clip", "1");
    fprintf(f, "open %u %d %d %" PRIu64 " %" PRIu64 "\n", o->pointer_mem, o->momentum != 0, p->setup.accum,
            o->device_memory_bytes, o->input_bytes);
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
    fprintf(f,
            "block %u %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %.17g %.17g",
            o->flags, o->output_bytes, o->saved_bytes, o->forward_scratch_bytes, o->backward_scratch_bytes,
            o->remake_scratch_bytes, o->selective_saved_bytes, o->selective_scratch_bytes, o->forward_work,
            o->selective_work);
    put_text(f, s->name);
}

static void write_param(FILE *f, const tess__plan *plan, int32_t i) {
    const tess__param *p = &plan->model.params[i];
    if (p->tied_to != i) {
        fprintf(f, "tie %d", p->tied_to);
        put_text(f, p->name);
        return;
    }
    fprintf(f, "param %u %u %u %d %d", p->dtype, p->flags, p->compute_dtypes, p->optimizer_group, p->ndim);
    for (int32_t d = 0; d < p->ndim; d++)
        fprintf(f, " %" PRId64, p->shape[d]);
    put_text(f, p->name);
}

tess_status tess__describe(const tess__plan *p, const tess__selection *x, const tess_options *o, const char *optimizer,
                           const char *path) {
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f)
        return tess__fail(TESS_E_SYSTEM, "TESSERA_PLAN_FILE=%s: %s", path, strerror(errno));
    fprintf(f, TESS__DESCRIBE_MAGIC "\n");
    write_options(f, p, x, o, optimizer);
    for (int32_t i = 0; i < p->model.n_scopes; i++)
        write_scope(f, p, &p->model.scopes[i]);
    for (int32_t i = 0; i < p->model.n_params; i++)
        write_param(f, p, i);
    for (int32_t i = 0; i < p->n_user; i++)
        fprintf(f, "alloc %" PRIu64 "\n", p->user_bytes[i]);
    fprintf(f, TESS__DESCRIBE_END "\n");
    int bad = ferror(f);
    if (fclose(f) != 0 || bad)
        return tess__fail(TESS_E_SYSTEM, "TESSERA_PLAN_FILE=%s: not everything could be written", path);
    return TESS_OK;
}
