/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera bench --machine: what the simulator needs to know of this machine, in under a minute. Rates of the engine's
 * kernels and of matrix products are measured here, on one thread; collectives and the reference models' blocks in
 * ranks that keep all cores busy, as in training. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "tools/support/command_line.h"
#include "tools/launch/launch.h"
#include "tools/machine/machine.h"
#include "tools/models/ops.h"
#include "kit/norm_limbs.h"
#include "tools/support/options.h"
#include "tools/support/progress.h"
#include "tools/support/settings.h"
#include <tessera/tessera.h>

enum { ROUNDS = 31, ELEMS = 1 << 18, FAR_ELEMS = 1 << 24, SIDE = 384 };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- the engine's kernels ---------------------------------------------------------------------- */
/* `stride`: elements by which the arrays move on between rounds. Between two uses of a shard lies the rest of a step,
 * so it comes from beyond the nearer caches. */
static double kernel_seconds(tess_kernel *k, size_t stride) {
    const void *const *first = k->in;
    const void *in[2];
    tess_kernel moved = *k;
    double times[ROUNDS];
    moved.struct_size = sizeof moved;
    moved.in = in;
    for (int i = -1; i < ROUNDS; i++) {
        size_t at = (size_t)(i + 1) * stride;
        for (uint32_t n = 0; n < k->n_in; n++)
            in[n] = (const float *)first[n] + at;
        if (k->kernel != TESS_K_SQUARE_SUM)
            moved.out = (float *)k->out + at;
        for (int n = 0; n < 2; n++)
            moved.state[n] = k->state[n] ? (float *)k->state[n] + at : NULL;
        double begin = tool_seconds();
        if (tool_bench_run(&moved) != TESS_OK)
            return 0;
        if (i >= 0)
            times[i] = tool_seconds() - begin;
    }
    qsort(times, ROUNDS, sizeof *times, by_value);
    return times[ROUNDS / 2];
}

static double rate(double bytes, double seconds) {
    return seconds > 0 ? bytes / seconds : 0;
}

static void measure_kernels(machine_desc *m, float *const a[4]) {
    int64_t limbs[TESS__NORM_LIMBS] = { 0 };
    const void *in[2] = { a[0], a[1] };
    tess_segment all = { .struct_size = sizeof all, .elems = ELEMS, .lr = 1e-6f };
    tess_optimizer o = { .struct_size = sizeof o,
                         .optimizer = TESS_OPT_ADAMW,
                         .n_segments = 1,
                         .segments = &all,
                         .step = 10,
                         .beta1 = 0.9f,
                         .beta2 = 0.999f,
                         .eps = 1e-8f,
                         .rho = 0.9f,
                         .grad_scale = 1 };
    tess_kernel k = { .in_dtype = TESS_F32,
                      .out_dtype = TESS_F32,
                      .n_in = 1,
                      .in = in,
                      .out = a[2],
                      .elems = ELEMS,
                      .scale = 1,
                      .kernel = TESS_K_CAST };
    k.elems = FAR_ELEMS;
    m->memory_bytes_per_second = rate(8.0 * FAR_ELEMS, kernel_seconds(&k, 0));
    k.elems = 64;
    m->kernel_seconds = kernel_seconds(&k, 0);
    k.elems = ELEMS;
    m->rate_bytes_per_second[MACHINE_RATE_COPY] = rate(8.0 * ELEMS, kernel_seconds(&k, ELEMS));
    k.kernel = TESS_K_TREE_SUM;
    k.n_in = 2;
    m->rate_bytes_per_second[MACHINE_RATE_SUM] = rate(12.0 * ELEMS, kernel_seconds(&k, ELEMS));
    k.n_in = 1;
    k.kernel = TESS_K_SQUARE_SUM;
    k.out_dtype = TESS_I64;
    k.out = limbs;
    m->rate_bytes_per_second[MACHINE_RATE_NORM] = rate(4.0 * ELEMS, kernel_seconds(&k, ELEMS));
    k = (tess_kernel){ .kernel = TESS_K_OPTIMIZER,
                       .in_dtype = TESS_F32,
                       .out_dtype = TESS_F32,
                       .n_in = 1,
                       .in = in,
                       .out = a[1],
                       .state = { a[2], a[3] },
                       .elems = ELEMS,
                       .optimizer = &o };
    m->rate_bytes_per_second[MACHINE_RATE_OPTIMIZER] = rate(28.0 * ELEMS, kernel_seconds(&k, ELEMS));
    m->up_bytes_per_second = m->down_bytes_per_second = m->rate_bytes_per_second[MACHINE_RATE_COPY] / 2;
    m->host_bytes_per_second = m->rate_bytes_per_second[MACHINE_RATE_OPTIMIZER];
}

/* ---- products ---------------------------------------------------------------------------------- */
static double product_rate(int32_t bf16, float *const a[4]) {
    const ops_table *table;
    ops *o = NULL;
    ops_linear *linear = NULL;
    ops_options how = { .threads = 1, .bf16 = bf16 };
    ops_linear_shape shape = { SIDE, SIDE, SIDE, 0, 1 };
    ops_scratch need = { 0 };
    double times[ROUNDS] = { 0 };
    tess_status status = ops_find(NULL, &table);
    if (status == TESS_OK)
        status = table->create(&how, &o);
    if (status == TESS_OK)
        status = table->linear_create(o, &shape, &linear, &need);
    for (int i = -1; i < ROUNDS && status == TESS_OK; i++) {
        double begin = tool_seconds();
        status = table->linear_forward(linear, a[0], a[1], NULL, a[2], a[3]);
        if (i >= 0)
            times[i] = tool_seconds() - begin;
    }
    if (linear)
        table->linear_destroy(linear);
    if (o)
        table->destroy(o);
    qsort(times, ROUNDS, sizeof *times, by_value);
    return status == TESS_OK ? rate(2.0 * SIDE * SIDE * SIDE, times[ROUNDS / 2]) : 0;
}

