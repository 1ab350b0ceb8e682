/* SPDX-License-Identifier: BSD-3-Clause */
/* Lists checkpoints, verifies them, and removes old ones. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>
#include "tools/support/say.h"
#include "tools/support/safetensors.h"
#include "tools/support/command_line.h"
#include "tools/support/progress.h"
#include "ckpt.h"

typedef int (*each_fn)(ckpt_arguments *, const char *path);

/* Calls fn with PATH, or with each checkpoint in it, oldest first; the highest of its exit codes. */
static int each(ckpt_arguments *a, const char *path, each_fn fn) {
    uint64_t *steps = NULL, n = 0;
    char one[PATH_MAX];
    int code = TOOL_OK;
    if (tess__is_checkpoint(&tess__disk_real, path))
        return fn(a, path);
    tess_status status = tess__store_list(&tess__disk_real, path, &steps, &n);
    if (!status && n == 0)
        status = tess_fail(TESS_E_DATA, "%s: no checkpoint, nor a directory of some", path);
    for (uint64_t i = 0; !status && i < n; i++)
        if (!(status = tess__step_dir(path, steps[i], one))) {
            int this = fn(a, one);
            code = this > code ? this : code;
        }
    free(steps);
    return status ? tool_report(status) : code;
}

static uint64_t bytes_of(const tess__manifest *m) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < m->n_files; i++)
        bytes += m->files[i].bytes;
    return bytes;
}

/* ---- list and show ----------------------------------------------------------------------------------- */
/* ", lineage 0123abcd from 4567cdef after step 20"; nothing of a checkpoint that is older than lineages. */
static const char *lineage_text(const tess__lineage *l, char out[96]) {
    int n = 0;
    *out = 0;
    if (l->n)
        n = snprintf(out, 96, ", lineage %08" PRIx64, l->runs[l->n - 1].id >> 32);
    if (l->n > 1)
        snprintf(out + n, 96 - (size_t)n, " from %08" PRIx64 " after step %" PRIu64, l->runs[l->n - 2].id >> 32,
                 l->runs[l->n - 2].until);
    return out;
}

static void put_lineage(json_out *j, const tess__lineage *l) {
    char id[17];
    json_array_begin(j, "lineage");
    for (uint64_t i = 0; i < l->n; i++) {
        snprintf(id, sizeof id, "%016" PRIx64, l->runs[i].id);
        json_object_begin(j, NULL);
        json_string(j, "id", id);
        if (i + 1 < l->n)
            json_uint(j, "until", l->runs[i].until);
        json_object_end(j);
    }
    json_array_end(j);
}

/* The best of the lineage that was written last in the directory. */
static void find_best(ckpt_arguments *a, const char *dir) {
    tess__entry *all = NULL;
    uint64_t n = 0;
    a->best = UINT64_MAX;
    if (tess__store_entries(&tess__disk_real, dir, &all, &n))
        return;
    const tess__entry *last = tess__store_last(all, n);
    const tess__entry *best = last ? tess__store_best(all, n, &last->lineage, INT64_MAX) : NULL;
    if (best)
        a->best = best->step;
    free(all);
}

/* PATH is a checkpoint, or a directory of them. */
static void find_best_around(ckpt_arguments *a, const char *path) {
    char dir[PATH_MAX];
    int is_one = tess__is_checkpoint(&tess__disk_real, path);
    snprintf(dir, sizeof dir, is_one ? "%s/.." : "%s", path);
    find_best(a, dir);
}

/* ", validation loss 2.5, the best" */
static const char *score_text(const tess__manifest *m, int best, char out[64]) {
    *out = 0;
    if (m->has_score)
        snprintf(out, 64, ", validation loss %.6g%s", m->score, best ? ", the best" : "");
    return out;
}

static int put_summary(ckpt_arguments *a, const char *path, const tess__manifest *m) {
    char text[32], lineage[96], score[64];
    int best = m->has_score && m->step == a->best;
    if (!a->json_on) {
        printf("%s  step %" PRIu64 ", %" PRIu64 " rank%s, %s, %s, %s, %s in %" PRIu64 " file%s%s%s\n", path, m->step,
               m->ranks, m->ranks == 1 ? "" : "s", m->strategy, m->precision, m->optimizer,
               tool_bytes_text(bytes_of(m), text), m->n_files, m->n_files == 1 ? "" : "s",
               lineage_text(&m->lineage, lineage), score_text(m, best, score));
        return TOOL_OK;
    }
    json_object_begin(&a->json, NULL);
    json_string(&a->json, "event", "checkpoint");
    json_string(&a->json, "path", path);
    json_uint(&a->json, "step", m->step);
    json_uint(&a->json, "ranks", m->ranks);
    json_uint(&a->json, "microbatches", m->microbatches);
    json_string(&a->json, "strategy", m->strategy);
    json_string(&a->json, "precision", m->precision);
    json_string(&a->json, "optimizer", m->optimizer);
    json_string(&a->json, "writer", m->writer);
    json_uint(&a->json, "files", m->n_files);
    json_uint(&a->json, "bytes", bytes_of(m));
    json_bool(&a->json, "checksums", m->has_sums);
    json_bool(&a->json, "finite", !m->not_finite);
    put_lineage(&a->json, &m->lineage);
    if (m->has_score) {
        json_double(&a->json, "score", m->score);
        json_bool(&a->json, "best", best);
    }
    return ckpt_json_end(a) ? TOOL_DATA : TOOL_OK;
}

