/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints and folders made of others, a piece at a time: reshard, export, import. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <tessera/tessera.h>
#include "tools/support/say.h"
#include "core/checkpoint/data_writer.h"
#include "core/kernels/kernels.h"
#include "tools/support/command_line.h"
#include "tools/support/progress.h"
#include "ckpt.h"
#include "tools/support/hf_export.h"
#include "tools/support/hf_import.h"
#include "tools/support/hf_names.h"

enum { CHUNK_ELEMS = 1 << 18 };

/* ---- a checkpoint of any source ---------------------------------------------------------------------- */
typedef struct {
    tool_safetensors *file;
    const tool_tensor *tensor;
    int turned;
} ckpt_tensor;

typedef struct {
    const ckpt_arguments *a;
    tess__manifest m;   /* of what is made; its texts and lists are the source's */
    ckpt_source *from;  /* a checkpoint; or */
    ckpt_tensor *of;    /* each parameter's in a folder */
    const char *common; /* the program's text; null: that of `from` */
    const char *path;   /* names it in messages */
    char *chunk;
} making;

static tess_status read_values(making *k, int32_t param, int kind, uint64_t first, uint64_t elems) {
    if (k->from)
        return ckpt_source_read(k->from, param, kind, first, elems, k->chunk);
    if (param < 0) {
        memcpy(k->chunk, k->common + first, elems);
        return TESS_OK;
    }
    const ckpt_tensor *of = &k->of[param];
    float *out = (float *)(void *)k->chunk;
    return of->turned ? hf_read_turned(of->file, of->tensor, k->m.params[param].name, first, elems, out)
                      : tool_safetensors_read(of->file, of->tensor, first, elems, out);
}

static int has_kind(const making *k, int32_t param, int kind) {
    if (k->from)
        return ckpt_source_has(k->from, param, kind);
    return kind == (k->m.is_buffer[param] ? TESS__PIECE_BUFFER : TESS__PIECE_PARAM);
}

static uint32_t dtype_of(const making *k, int32_t param, int kind) {
    return k->from ? ckpt_source_dtype(k->from, param, kind) : k->m.params[param].dtype;
}

typedef struct {
    int32_t param;
    int kind;
    uint64_t first;
} origin;

/* The first file holds the program's bytes that all ranks share. Bytes of one rank are left out: no rank takes them
 * here. */
static tess_status list_common(const making *k, tess__tensor *t, origin *o, uint64_t *used) {
    tess__piece_name name = { .kind = TESS__PIECE_PROGRAM, .name = "common" };
    uint64_t bytes = k->from ? ckpt_source_common_bytes(k->from) : k->common ? strlen(k->common) : 0;
    if (!bytes)
        return TESS_OK;
    *o = (origin){ CKPT_COMMON, TESS__PIECE_PROGRAM, 0 };
    *t = (tess__tensor){ .dtype = TESS_U8, .ndim = 1, .shape = { (int64_t)bytes, (int64_t)*used } };
    ++*used;
    return tess__piece_name_write(&name, t->name);
}

/* The tensors of file w of n: each parameter's w-th part; buffers whole in the first. */
static tess_status list_file(const making *k, uint64_t w, uint64_t n, tess__tensor **out, origin **origins,
                             uint64_t *count) {
    uint64_t most = k->m.n_params * (2 + 4) + 1, used = 0;
    tess__tensor *list = calloc(most + 1, sizeof *list);
    origin *from = calloc(most + 1, sizeof *from);
    tess_status status = list && from ? TESS_OK : tess_fail(TESS_E_NOMEM, "no memory for a list of pieces");
    for (uint64_t i = 0; !status && i < k->m.n_params; i++)
        for (int kind = TESS__PIECE_PARAM; !status && kind < TESS__PIECE_STATE0 + 4; kind++) {
            uint64_t elems = k->from ? ckpt_source_elems(k->from, (int32_t)i, kind) : k->m.params[i].elems;
            uint64_t first = elems / n * w + (w < elems % n ? w : elems % n);
            uint64_t part = elems / n + (w < elems % n);
            if (kind == TESS__PIECE_PROGRAM || !has_kind(k, (int32_t)i, kind))
                continue;
            if (kind == TESS__PIECE_BUFFER)
                first = 0, part = w == 0 ? elems : 0;
            const tess_state *state = k->from ? ckpt_source_state(k->from, (int32_t)i, kind) : NULL;
            tess__piece_name name = { .kind = kind, .first = first };
            if (state)
                name.state = *state;
            snprintf(name.name, sizeof name.name, "%s", k->m.params[i].name);
            if (!part)
                continue;
            from[used] = (origin){ (int32_t)i, kind, first };
            list[used] = (tess__tensor){ .dtype = dtype_of(k, (int32_t)i, kind),
                                         .ndim = 1,
                                         .shape = { (int64_t)part, (int64_t)used } }; /* [1]: its origin */
            status = tess__piece_name_write(&name, list[used++].name);
        }
    if (!status && w == 0)
        status = list_common(k, &list[used], &from[used], &used);
    *out = list;
    *origins = from;
    *count = used;
    return status;
}

