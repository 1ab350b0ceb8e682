/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks the arguments of kernels and chooses their grids. */
#include "device.h"
#include "batch.h"

extern const unsigned char cuda_kernels_image[];

#define NAME(name, args, body) #name,
#define STEPS_NAME(name, body) #name,
static const char *const names[] = { CUDA_KERNELS(NAME) CUDA_STEPS(STEPS_NAME)
                                         CUDA_OF_BLOCKS(NAME) "tess_cuda_square_sum" };

tess_status cuda_load_kernels(tess_device *d, tess_error *error) {
    d->functions = calloc(N_KERNELS, sizeof *d->functions);
    d->batch = calloc(1, sizeof *d->batch);
    if (!d->functions || !d->batch)
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cuda: no memory for its own tables");
    char why[240];
    CUresult r = tess_cuda_load_module(d->cu, d->handle, cuda_kernels_image, &d->module, why, sizeof why);
    if (r)
        return tess_plugin_fail(error, tess_cuda_status(r), "device cuda: GPU %d: %s", (int)d->index, why);
    for (int i = 0; r == CUDA_SUCCESS && i < N_KERNELS; i++)
        r = d->cu->cuModuleGetFunction(&d->functions[i], d->module, names[i]);
    return r ? cuda_failed(d, r, "loading its kernels", error) : TESS_OK;
}

/* ---- what is offered -------------------------------------------------------------------------------- */

static int is_one_of(uint32_t dtype, uint32_t mask) {
    return dtype < 32 && (mask >> dtype & 1u);
}
enum {
    IN_F32 = 1 << TESS_F16 | 1 << TESS_BF16 | 1 << TESS_F32, /* formats that kernels compute in f32 */
    BLOCKS = 1 << TESS_Q8 | 1 << TESS_Q8E4M3,
    THROUGH = TESS_KERNEL_Q8 | TESS_KERNEL_Q8E4M3, /* flags of sums */
    FLOATS = IN_F32 | 1 << TESS_F64,
    WHOLE = 1 << TESS_I32 | 1 << TESS_I64
};

static int draws(const tess_kernel *k) {
    return TESS_HAS(tess_kernel, k, rounding) && k->rounding;
}

static int is_offered(const tess_kernel *k) {
    uint32_t in = k->in_dtype, out = k->out_dtype;
    if (draws(k))
        return k->kernel == TESS_K_CAST && in == TESS_F32 && is_one_of(out, BLOCKS);
    switch (k->kernel) {
    case TESS_K_CAST:
        if (is_one_of(in, BLOCKS) || is_one_of(out, BLOCKS))
            return in == out || (in == TESS_F32 && is_one_of(out, BLOCKS)) || is_one_of(out, IN_F32);
        return is_one_of(in, FLOATS) && is_one_of(out, FLOATS) ? 1 : in == out && tess_dtype_bytes(in) != 0;
    case TESS_K_TREE_SUM:
        return is_one_of(in, IN_F32 | BLOCKS) ? is_one_of(out, IN_F32 | BLOCKS)
                                              : in == out && is_one_of(in, WHOLE | 1 << TESS_F64);
    case TESS_K_SCALE: return in == out && is_one_of(in, 1 << TESS_F32 | 1 << TESS_F64);
    case TESS_K_SQUARE_SUM: return is_one_of(in, IN_F32) && (!out || out == TESS_I64);
    case TESS_K_CLIP: return in == TESS_I64 && out == TESS_F32;
    case TESS_K_OPTIMIZER: return out == TESS_F32 ? is_one_of(in, IN_F32) : out == TESS_F64 && in == out;
    default: return 0;
    }
}

tess_status cuda_kernel_need(void *ctx, const tess_kernel *k, tess_need *out) {
    tess_need need = { .align = CUDA_ALIGN };
    (void)ctx;
    if (!is_offered(k) || (k->kernel == TESS_K_TREE_SUM && k->n_in > CUDA_MANY))
        return TESS_E_UNSUPPORTED;
    TESS_GIVE(out, &need);
    return TESS_OK;
}