static int list_one(ckpt_arguments *a, const char *path) {
    tess__manifest m;
    tess_status status = tess__saved_manifest(&tess__disk_real, path, &m);
    if (status)
        return tool_report(status);
    int code = put_summary(a, path, &m);
    tess__manifest_free(&m);
    return code;
}

int ckpt_list(ckpt_arguments *a) {
    find_best_around(a, a->paths[0]);
    return each(a, a->paths[0], list_one);
}

static int put_base(ckpt_arguments *a, const tess__data_file *f) {
    char sum[33], text[32];
    tess__sum_text(f->sums[0], sum);
    if (!a->json_on) {
        printf("  frozen parameters in %s (%s, xxh128 %s)\n", f->name, tool_bytes_text(f->bytes, text), sum);
        return TOOL_OK;
    }
    json_object_begin(&a->json, NULL);
    json_string(&a->json, "event", "base");
    json_string(&a->json, "name", f->name);
    json_uint(&a->json, "bytes", f->bytes);
    json_string(&a->json, "xxh128", sum);
    return ckpt_json_end(a) ? TOOL_DATA : TOOL_OK;
}

static int put_param(ckpt_arguments *a, const tess__tensor *t, const char *kind) {
    int is_plain = strcmp(kind, "parameter") == 0;
    if (a->json_on) {
        json_object_begin(&a->json, NULL);
        json_string(&a->json, "event", "parameter");
        json_string(&a->json, "name", t->name);
        json_string(&a->json, "kind", kind);
        json_string(&a->json, "dtype", tool_dtype_word(t->dtype));
        json_array_begin(&a->json, "shape");
        for (int32_t d = 0; d < t->ndim; d++)
            json_int(&a->json, NULL, t->shape[d]);
        json_array_end(&a->json);
        return ckpt_json_end(a) ? TOOL_DATA : TOOL_OK;
    }
    printf("  %-40s %s%s%s [", t->name, tool_dtype_word(t->dtype), is_plain ? "" : " ", is_plain ? "" : kind);
    for (int32_t d = 0; d < t->ndim; d++)
        printf("%s%" PRId64, d ? ", " : "", t->shape[d]);
    puts("]");
    return TOOL_OK;
}

static int put_state(ckpt_arguments *a, const char *param, int k, const tess_state *x, uint64_t values) {
    const char *gap = *x->name ? " " : "";
    if (!a->json_on) {
        printf("    state %d%s%s: %s, %" PRIu64 " value%s\n", k, gap, x->name, tool_dtype_word(x->dtype), values,
               values == 1 ? "" : "s");
        return TOOL_OK;
    }
    json_object_begin(&a->json, NULL);
    json_string(&a->json, "event", "state");
    json_string(&a->json, "parameter", param);
    json_int(&a->json, "index", k);
    json_string(&a->json, "name", *x->name ? x->name : NULL);
    json_string(&a->json, "dtype", tool_dtype_word(x->dtype));
    json_uint(&a->json, "values", values);
    return ckpt_json_end(a) ? TOOL_DATA : TOOL_OK;
}

/* The optimizer's states of one parameter. */
static int put_states(ckpt_arguments *a, const ckpt_source *s, uint64_t i) {
    int code = TOOL_OK;
    for (int k = 0; code == TOOL_OK && k < TESS_STATES_MOST; k++) {
        const int kind = TESS__PIECE_STATE0 + k;
        if (ckpt_source_has(s, (int32_t)i, kind))
            code = put_state(a, s->saved.manifest.params[i].name, k, ckpt_source_state(s, (int32_t)i, kind),
                             ckpt_source_elems(s, (int32_t)i, kind));
    }
    return code;
}

/* Parameters come from the manifest alone. States come from the files, which may be damaged or gone. */
int ckpt_show(ckpt_arguments *a) {
    char path[PATH_MAX];
    tess__manifest m;
    ckpt_source source = { .n = 0 };
    tess_status status = ckpt_find(a->paths[0], path);
    find_best_around(a, a->paths[0]);
    if (!status)
        status = tess__saved_manifest(&tess__disk_real, path, &m);
    if (status)
        return tool_report(status);
    const int has_files = ckpt_source_open(path, &source) == TESS_OK;
    int code = put_summary(a, path, &m);
    for (uint64_t i = 0; code == TOOL_OK && i < m.n_base; i++)
        code = put_base(a, &m.base[i]);
    for (uint64_t i = 0; code == TOOL_OK && i < m.n_params; i++) {
        code = put_param(a, &m.params[i],
                         m.is_buffer[i]                  ? "buffer"
                         : tess__manifest_in_base(&m, i) ? "base"
                                                         : "parameter");
        if (code == TOOL_OK && has_files)
            code = put_states(a, &source, i);
    }
    if (!has_files)
        tool_say(SAY_WARNING, "%s: the optimizer's states are not shown: %s", path, tess_last_error());
    else
        ckpt_source_close(&source);
    tess__manifest_free(&m);
    return code;
}