static tess_status copy_tensor(making *k, tess__data_writer *w, const tess__tensor *t, const origin *o) {
    for (uint64_t done = 0; done < t->elems; done += CHUNK_ELEMS) {
        uint64_t n = t->elems - done < CHUNK_ELEMS ? t->elems - done : CHUNK_ELEMS;
        TRY(read_values(k, o->param, o->kind, o->first + done, n));
        TRY(tess__data_write(w, k->chunk, n * tess__tensor_dtype_bytes(t->dtype)));
    }
    return TESS_OK;
}

static tess_status copy_file(making *k, const char *dir, uint64_t w, uint64_t n, tess__data_file *out) {
    char name[TESS__FILE_NAME];
    tess__tensor *list = NULL;
    origin *origins = NULL;
    uint64_t count = 0;
    tess__data_writer writer = { .file = -1 };
    tess_status status = list_file(k, w, n, &list, &origins, &count);
    if (!status) {
        tess__safetensors_arrange(list, count);
        tess__data_file_name(k->m.generation, w, n, name);
        status = tess__data_create(&tess__disk_real, dir, name, list, count, &writer);
    }
    for (uint64_t i = 0; !status && i < count; i++)
        status = copy_tensor(k, &writer, &list[i], &origins[list[i].shape[1]]);
    if (!status)
        status = tess__data_finish(&writer, out);
    else if (writer.file >= 0)
        tess__data_drop(&writer);
    free(list);
    free(origins);
    return status;
}

static tess_status copy_files(making *k, tess__store *store) {
    char dir[PATH_MAX];
    TRY(tess__step_dir(store->dir, k->m.step, dir));
    for (uint64_t w = 0; w < k->m.n_files; w++) {
        TRY(copy_file(k, dir, w, k->m.n_files, &k->m.files[w]));
        ckpt_progress(k->a, k->path, w + 1, k->m.n_files);
    }
    return tess__store_commit(store, &k->m, 0);
}

/* DIR/step-… with k->m.n_files files. */
static tess_status make(making *k, const char *dir) {
    tess__store store;
    k->m.files = calloc(k->m.n_files, sizeof *k->m.files);
    k->chunk = malloc((size_t)CHUNK_ELEMS * 8);
    if (!k->m.files || !k->chunk)
        return tess_fail(TESS_E_NOMEM, "no memory to write %s", dir);
    TRY(tess__store_open(&tess__disk_real, dir, &store));
    tess_status status = tess__store_begin(&store, k->m.step, &k->m.generation);
    if (!status && (status = copy_files(k, &store)))
        tess__store_abandon(&store, k->m.step, k->m.generation);
    tess__store_close(&store);
    return status;
}

static void drop_made(making *k) {
    for (uint64_t i = 0; k->m.files && i < k->m.n_files; i++)
        free(k->m.files[i].sums);
    free(k->m.files);
    free(k->chunk);
}