static tess_status check_optimizer(const tess_kernel *k, tess_error *error) {
    const tess_optimizer *o = k->optimizer;
    uint64_t end = 0;
    int states = 2;
    if (!o || (o->n_segments && !o->segments) || !o->step)
        return tess_plugin_fail(error, TESS_E_INVALID, "device cuda: optimizer without settings, or of step 0");
    if (o->optimizer < TESS_OPT_SGD || o->optimizer > TESS_OPT_ADADELTA)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "device cuda: optimizer %u is unknown, expected 1 to 4",
                                o->optimizer);
    if (o->optimizer == TESS_OPT_SGD)
        states = 0;
    for (uint32_t i = 0; i < o->n_segments; i++) {
        const tess_segment *s = TESS_AT(o->segments, i);
        if (s->first < end || s->first > k->elems || s->elems > k->elems - s->first)
            return tess_plugin_fail(error, TESS_E_INVALID,
                                    "device cuda: segment %u of the optimizer is %llu elements from %llu; expected "
                                    "ascending, disjoint, within %llu",
                                    i, (unsigned long long)s->elems, (unsigned long long)s->first,
                                    (unsigned long long)k->elems);
        end = s->first + s->elems;
        if (o->optimizer == TESS_OPT_SGD && s->momentum != 0)
            states = 1;
    }
    for (int i = 0; i < states; i++)
        if (!k->state[i])
            return tess_plugin_fail(error, TESS_E_INVALID, "device cuda: state %d of the optimizer is null", i);
    return TESS_OK;
}

static tess_status check_kernel(const tess_kernel *k, tess_error *error) {
    uint32_t inputs = k->kernel == TESS_K_TREE_SUM ? k->n_in : k->kernel == TESS_K_SCALE ? 0 : 1;
    int sums = k->kernel == TESS_K_TREE_SUM, whole = sums && is_one_of(k->in_dtype, WHOLE);
    int packs = sums && is_one_of(k->out_dtype, BLOCKS);
    if (!is_offered(k))
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "device cuda: kernel %u from %s to %s is not offered",
                                k->kernel, tess_dtype_name(k->in_dtype), tess_dtype_name(k->out_dtype));
    if (k->kernel == TESS_K_TREE_SUM && (k->n_in == 0 || k->n_in > CUDA_MANY))
        return tess_plugin_fail(error, k->n_in ? TESS_E_UNSUPPORTED : TESS_E_INVALID,
                                "device cuda: a tree sum of %u inputs, expected 1 to %d", k->n_in, CUDA_MANY);
    if (sums && k->flags & THROUGH &&
        ((k->flags & THROUGH) == THROUGH || k->flags & TESS_KERNEL_CHAIN || whole || k->in_dtype == TESS_F64))
        return tess_plugin_fail(error, TESS_E_INVALID,
                                "device cuda: a tree sum with flags %u: blocks are of one kind, of "
                                "f32, and of no chain",
                                k->flags);
    if ((k->kernel == TESS_K_CAST || whole || packs) && k->scale != 0 && k->scale != 1)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "device cuda: kernel %u of %s does not scale", k->kernel,
                                tess_dtype_name(k->in_dtype));
    if (!k->elems && k->kernel != TESS_K_SQUARE_SUM)
        return TESS_OK;
    for (uint32_t i = 0; i < inputs; i++)
        if (!k->in || !k->in[i])
            return tess_plugin_fail(error, TESS_E_INVALID, "device cuda: kernel %u: input %u is null", k->kernel, i);
    if (!k->out)
        return tess_plugin_fail(error, TESS_E_INVALID, "device cuda: kernel %u: the output is null", k->kernel);
    return k->kernel == TESS_K_OPTIMIZER ? check_optimizer(k, error) : TESS_OK;
}

/* ---- launches ------------------------------------------------------------------------------------------ */

static CUresult launch_kernel(const cuda_place *p, int kernel, const void *args, uint64_t items) {
    uint64_t blocks = (items + CUDA_THREADS - 1) / CUDA_THREADS;
    blocks = blocks < p->most_blocks ? blocks : p->most_blocks;
    return items ? cuda_launch(p, kernel, args, blocks, CUDA_THREADS) : CUDA_SUCCESS;
}

static uint64_t most_blocks(tess_device *d, const tess_kernel *k) {
    int on_host = cuda_is_on_host(d, k->out);
    uint32_t inputs = k->kernel == TESS_K_TREE_SUM ? k->n_in : 1;
    for (uint32_t i = 0; k->in && i < inputs && !on_host; i++)
        on_host = cuda_is_on_host(d, k->in[i]);
    for (int i = 0; k->kernel == TESS_K_OPTIMIZER && i < 2 && !on_host; i++)
        on_host = cuda_is_on_host(d, k->state[i]);
    return on_host ? CUDA_HOST_BLOCKS : (uint64_t)d->processors * CUDA_BLOCKS_PER_PROCESSOR;
}

static uint64_t items_of(uint64_t elems) {
    return (elems + CUDA_LANES - 1) / CUDA_LANES;
}

