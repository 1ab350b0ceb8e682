/* SPDX-License-Identifier: BSD-3-Clause */
/* The command from "another build": the linker puts these functions before its own (--wrap). BENT says which is bent:
 * gelu (another formula), decay (the second group of parameters decays too), flip (a bit of rank 1's second moments in
 * step BENT_STEP), flip-once (the same when BENT_FILE is not there yet). */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/kernels/kernels.h"
#include "tools/models/decoder/decoder.h"
#include <tessera/tessera.h>

static int bent(const char *how) {
    const char *text = getenv("BENT");
    return text && strcmp(text, how) == 0;
}

void __real_decoder_act(const decoder *, const void *gate, const void *up, void *y, int64_t elems);
void __wrap_decoder_act(const decoder *, const void *gate, const void *up, void *y, int64_t elems);
void __wrap_decoder_act(const decoder *d, const void *gate, const void *up, void *y, int64_t elems) {
    float *out = y;
    __real_decoder_act(d, gate, up, y, elems);
    for (int64_t i = 0; bent("gelu") && i < elems; i++)
        out[i] = out[i] / 3.0f * 3.0f;
}

tess_status __real_tess_run_repeat(tess *, const tess_run_options *, uint64_t);
tess_status __wrap_tess_run_repeat(tess *, const tess_run_options *, uint64_t);
tess_status __wrap_tess_run_repeat(tess *t, const tess_run_options *options, uint64_t number) {
    tess_run_options run = *options;
    tess_optimizer_options step;
    tess_optimizer_group groups[2];
    if (!bent("decay") || !run.step || run.step->n_groups != 2)
        return __real_tess_run_repeat(t, options, number);
    step = *run.step;
    memcpy(groups, step.groups, sizeof groups);
    groups[1].weight_decay = 0.5f;
    step.groups = groups;
    run.step = &step;
    return __real_tess_run_repeat(t, &run, number);
}

static int flips(uint64_t step) {
    const char *rank = getenv("RANK"), *at = getenv("BENT_STEP"), *file = getenv("BENT_FILE");
    if (!rank || strcmp(rank, "1") != 0 || !at || strtoull(at, NULL, 10) != step)
        return 0;
    return bent("flip") || (bent("flip-once") && open(file ? file : "", O_CREAT | O_EXCL | O_CLOEXEC, 0600) >= 0);
}

void __real_tess__kernel_optimizer(const tess_kernel *, tess__pool *);
void __wrap_tess__kernel_optimizer(const tess_kernel *, tess__pool *);
void __wrap_tess__kernel_optimizer(const tess_kernel *k, tess__pool *pool) {
    static const void *first;
    __real_tess__kernel_optimizer(k, pool);
    first = first ? first : k->out;
    if (k->out == first && k->state[1] && flips(k->optimizer->step))
        ((unsigned char *)k->state[1])[5] ^= 4;
}