/* A file that would be written. */
static tess_status put_planned(const making *k, const char *name, uint64_t bytes, uint64_t tensors) {
    ckpt_arguments *a = (ckpt_arguments *)k->a;
    char text[32];
    if (!a->json_on && !a->quiet)
        printf("%s  %s in %" PRIu64 " tensors\n", name, tool_bytes_text(bytes, text), tensors);
    if (!a->json_on)
        return TESS_OK;
    json_object_begin(&a->json, NULL);
    json_string(&a->json, "event", "file");
    json_string(&a->json, "name", name);
    json_uint(&a->json, "bytes", bytes);
    json_uint(&a->json, "tensors", tensors);
    return ckpt_json_end(a) ? tess_fail(TESS_E_DATA, "the output cannot be written") : TESS_OK;
}

static tess_status plan_file(const making *k, uint64_t w) {
    char name[TESS__FILE_NAME], *header = NULL;
    tess__tensor *list = NULL;
    origin *origins = NULL;
    uint64_t count = 0, bytes = 0;
    size_t header_bytes = 0;
    tess__data_file_name(1, w, k->m.n_files, name);
    tess_status status = list_file(k, w, k->m.n_files, &list, &origins, &count);
    if (!status) {
        bytes = tess__safetensors_arrange(list, count);
        status = tess__data_header(name, list, count, &header, &header_bytes);
    }
    if (!status)
        status = put_planned(k, name, bytes + header_bytes, count);
    free(header);
    free(list);
    free(origins);
    return status;
}

static tess_status plan_files(const making *k) {
    for (uint64_t w = 0; w < k->m.n_files; w++)
        TRY(plan_file(k, w));
    return TESS_OK;
}

int ckpt_reshard(ckpt_arguments *a) {
    ckpt_source source = { .n = 0 };
    making k = { .a = a, .path = a->paths[1] };
    tess_status status = ckpt_source_find(a->paths[0], &source);
    if (!status) {
        k.from = &source;
        k.m = source.saved.manifest;
        k.m.n_files = a->to;
        k.m.chunk_bytes = TESS__CHUNK_BYTES;
        k.m.has_sums = tess__sum_known();
        k.m.files = NULL;
        status = a->plan ? plan_files(&k) : make(&k, a->paths[1]);
        drop_made(&k);
    }
    ckpt_source_close(&source);
    return status ? tool_report(status) : TOOL_OK;
}

/* ---- a folder of whole tensors ----------------------------------------------------------------------- */
static void narrow(const ckpt_arguments *a, uint32_t dtype, void *chunk, void *out, uint64_t n) {
    uint32_t to = a->dtype ? a->dtype : dtype;
    if (dtype == to)
        memcpy(out, chunk, n * tess__tensor_dtype_bytes(dtype));
    else
        tess__cast_find(dtype, to, 0)(chunk, out, n);
}

static tess_status export_param(making *k, hf_export *f, int32_t i, void *out) {
    int kind = k->m.is_buffer[i] ? TESS__PIECE_BUFFER : TESS__PIECE_PARAM;
    uint32_t from = k->m.params[i].dtype, to = k->a->dtype && !k->m.is_buffer[i] ? k->a->dtype : from;
    for (uint64_t done = 0; done < k->m.params[i].elems; done += CHUNK_ELEMS) {
        uint64_t left = k->m.params[i].elems - done, n = left < CHUNK_ELEMS ? left : CHUNK_ELEMS;
        TRY(read_values(k, i, kind, done, n));
        if (from == to)
            memcpy(out, k->chunk, n * tess__tensor_dtype_bytes(from));
        else
            narrow(k->a, from, k->chunk, out, n);
        TRY(hf_export_write(f, out, n * tess__tensor_dtype_bytes(to)));
    }
    return TESS_OK;
}

static void export_as(const tess__tensor *t, tool_tensor *out) {
    *out = (tool_tensor){ .dtype = t->dtype, .ndim = t->ndim, .elems = t->elems, .bytes = t->bytes };
    memcpy(out->name, t->name, sizeof t->name);
    memcpy(out->shape, t->shape, sizeof t->shape);
}

/* A folder of them is another format, and blocks of codes are none that others read. */
static tess_status check_adapters(const tess__tensor *t) {
    return strstr(t->name, ".lora_A.")
               ? tess_fail(TESS_E_DATA, "%s: a checkpoint of adapters: train --lora … --resume … --export writes them",
                           t->name)
               : TESS_OK;
}