static tess_status measure_here(machine_desc *m) {
    float *a[4] = { NULL };
    tess_status status = TESS_OK;
    for (int i = 0; i < 4 && status == TESS_OK; i++) {
        a[i] = aligned_alloc(64, (size_t)FAR_ELEMS * sizeof **a);
        if (!a[i])
            status = tess_fail(TESS_E_NOMEM, "no memory to measure with");
        for (size_t k = 0; a[i] && k < FAR_ELEMS; k++)
            a[i][k] = (float)(k % 1000 + 1) * 0x1p-12f;
    }
    if (status == TESS_OK) {
        measure_kernels(m, a);
        m->flops_per_second[TESS_F32] = product_rate(0, a);
        m->flops_per_second[TESS_BF16] = product_rate(1, a);
    }
    for (int i = 0; i < 4; i++)
        free(a[i]);
    return status;
}

/* ---- in ranks ---------------------------------------------------------------------------------- */
enum { MOST_OPTIONS = 32 };
static int in_ranks(int32_t ranks, char *const *words, const char *path, machine_desc *m) {
    struct stat written;
    char json[128], options[MOST_OPTIONS][96];
    char *argv[24 + MOST_OPTIONS] = { "tessera", "bench" };
    tess_options given = { .struct_size = sizeof given };
    int n = 2;
    snprintf(json, sizeof json, "--json=%s", path);
    while (*words && n < 22)
        argv[n++] = *words++;
    tool_settings_give(&given);
    for (uint32_t i = 0; i < given.n_settings && i < MOST_OPTIONS; i++) {
        snprintf(options[i], sizeof options[i], "--%s=%s", given.settings[i].key, given.settings[i].value);
        argv[n++] = options[i];
    }
    argv[n] = json;
    int code = launch_self(&(launch_options){ .ranks = ranks, .bind = 1, .ranks_explain = 1, .argv = argv });
    if (code == TOOL_OK && stat(path, &written) == 0 && written.st_size > 0 &&
        machine_add_events(m, path, 1) != TESS_OK)
        code = tool_report(TESS_E_DATA);
    return code;
}

/* Measures every comm plugin that can run here, or TESSERA_COMM. Without any the description has no collectives. */
static int measure_collectives(machine_desc *m, const char *path) {
    static char *const ops[] = { "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "all_to_all_v" };
    int code = TOOL_OK;
    for (size_t i = 0; i < sizeof ops / sizeof *ops && code == TOOL_OK; i++) {
        char *words[] = { "comm",        "--op",          ops[i], "--together=1", "--least-bytes=1KiB", "--bytes=16MiB",
                          "--rounds=41", "--seconds=0.5", NULL };
        code = in_ranks(2, words, path, m);
    }
    return code;
}

static int measure_blocks(machine_desc *m, const char *path) {
    int32_t cores = (int32_t)m->cores;
    int code = TOOL_OK;
    for (int32_t ranks = 1; ranks <= 2 && ranks <= cores && code == TOOL_OK; ranks++) {
        char threads[16];
        snprintf(threads, sizeof threads, "%d", (int)(cores / ranks));
        char *words[] = { "blocks", "--threads", threads, NULL };
        code = in_ranks(ranks, words, path, m);
    }
    return code;
}

/* Inputs of the formula for numbers of ranks and operations that were not measured. */
static void fit_link(machine_desc *m) {
    for (int32_t i = 0; i < m->n_collectives; i++) {
        const machine_collective *c = &m->collectives[i];
        if (c->op != TESS_ALL_GATHER || !(c->seconds > 0))
            continue;
        if (m->within.latency_seconds == 0) /* the smallest comes first */
            m->within.latency_seconds = c->seconds;
        m->within.bytes_per_second = (double)c->bytes * (c->ranks - 1) / c->ranks / c->seconds;
    }
    m->across = m->within;
}

static tess_status save(const machine_desc *m, const char *path) {
    FILE *file = strcmp(path, "1") == 0 ? stdout : fopen(path, "we");
    if (!file)
        return tess_fail(TESS_E_DATA, "--machine=%s: %s", path, strerror(errno));
    int bad = machine_write(m, file);
    if (file != stdout)
        bad |= fclose(file);
    return bad ? tess_fail(TESS_E_SYSTEM, "--machine=%s: not everything could be written", path) : TESS_OK;
}

int tool_bench_machine(const char *path) {
    char temporary[] = "/tmp/tessera-bench-XXXXXX";
    machine_desc m = { .is_cpu = 1, .algorithm = MACHINE_DIRECT };
    int fd = mkstemp(temporary);
    if (fd < 0)
        return tool_report(tess_fail(TESS_E_DATA, "%s: %s", temporary, strerror(errno)));
    close(fd);
    snprintf(m.name, sizeof m.name, "this machine");
    snprintf(m.source, sizeof m.source, "measured by tessera bench --machine");
    m.cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
    m.device_memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    tess_status status = tool_option_text("log") ? TESS_OK : tool_settings_set("log", "warning");
    if (status == TESS_OK)
        status = measure_here(&m);
    int code = status == TESS_OK ? measure_blocks(&m, temporary) : tool_report(status);
    if (code == TOOL_OK && m.cores >= 2)
        code = measure_collectives(&m, temporary);
    fit_link(&m);
    if (code == TOOL_OK && (status = save(&m, path)) != TESS_OK)
        code = tool_report(status);
    unlink(temporary);
    machine_close(&m);
    return code;
}