/* ---- verify ------------------------------------------------------------------------------------------ */
static tess_status verify_files(const ckpt_arguments *a, const tess__saved *s) {
    for (uint64_t i = 0; i < s->manifest.n_files; i++) {
        tess__saved_file *f = NULL;
        TRY(tess__saved_file_open(s, i, &f));
        tess_status status = tess__saved_file_verify(f);
        tess__saved_file_close(f);
        TRY(status);
        ckpt_progress(a, s->path, i + 1, s->manifest.n_files);
    }
    return TESS_OK;
}

static int verify_one(ckpt_arguments *a, const char *path) {
    tess__saved s = { .path = "" };
    uint64_t bytes = 0;
    tess_status status = tess__saved_open(&tess__disk_real, path, &s);
    int has_sums = !status && s.manifest.has_sums && tess__sum_known(), beside = !status && s.manifest.n_base > 0;
    if (!status) {
        bytes = bytes_of(&s.manifest);
        status = verify_files(a, &s);
        tess__saved_close(&s);
    }
    if (!status) { /* also checks that every parameter is complete */
        ckpt_source whole;
        status = ckpt_source_open(path, &whole);
        if (!status)
            ckpt_source_close(&whole);
    }
    if (a->json_on) {
        json_object_begin(&a->json, NULL);
        json_string(&a->json, "event", "verify");
        json_string(&a->json, "path", path);
        json_bool(&a->json, "ok", !status);
        json_uint(&a->json, "bytes", bytes);
        json_bool(&a->json, "checksums", has_sums);
        json_string(&a->json, "error", status ? tess_last_error() : NULL);
        if (ckpt_json_end(a))
            return TOOL_DATA;
    } else if (!status && !a->quiet) {
        char text[32];
        printf("%s: ok, %s%s%s\n", path, tool_bytes_text(bytes, text), beside ? " beside a base that is not here" : "",
               has_sums ? "" : "; there are no checksums to hold");
    }
    if (status && status != TESS_E_DATA)
        return tool_report(status);
    if (status)
        tool_report(status);
    return status ? TOOL_FAILED : TOOL_OK;
}

int ckpt_verify(ckpt_arguments *a) {
    int code = TOOL_OK;
    for (size_t i = 0; i < a->n; i++) {
        int this = each(a, a->paths[i], verify_one);
        code = this > code ? this : code;
    }
    return code;
}

/* ---- prune ------------------------------------------------------------------------------------------- */
static tess_status say_removed(ckpt_arguments *a, const char *path) {
    if (!a->json_on && !a->quiet)
        printf("removed %s\n", path);
    if (!a->json_on)
        return TESS_OK;
    json_object_begin(&a->json, NULL);
    json_string(&a->json, "event", "removed");
    json_string(&a->json, "path", path);
    return ckpt_json_end(a) ? tess_fail(TESS_E_DATA, "--json: cannot be written") : TESS_OK;
}

/* Prunes the lineage that --resume would continue. */
static tess_status remove_oldest(ckpt_arguments *a, const tess__store *store) {
    tess__entry *all = NULL;
    uint64_t n = 0;
    char path[PATH_MAX];
    TRY(tess__store_entries(store->disk, store->dir, &all, &n));
    const tess__entry *last = tess__store_last(all, n);
    uint64_t *steps = calloc(n + 1, sizeof *steps);
    uint64_t doomed = last && steps ? tess__store_doomed(all, n, &last->lineage, INT64_MAX, a->keep, steps) : 0;
    tess_status status = steps ? TESS_OK : tess_fail(TESS_E_NOMEM, "no memory to list %s", store->dir);
    for (uint64_t i = 0; !status && i < doomed; i++) {
        status = tess__step_dir(store->dir, steps[i], path);
        if (!status)
            status = tess__store_remove(store->disk, store->dir, steps[i]);
        if (!status)
            status = say_removed(a, path);
    }
    free(steps);
    free(all);
    return status;
}

int ckpt_prune(ckpt_arguments *a) {
    tess__store store;
    char newest[PATH_MAX];
    tess__saved s;
    tess_status status = tess__is_checkpoint(&tess__disk_real, a->paths[0])
                             ? tess_fail(TESS_E_DATA, "%s: a checkpoint; give the directory that holds it", a->paths[0])
                             : ckpt_find(a->paths[0], newest);
    if (!status && !(status = tess__saved_open(&tess__disk_real, newest, &s))) { /* it stays, so it must be valid */
        status = verify_files(a, &s);
        tess__saved_close(&s);
    }
    if (!status)
        status = tess__store_open(&tess__disk_real, a->paths[0], &store);
    if (!status) {
        status = remove_oldest(a, &store);
        tess__store_close(&store);
    }
    return status ? tool_report(status) : TOOL_OK;
}