static tess_status export_all(making *k, const char *dir) {
    hf_export *f = NULL;
    char *model = NULL, *config = NULL; /* null: no config.json, names as they are */
    void *out = malloc((size_t)CHUNK_ELEMS * 8);
    tool_tensor *list = calloc(k->m.n_params + 1, sizeof *list);
    k->chunk = malloc((size_t)CHUNK_ELEMS * 8);
    tess_status status = out && list && k->chunk ? TESS_OK : tess_fail(TESS_E_NOMEM, "no memory to write %s", dir);
    for (uint64_t i = 0; !status && i < k->m.n_params; i++) {
        export_as(&k->m.params[i], &list[i]);
        status = check_adapters(&k->m.params[i]);
        if (k->a->dtype && !k->m.is_buffer[i])
            list[i].dtype = k->a->dtype;
        if (!status && list[i].dtype != k->m.params[i].dtype &&
            !tess__cast_find(k->m.params[i].dtype, list[i].dtype, 0))
            status = tess_fail(TESS_E_DATA, "%s: cannot be written in that dtype", list[i].name);
    }
    if (!status)
        status = ckpt_source_word(k->from, "model", &model);
    if (!status)
        status = ckpt_source_word(k->from, "config", &config);
    if (!status)
        status = hf_export_create(dir, model ? model : "", config, list, k->m.n_params, k->a->max_file_bytes, &f);
    for (uint64_t i = 0; !status && i < k->m.n_params; i++) {
        status = export_param(k, f, (int32_t)i, out);
        ckpt_progress(k->a, dir, i + 1, k->m.n_params);
    }
    if (!status)
        status = hf_export_commit(f);
    else
        hf_export_discard(f);
    free(model);
    free(config);
    free(out);
    free(list);
    free(k->chunk);
    return status;
}

int ckpt_export(ckpt_arguments *a) {
    ckpt_source source = { .n = 0 };
    making k = { .a = a, .path = a->paths[1] };
    tess_status status = ckpt_source_find(a->paths[0], &source);
    if (!status) {
        k.from = &source;
        k.m = source.saved.manifest;
        status = export_all(&k, a->paths[1]);
    }
    ckpt_source_close(&source);
    return status ? tool_report(status) : TOOL_OK;
}

/* ---- and back ---------------------------------------------------------------------------------------- */
enum { MOST_FILES = 1024 };
typedef struct {
    char (*names)[256];
    size_t n;
} file_names;

static void take_name(void *user, const char *name) {
    file_names *l = user;
    size_t length = strlen(name);
    if (l->n < MOST_FILES && length > 12 && length < 256 && strcmp(name + length - 12, ".safetensors") == 0)
        memcpy(l->names[l->n++], name, length + 1);
}

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

static int ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* A folder of a known family has other names, and some matrices turned. 0: it is none of the model's parameters. */
static int name_param(const hf_source *source, const tool_tensor *given, tess__tensor *out, int *turned) {
    char name[HF_NAME];
    *out =
        (tess__tensor){ .dtype = TESS_F32, .ndim = given->ndim, .elems = given->elems }; /* F32: as shards are kept */
    memcpy(out->name, given->name, sizeof given->name);
    memcpy(out->shape, given->shape, sizeof given->shape);
    *turned = 0;
    if (!source->model[0])
        return 1;
    *turned = hf_own_name(source->model, given->name, given->ndim, source->is_tied, name);
    snprintf(out->name, sizeof out->name, "%s", name);
    if (*turned) {
        out->shape[0] = given->shape[1];
        out->shape[1] = given->shape[0];
    }
    return name[0] != 0;
}

static tess_status add_param(making *k, const hf_source *source, tool_safetensors *file, const tool_tensor *given) {
    tess__tensor *p = &k->m.params[k->m.n_params];
    ckpt_tensor *of = &k->of[k->m.n_params];
    *of = (ckpt_tensor){ .file = file, .tensor = given };
    if (!name_param(source, given, p, &of->turned))
        return TESS_OK;
    for (uint64_t j = 0; j < k->m.n_params; j++)
        if (strcmp(k->m.params[j].name, p->name) == 0)
            return tess_fail(TESS_E_DATA, "%s: tensor '%s' is in two files", k->path, given->name);
    k->m.is_buffer[k->m.n_params++] =
        (uint8_t)(ends_with(p->name, ".running_mean") || ends_with(p->name, ".running_var"));
    return TESS_OK;
}