static CUresult launch_copy(const cuda_place *p, const tess_kernel *k) {
    uint64_t bytes = tess_dtype_span(k->in_dtype, k->elems);
    if (k->in[0] == k->out)
        return CUDA_SUCCESS;
    /* either side may be page-locked memory of the host */
    return p->device->cu->cuMemcpyAsync((CUdeviceptr)(uintptr_t)k->out, (CUdeviceptr)(uintptr_t)k->in[0], bytes,
                                        p->stream);
}

/* The places of inputs that there are not are zero: a race detector takes each word for an address, whatever the stack
 * held. */
static void put_inputs(cuda_sum_many_args *a, const tess_kernel *k) {
    uint32_t n = a->sum.n_in, places = n > CUDA_FEW ? CUDA_MANY : CUDA_FEW;
    for (uint32_t i = 0; i < places; i++)
        a->in[i] = i < n ? k->in[i] : NULL;
}

/* Casts and sums of kernels_blocks.h, a warp for each block. */
static CUresult launch_blocks(const cuda_place *p, const tess_kernel *k) {
    cuda_sum_many_args a;
    int plain = k->scale == 0 || k->scale == 1, sums = k->kernel == TESS_K_TREE_SUM;
    uint32_t flags = sums ? k->flags : 0;
    a.sum = (cuda_sum){ .items = (k->elems + TESS_Q8_BLOCK - 1) / TESS_Q8_BLOCK,
                        .elems = k->elems,
                        .out = k->out,
                        .scale = plain ? 1 : k->scale,
                        .n_in = sums ? k->n_in : 1,
                        .in_dtype = k->in_dtype,
                        .out_dtype = k->out_dtype,
                        .add = flags & TESS_KERNEL_ADD,
                        .round = flags & TESS_KERNEL_Q8       ? TESS_Q8
                                 : flags & TESS_KERNEL_Q8E4M3 ? TESS_Q8E4M3
                                                              : 0 };
    put_inputs(&a, k);
    return launch_kernel(p, a.sum.n_in > CUDA_FEW ? N_tess_cuda_blocks_many : N_tess_cuda_blocks_few, &a,
                         a.sum.items * 32);
}

/* The elements of one run: whole blocks of it, with the zeros behind them. */
static CUresult launch_draw(const cuda_place *p, const tess_kernel *k, uint64_t from, uint64_t end, uint64_t at) {
    cuda_draw_args a = { .items = (end - from + TESS_Q8_BLOCK - 1) / TESS_Q8_BLOCK,
                         .elems = end - from,
                         .in = (const float *)k->in[0] + from,
                         .out = (char *)k->out + from / TESS_Q8_BLOCK * TESS_Q8_BYTES,
                         .at = at,
                         .step = k->rounding->step,
                         .draw = k->rounding->draw,
                         .dtype = k->out_dtype };
    return launch_kernel(p, N_tess_cuda_draw, &a, a.items * 32);
}

static CUresult clear_blocks(const cuda_place *p, const tess_kernel *k, uint64_t from, uint64_t end) {
    uint64_t first = (from + TESS_Q8_BLOCK - 1) / TESS_Q8_BLOCK, last = (end + TESS_Q8_BLOCK - 1) / TESS_Q8_BLOCK;
    return first < last ? p->device->cu->cuMemsetD8Async((CUdeviceptr)(uintptr_t)k->out + first * TESS_Q8_BYTES, 0,
                                                         (last - first) * TESS_Q8_BYTES, p->stream)
                        : CUDA_SUCCESS;
}

/* A launch for each parameter, since each counts its elements from a number of its own. Between them are zeros. */
static CUresult launch_draws(const cuda_place *p, const tess_kernel *k) {
    const tess_rounding *r = k->rounding;
    uint64_t done = 0; /* elements of the input */
    CUresult result = CUDA_SUCCESS;
    for (uint32_t i = 0; i < r->n_runs && !result; i++) {
        const tess_place *run = &r->runs[i];
        uint64_t end = (run->first + run->elems + TESS_Q8_BLOCK - 1) / TESS_Q8_BLOCK * TESS_Q8_BLOCK;
        uint64_t from = run->first > r->first ? run->first - r->first : 0;
        if (end <= r->first || from >= k->elems)
            continue;
        uint64_t to = end - r->first < k->elems ? end - r->first : k->elems;
        result = clear_blocks(p, k, done, from);
        if (!result)
            result = launch_draw(p, k, from, to, run->at + (r->first + from - run->first));
        done = to;
    }
    return result ? result : clear_blocks(p, k, done, k->elems);
}

