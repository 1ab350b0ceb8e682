/* SPDX-License-Identifier: BSD-3-Clause */
/* big_checkpoint DIR FILES: a checkpoint of a Llama model of 70 billion parameters, with headers and manifest as they
 * are and holes for the data. Prints the elements of its parameters. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/checkpoint/saved.h"
#include "core/checkpoint/data_writer.h"
#include "core/checkpoint/store.h"

enum { LAYERS = 80, MOST = 9 * LAYERS + 3, KINDS = 3 };

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, tess_last_error());
    exit(1);
}

static void add(tess__manifest *m, const char *name, int64_t rows, int64_t columns) {
    tess__tensor *t = &m->params[m->n_params++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->dtype = TESS_F32;
    t->ndim = columns ? 2 : 1;
    t->shape[0] = rows;
    t->shape[1] = columns;
    t->elems = (uint64_t)(rows * (columns ? columns : 1));
}

static void list_params(tess__manifest *m) {
    static const struct {
        const char *name;
        int64_t rows, columns;
    } of_layer[] = { { "input_layernorm", 8192, 0 },     { "self_attn.q_proj", 8192, 8192 },
                     { "self_attn.k_proj", 1024, 8192 }, { "self_attn.v_proj", 1024, 8192 },
                     { "self_attn.o_proj", 8192, 8192 }, { "post_attention_layernorm", 8192, 0 },
                     { "mlp.gate_proj", 28672, 8192 },   { "mlp.up_proj", 28672, 8192 },
                     { "mlp.down_proj", 8192, 28672 } };
    char name[96];
    add(m, "model.embed_tokens.weight", 128256, 8192);
    for (int l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < sizeof of_layer / sizeof *of_layer; i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, of_layer[i].name);
            add(m, name, of_layer[i].rows, of_layer[i].columns);
        }
    add(m, "model.norm.weight", 8192, 0);
    add(m, "lm_head.weight", 128256, 8192);
}

static void write_all(const char *path, const void *data, size_t bytes, uint64_t size) {
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0666);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes || ftruncate(fd, (off_t)size) || close(fd))
        die(path);
}

/* Each parameter's w-th part, and of its two optimizer states. */
static uint64_t list_file(const tess__manifest *m, uint64_t w, tess__tensor *list) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < m->n_params; i++)
        for (int k = 0; k < KINDS; k++) {
            uint64_t elems = m->params[i].elems, part = (elems + m->n_files - 1) / m->n_files, first = w * part;
            tess__piece_name name = { .kind = k ? TESS__PIECE_STATE0 + k - 1 : TESS__PIECE_PARAM, .first = first };
            snprintf(name.name, sizeof name.name, "%s", m->params[i].name);
            if (first >= elems)
                continue;
            part = part < elems - first ? part : elems - first;
            list[n] = (tess__tensor){ .dtype = TESS_F32, .ndim = 1, .shape = { (int64_t)part } };
            if (tess__piece_name_write(&name, list[n++].name))
                die(name.name);
        }
    return n;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    tess__manifest m = { .step = 1, .chunk_bytes = TESS__CHUNK_BYTES, .generation = 1, .n_states = 2 };
    char path[4096], *text = NULL;
    size_t bytes = 0;
    uint64_t elems = 0;
    m.ranks = m.microbatches = m.n_files = (uint64_t)atoi(argv[2]);
    snprintf(m.writer, sizeof m.writer, "test");
    snprintf(m.optimizer, sizeof m.optimizer, "adamw");
    snprintf(m.strategy, sizeof m.strategy, "full");
    snprintf(m.precision, sizeof m.precision, "fp32");
    m.params = calloc(MOST, sizeof *m.params);
    m.is_buffer = calloc(MOST, 1);
    m.files = calloc(m.n_files, sizeof *m.files);
    tess__tensor *list = calloc((size_t)MOST * KINDS, sizeof *list);
    if (!m.params || !m.is_buffer || !m.files || !list)
        die("memory");
    list_params(&m);
    for (uint64_t i = 0; i < m.n_params; i++)
        elems += m.params[i].elems;
    snprintf(path, sizeof path, "%s/step-000001", argv[1]);
    if (mkdir(argv[1], 0777) || mkdir(path, 0777))
        die(path);
    for (uint64_t w = 0; w < m.n_files; w++) {
        uint64_t n = list_file(&m, w, list), data = tess__safetensors_arrange(list, n);
        tess__data_file_name(1, w, m.n_files, m.files[w].name);
        snprintf(path, sizeof path, "%s/step-000001/%s", argv[1], m.files[w].name);
        if (tess__data_header(path, list, n, &text, &bytes))
            die(path);
        m.files[w].bytes = bytes + data;
        write_all(path, text, bytes, m.files[w].bytes);
        free(text);
    }
    snprintf(path, sizeof path, "%s/step-000001/manifest.json", argv[1]);
    if (tess__manifest_write(&m, path, &text, &bytes))
        die(path);
    write_all(path, text, bytes, bytes);
    printf("%" PRIu64 "\n", elems);
    return 0;
}