static tess_status add_params(making *k, const hf_source *source, tool_safetensors *file) {
    uint64_t n;
    const tool_tensor *list = tool_safetensors_list(file, &n);
    tess__tensor *params = realloc(k->m.params, (k->m.n_params + n + 1) * sizeof *params);
    k->m.params = params ? params : k->m.params;
    uint8_t *is_buffer = realloc(k->m.is_buffer, k->m.n_params + n + 1);
    k->m.is_buffer = is_buffer ? is_buffer : k->m.is_buffer;
    ckpt_tensor *of = realloc(k->of, (k->m.n_params + n + 1) * sizeof *of);
    k->of = of ? of : k->of;
    if (!params || !is_buffer || !of)
        return tess_fail(TESS_E_NOMEM, "%s: no memory for its parameters", k->path);
    for (uint64_t i = 0; i < n; i++)
        TRY(add_param(k, source, file, &list[i]));
    return TESS_OK;
}

/* Keeps the config, so that a later export has config.json and the folder's names again. */
static tess_status keep_source(making *k, const hf_source *source, char text[TESS_CHECKPOINT_BYTES]) {
    if (source->model[0]) {
        int n = snprintf(text, TESS_CHECKPOINT_BYTES, "model=%s config=%s", source->model, source->config);
        if (n >= TESS_CHECKPOINT_BYTES)
            snprintf(text, TESS_CHECKPOINT_BYTES, "model=%s", source->model);
        k->common = text;
    }
    return make(k, k->a->paths[1]);
}

static tess_status import_files(making *k, const char *from, const file_names *names, tool_safetensors **files) {
    char path[PATH_MAX], text[TESS_CHECKPOINT_BYTES];
    hf_source source;
    TRY(hf_source_read(from, &source));
    tess_status status = names->n ? TESS_OK : tess_fail(TESS_E_DATA, "%s: no .safetensors file is there", from);
    for (size_t i = 0; !status && i < names->n; i++) {
        snprintf(path, sizeof path, "%s/%s", from, names->names[i]);
        status = tool_safetensors_open(path, &files[i]);
        if (!status)
            status = add_params(k, &source, files[i]);
    }
    if (!status)
        status = keep_source(k, &source, text);
    hf_source_free(&source);
    return status;
}

int ckpt_import(ckpt_arguments *a) {
    file_names names = { calloc(MOST_FILES, sizeof *names.names), 0 };
    tool_safetensors **files = calloc(MOST_FILES, sizeof *files);
    making k = { .a = a,
                 .path = a->paths[0],
                 .m = { .n_files = a->to ? a->to : 1,
                        .ranks = a->to ? a->to : 1,
                        .microbatches = a->to ? a->to : 1,
                        .chunk_bytes = TESS__CHUNK_BYTES,
                        .has_sums = tess__sum_known(),
                        .writer = "tessera " TESSERA_VERSION,
                        .optimizer = "none",
                        .strategy = "full",
                        .precision = "fp32" } };
    tess__lineage_branch(&k.m.lineage, 0);
    tess_status status = names.names && files ? TESS_OK : tess_fail(TESS_E_NOMEM, "no memory to import");
    int failed = status ? 0 : tess__disk_real.list(NULL, a->paths[0], take_name, &names);
    if (failed)
        status = tess_fail(TESS_E_DATA, "%s: %s", a->paths[0], strerror(-failed));
    if (!status) {
        qsort(names.names, names.n, sizeof *names.names, by_name);
        status = import_files(&k, a->paths[0], &names, files);
    }
    drop_made(&k);
    free(k.m.params);
    free(k.m.is_buffer);
    free(k.of);
    for (size_t i = 0; files && i < names.n; i++)
        tool_safetensors_close(files[i]);
    free(files);
    free(names.names);
    return status ? tool_report(status) : TOOL_OK;
}