static CUresult launch_cast(const cuda_place *p, const tess_kernel *k) {
    if (draws(k))
        return launch_draws(p, k);
    if (k->in_dtype != k->out_dtype && is_one_of(k->out_dtype, BLOCKS))
        return launch_blocks(p, k);
    cuda_cast_args a = { .items = items_of(k->elems),
                         .elems = k->elems,
                         .in = k->in[0],
                         .out = k->out,
                         .in_dtype = k->in_dtype,
                         .out_dtype = k->out_dtype,
                         .vector = cuda_aligned(k->in[0], k->in_dtype) && cuda_aligned(k->out, k->out_dtype) };
    return k->in_dtype == k->out_dtype ? launch_copy(p, k) : launch_kernel(p, N_tess_cuda_cast, &a, a.items);
}

static CUresult launch_scale(const cuda_place *p, const tess_kernel *k) {
    const void *in = k->in && k->in[0] ? k->in[0] : k->out;
    cuda_scale_args a = { .items = items_of(k->elems),
                          .elems = k->elems,
                          .in = in,
                          .out = k->out,
                          .scale = k->scale,
                          .dtype = k->in_dtype,
                          .vector = cuda_aligned(in, k->in_dtype) && cuda_aligned(k->out, k->out_dtype) };
    return launch_kernel(p, N_tess_cuda_scale, &a, a.items);
}

static int sum_kernel(uint32_t in_dtype, int many) {
    switch (in_dtype) {
    case TESS_F64: return many ? N_tess_cuda_sum_f64_many : N_tess_cuda_sum_f64_few;
    case TESS_I32: return many ? N_tess_cuda_sum_i32_many : N_tess_cuda_sum_i32_few;
    case TESS_I64: return many ? N_tess_cuda_sum_i64_many : N_tess_cuda_sum_i64_few;
    default: return many ? N_tess_cuda_sum_f32_many : N_tess_cuda_sum_f32_few;
    }
}

static CUresult tree_sum(const cuda_place *p, const tess_kernel *k) {
    cuda_sum_many_args a;
    int plain = k->scale == 0 || k->scale == 1, many = k->n_in > CUDA_FEW, chain = (k->flags & TESS_KERNEL_CHAIN) != 0;
    uint32_t partial = is_one_of(k->in_dtype, IN_F32 | BLOCKS) ? TESS_F32 : k->in_dtype;
    if (k->n_in == 1 && plain && !(k->flags & TESS_KERNEL_ADD))
        return launch_cast(p, k);
    if (k->flags & THROUGH || is_one_of(k->out_dtype, BLOCKS))
        return launch_blocks(p, k);
    a.sum = (cuda_sum){ .items = items_of(k->elems),
                        .elems = k->elems,
                        .out = k->out,
                        .scale = plain ? 1 : k->scale,
                        .n_in = k->n_in,
                        .in_dtype = k->in_dtype,
                        .out_dtype = k->out_dtype,
                        .chain = (uint32_t)chain,
                        .add = k->flags & TESS_KERNEL_ADD,
                        .vector = (uint32_t)cuda_aligned(k->out, k->out_dtype) };
    put_inputs(&a, k);
    for (uint32_t i = 0; i < k->n_in; i++)
        a.sum.vector &= (uint32_t)cuda_aligned(a.in[i], chain && i + 1 < k->n_in ? partial : k->in_dtype);
    return launch_kernel(p, sum_kernel(k->in_dtype, many), &a, a.sum.items);
}

static CUresult launch_clip(const cuda_place *p, const tess_kernel *k) {
    cuda_clip_args a = { .items = 1, .limbs = k->in[0], .out = k->out, .most = k->scale };
    return launch_kernel(p, N_tess_cuda_clip, &a, a.items);
}

tess_status cuda_kernel(tess_device *d, const tess_kernel *k, const tess_stream *stream, tess_error *error) {
    static CUresult (*const run[])(const cuda_place *, const tess_kernel *) = {
        [TESS_K_CAST] = launch_cast,           [TESS_K_TREE_SUM] = tree_sum,        [TESS_K_SCALE] = launch_scale,
        [TESS_K_SQUARE_SUM] = cuda_square_sum, [TESS_K_OPTIMIZER] = cuda_optimizer, [TESS_K_CLIP] = launch_clip
    };
    tess_status s = check_kernel(k, error);
    int gathers = k->kernel == TESS_K_SQUARE_SUM || k->kernel == TESS_K_OPTIMIZER;
    if (s || (!k->elems && !gathers))
        return s;
    const cuda_place p = { d, stream ? (CUstream)stream->handle : NULL, most_blocks(d, k) };
    s = cuda_enter(d, error);
    if (s)
        return s;
    CUresult r = gathers ? CUDA_SUCCESS : cuda_batch_flush(d);
    r = r ? r : run[k->kernel](&p, k);
    cuda_leave(d);
    return r ? cuda_failed(d, r, "a kernel", error) : TESS_OK;
}
