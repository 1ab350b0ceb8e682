/* SPDX-License-Identifier: BSD-3-Clause */
/* The models' kernels but attention in 16 bits, as a GPU runs them: to the doubles' bits, which other tests compare
 * with the CPU. */
#include "against.h"

#include "tools/models/cuda/kernels.h"

static char what[128];
#define WHAT(...) (snprintf(what, sizeof what, __VA_ARGS__), what)
#define OPS(name, args, blocks) LAUNCH(OPS_KERNEL_NAME(name), args, blocks, OPS_BLOCK)
#define EACH(type, x, ...)                                                                                             \
    for (size_t x##_i = 0; x##_i < sizeof((const type[]){ __VA_ARGS__ }) / sizeof(type); x##_i++)                      \
        for (type x = ((const type[]){ __VA_ARGS__ })[x##_i], x##_once = 1; x##_once; x##_once = 0)

static ops_cuda_mask mask_of(uint64_t time, uint64_t width, float rate) {
    return (ops_cuda_mask){ .time = time, .width = width, .rate = rate, .seed = 9, .step = 3, .first_sample = 5 };
}
static int32_t *numbers(uint64_t n, uint64_t below) {
    int32_t *x = array(n * sizeof *x);
    for (uint64_t i = 0; i < n; i++)
        x[i] = (int32_t)(i * 7919 % below);
    return x;
}

/* Rooms for what each block of a kernel finds in two tensors of 16 bits, or none. */
static ops_found found_of(int which, uint64_t blocks) {
    return (ops_found){ { which & 1 ? array(4 * blocks) : NULL, which & 2 ? array(4 * blocks) : NULL } };
}

/* ---- normalisation --------------------------------------------------------------------------------- */
static void norm(uint64_t rows, uint64_t w, int half, int full) {
    ops_args_norm a = { .rows = rows, .width = w, .half = half, .eps = 1e-5, .about_zero = !full };
    a.x = factors(rows * w, half, 1), a.w = factors(w, half, 1), a.y = array(rows * w * 4);
    a.stats = array(8 * rows), a.mask = mask_of(rows > 3 ? rows / 2 : 1, w, full ? 0.1f : 0);
    if (full) {
        a.b = factors(w, half, 1), a.add = factors(rows * w, half, 1), a.add_bias = factors(w, half, 1);
        a.sum = array(rows * w * 4), a.next = array(rows * w * 4), a.next_bias = factors(w, half, 1);
    }
    a.tile_rows = ops_is_vector(w) ? ops_tile_rows(w, half ? 2 : 4) : 0;
    if (a.tile_rows)
        a.found = found_of(half && full, over(rows, a.tile_rows));
    if (a.tile_rows)
        OPS(norm_tile, a, over(rows, a.tile_rows));
    else
        OPS(norm, a, over(rows, OPS_ROWS_PER_BLOCK));
    compare(WHAT("%d rows of %d, half %d", (int)rows, (int)w, half));
}

static ops_args_norm_slopes slopes_of(uint64_t rows, uint64_t w, int half, int full) {
    ops_args_norm_slopes a = { .rows = rows, .width = w, .half = half, .about_zero = !full };
    a.x = factors(rows * w, half, 1), a.w = factors(w, half, 1), a.dy = factors(rows * w, half, 1);
    a.stats = floats(2 * rows, 1), a.mask = mask_of(rows > 3 ? rows / 2 : 1, w, full ? 0.1f : 0);
    a.dx = array(rows * w * 4);
    if (full) {
        a.b = factors(w, half, 1), a.add = factors(rows * w, half, 1);
        a.masked = array(rows * w * 4), a.normal = array(rows * w * 4);
    }
    a.tile_rows = ops_is_vector(w) ? ops_tile_rows(w, half ? 4 : 8) : 0;
    if (a.tile_rows)
        a.found = found_of(half ? 2 * full + (rows != 33) : 0, over(rows, a.tile_rows));
    return a;
}
static void norm_slopes(uint64_t rows, uint64_t w, int half, int full) {
    ops_args_norm_slopes a = slopes_of(rows, w, half, full);
    if (a.tile_rows)
        OPS(norm_slopes_tile, a, over(rows, a.tile_rows));
    else
        OPS(norm_slopes, a, over(rows, OPS_ROWS_PER_BLOCK));
    compare(WHAT("%d rows of %d, half %d", (int)rows, (int)w, half));
}

static void test_layers__norms_in_every_width(void **state) {
    (void)state;
    for (int half = 0; half < 2; half++)
        EACH(uint64_t, w, 1, 7, 8, 20, 64, 776, 3304, 6656) {
            norm(17, w, half, 1);
            norm(1, w, half, 0);
            norm_slopes(17, w, half, 1);
            norm_slopes(1, w, half, 0);
        }
}

/* ---- sums over columns ----------------------------------------------------------------------------- */
/* Jobs of widths `w`: of the first and every other the gain too. */
static ops_args_columns columns_of(uint64_t rows, const uint32_t *w, int jobs, int half, int add) {
    ops_args_columns a = { .rows = rows, .half = half, .add = add, .n_jobs = jobs };
    for (int i = 0; i < jobs; i++) {
        ops_cuda_columns *j = &a.jobs[i];
        j->width = w[i], j->first_block = a.blocks, j->first_sum = a.n_sums;
        j->group = 1, j->pitch = j->x_pitch = w[i];
        j->dy = factors(rows * w[i], half, 1), j->db = floats(w[i], 1);
        if (i % 2 == 0)
            j->x = factors(rows * w[i], half, 1), j->stats = floats(2 * rows, 1), j->dw = floats(w[i], 1);
        a.blocks += (uint32_t)over(w[i], OPS_JOB_COLUMNS), a.n_sums += j->dw ? 2 * w[i] : w[i];
    }
    a.sums = array(over(rows, OPS_JOB_ROWS) * a.n_sums * sizeof(double));
    return a;
}
static void columns(uint64_t rows, const uint32_t *w, int jobs, int half, int add) {
    ops_args_columns a = columns_of(rows, w, jobs, half, add);
    OPS(columns, a, a.blocks * over(rows, OPS_JOB_ROWS));
    compare(WHAT("%d rows, %d jobs, half %d", (int)rows, jobs, half));
}

static void test_layers__columns_of_several_arrays(void **state) {
    (void)state;
    for (int half = 0; half < 2; half++) {
        columns(1, (const uint32_t[]){ 5 }, 1, half, 0);
        columns(257, (const uint32_t[]){ 64, 8, 100, 7, 200 }, 5, half, 1);
        columns(33, (const uint32_t[]){ 1, 63, 65 }, 3, half, 0);
    }
}

static void test_layers__columns_beside_a_norm(void **state) {
    (void)state;
    for (int half = 0; half < 2; half++)
        EACH(uint64_t, rows, 33, 257) {
            ops_args_norm_slopes_columns a = { columns_of(rows, (const uint32_t[]){ 64, 24, 7 }, 3, half, half),
                                               slopes_of(rows, 24, half, half), 0 };
            a.first = a.columns.blocks * (uint32_t)over(rows, OPS_JOB_ROWS);
            OPS(norm_slopes_columns, a, a.first + over(rows, a.norm.tile_rows));
            compare(WHAT("%d rows, half %d", (int)rows, half));
        }
}

static void test_layers__column_sums(void **state) {
    ops_args_column_sums a = { .rows = 77, .width = 13, .groups = 2, .over = 1 };
    (void)state;
    a.x = floats(3 * 77 * 13, 1), a.y = floats(3 * 13, 1);
    OPS(column_sums, a, 6);
    compare("3 samples");
}

/* ---- losses ---------------------------------------------------------------------------------------- */
static ops_args_loss loss_of(uint64_t rows, uint64_t all, uint64_t classes, int half) {
    uint64_t pitch = over(classes, 8) * 8;
    ops_args_loss a = { .rows = rows, .all = all, .classes = classes, .pitch = pitch, .mean = 0.25f, .half = half };
    a.scale = half ? 4 : 1, a.logits = factors(all * pitch, half, 6);
    for (uint64_t i = 0; i < all * pitch; i++)
        if (i % pitch >= classes)
            ops_put(a.logits, i, half, NAN);
    a.labels = numbers(all, classes), a.losses = array(all * sizeof(ops_cuda_row_loss));
    a.slopes = 1, a.tile_rows = ops_tile_rows(classes, 4);
    return a;
}
static void run_loss(const ops_args_loss *a) {
    uint64_t rows = a->slopes ? a->all : a->rows;
    if (a->tile_rows)
        OPS(loss_tile, *a, over(rows, a->tile_rows));
    else
        OPS(loss_rows, *a, rows);
}

static void test_layers__losses_of_short_and_long_rows(void **state) {
    (void)state;
    for (int half = 0; half < 2; half++)
        EACH(uint64_t, classes, 1, 10, 17, 61, 1000, 6640, 6641, 8192, 12297, 20000)
    for (int slopes = 0; slopes < 2; slopes++)
        for (int capped = 0; capped < 2; capped++) {
            ops_args_loss a = loss_of(3, 5, classes, half);
            a.slopes = slopes, a.cap = capped ? 2 : 0, a.over_cap = capped ? 0.5f : 0;
            run_loss(&a);
            compare(WHAT("%d classes, half %d, slopes %d, capped %d", (int)classes, half, slopes, capped));
        }
}

/* Threads whose logits all say "never", as a vocabulary's padding does. */
static void test_layers__losses_of_rows_with_minus_infinity(void **state) {
    (void)state;
    EACH(uint64_t, classes, 40, 20000) {
        ops_args_loss a = loss_of(1, 1, classes, 0);
        float *logits = a.logits;
        a.slopes = 0;
        double sum = 0;
        for (uint64_t c = 0; c < classes; c++) {
            logits[c] = c < 24 ? -INFINITY : logits[c];
            sum += exp((double)logits[c]);
        }
        ((int32_t *)(uintptr_t)a.labels)[0] = 30;
        run_loss(&a);
        expect_doubles_bits(WHAT("%d classes", (int)classes), 0);
        assert_true(fabs(a.losses[0].loss - (log(sum) - (double)logits[30])) < 1e-4);
        forget_arrays();
    }
}

static void test_layers__cross_entropy_and_its_sum(void **state) {
    (void)state;
    EACH(uint64_t, classes, 3, 40) {
        ops_args_cross_entropy a = { .rows = 19, .classes = classes, .logits = floats(19 * classes, 4) };
        ops_args_loss_sum sum = { .rows = 19, .out = array(sizeof(ops_cuda_loss)) };
        a.labels = numbers(19, classes), sum.losses = a.losses = array(19 * sizeof(ops_cuda_row_loss));
        memset(a.losses, 0, 19 * sizeof *a.losses);
        OPS(cross_entropy, a, 2);
        OPS(loss_sum, sum, 1);
        compare(WHAT("%d classes", (int)classes));
    }
}

static void test_layers__losses_of_single_elements(void **state) {
    const uint64_t rows = 19, count = 17, classes = 41;
    ops_args_cross_entropy_backward c = { .elems = rows * classes, .classes = classes, .count = count, .over = 0.5f };
    (void)state;
    c.probabilities = floats(rows * classes, 1), c.labels = numbers(rows, classes), c.dlogits = array(4 * c.elems);
    OPS(cross_entropy_backward, c, over(c.elems, OPS_BLOCK * OPS_EACH));
    compare("19 rows, 17 of them counted");
    EACH(int, squared, 0, 1) {
        ops_args_sum_loss a = { .x = floats(7, 1), .out = array(sizeof *a.out), .elems = 7, .count = 3 };
        ops_args_sum_loss_backward b = { .x = a.x, .dx = array(4 * 9), .elems = 7, .all = 9, .scale = 0.25f };
        a.squared = b.squared = squared;
        OPS(sum_loss, a, 1);
        OPS(sum_loss_backward, b, 1);
        compare(WHAT("squared %d", squared));
    }
}

/* ---- elements -------------------------------------------------------------------------------------- */
static void bias_and_gelu(uint64_t n, uint64_t w, int half) {
    ops_args_mask m = { .elems = n * w, .x = factors(n * w, half, 1), .y = array(n * w * 4), .half = half };
    ops_args_bias b = { .elems = n * w, .bias = factors(w, half, 1), .width = w, .half = half, .gelu = 1 };
    ops_args_gelu_slopes g = { .elems = n * w, .x = factors(n * w, half, 1), .half = half, .y = array(n * w * 4) };
    m.mask = mask_of(3, w, 0.3f);
    b.found = found_of(half, over(n * w, 8 * OPS_BLOCK));
    g.found = found_of(half ? 3 : 0, over(n * w, 8 * OPS_BLOCK));
    b.vector = 1, b.x = b.y = factors(n * w, half, 1), b.before = array(n * w * 4),
    g.dy = g.dx = factors(n * w, half, 1);
    OPS(mask, m, over(n * w, 8 * OPS_BLOCK));
    OPS(bias, b, over(n * w, 8 * OPS_BLOCK));
    OPS(gelu_slopes, g, over(n * w, 8 * OPS_BLOCK));
    compare(WHAT("%d rows of %d, half %d", (int)n, (int)w, half));
}

/* One token's row among others begins at any element. */
static void bias_of_a_row(uint64_t w, int half) {
    size_t elem = half ? 2 : 4;
    ops_args_bias a = { .elems = w, .width = w, .bias = factors(w, half, 1), .half = half };
    a.x = a.y = array_at(w * elem, 6 * elem);
    memcpy(a.y, a.bias, w * elem);
    OPS(bias, a, 1);
    compare(WHAT("a row of %d, half %d", (int)w, half));
}

static void llama(uint64_t n, uint64_t w, int half) {
    ops_args_swiglu f = {
        .rows = n, .width = w, .half = half, .x = factors(2 * n * w, half, 1), .y = array(n * w * 4)
    };
    ops_args_swiglu_slopes b = { .rows = n, .width = w, .half = half, .x = f.x, .dx = array(2 * n * w * 4) };
    ops_args_rotate r = { .heads = 5, .pairs = (int32_t)w, .pitch = 2 * w * 7, .rows = n, .time = 3, .first = 4 };
    b.dy = b.y = factors(n * w, half, 1);
    r.x = factors(n * r.pitch, half, 1), r.half = half, r.back = n > 1, r.scale = 1.25f;
    f.found = found_of(half, over(n * over(w, 8), OPS_BLOCK));
    b.found = found_of(half ? 3 : 0, over(n * over(w, 8), OPS_BLOCK));
    f.gelu = b.gelu = n > 1;
    for (uint64_t i = 0; i < w; i++)
        r.turns[i] = 0.1 / (double)(i + 1);
    OPS(swiglu, f, over(n * over(w, 8), OPS_BLOCK));
    OPS(swiglu_slopes, b, over(n * over(w, 8), OPS_BLOCK));
    OPS(rotate, r, over(n * 2 * over(w, 8), OPS_BLOCK));
    compare(WHAT("%d rows of %d, half %d", (int)n, (int)w, half));
}

/* Four heads of queries and two of keys, before as many of values; and the sums that go with them. */
static void head_norms(uint64_t n, uint64_t size, int half) {
    uint64_t pitch = 8 * size, heads = 6 * n;
    ops_args_head_norm f = {
        .rows = n, .pitch = pitch, .heads = 4, .kv_heads = 2, .size = (uint32_t)size, .eps = 1e-6
    };
    f.half = half, f.one_more = n > 1, f.x = factors(n * pitch, half, 1), f.kept = array(heads * size * 4);
    f.query_w = factors(size, half, 1), f.key_w = factors(size, half, 1), f.stats = array(8 * heads);
    ops_args_head_norm_slopes b = f;
    b.x = factors(n * pitch, half, 1);
    ops_args_columns c = { .rows = 4 * n, .half = half, .n_jobs = 1, .blocks = (uint32_t)over(size, OPS_JOB_COLUMNS) };
    c.n_sums = 2 * (uint32_t)size, c.sums = array(over(4 * n, OPS_JOB_ROWS) * c.n_sums * sizeof(double));
    c.jobs[0] = (ops_cuda_columns){ .x = f.kept, .dy = b.x, .stats = f.stats, .width = (uint32_t)size, .group = 4 };
    c.jobs[0].dw = floats(size, 1), c.jobs[0].pitch = pitch, c.jobs[0].x_pitch = 6 * size;
    OPS(head_norm, f, over(heads, OPS_ROWS_PER_BLOCK));
    OPS(columns, c, c.blocks * over(c.rows, OPS_JOB_ROWS));
    OPS(head_norm_slopes, b, over(heads, OPS_ROWS_PER_BLOCK));
    compare(WHAT("%d rows of heads of %d, half %d", (int)n, (int)size, half));
}

static void test_layers__heads_and_caps(void **state) {
    (void)state;
    for (int half = 0; half < 2; half++)
        EACH(uint64_t, size, 5, 16, 72) EACH(uint64_t, n, 1, 90) head_norms(n, size, half);
    ops_args_cap c = { .x = floats(1300, 9), .elems = 1300, .cap = 2 };
    OPS(cap, c, over(1300, OPS_BLOCK * OPS_EACH));
    compare("a cap");
}

static void embed(uint64_t n, uint64_t w, int half) {
    uint64_t rows = 17 * n;
    ops_args_embed e = { .ids = numbers(rows, 11), .table = factors(11 * w, half, 1), .elems = rows * w, .half = half };
    ops_args_sort_ids s = { .ids = e.ids, .order = array(4 * rows), .sorted = array(4 * rows), .rows = (uint32_t)rows };
    ops_args_embed_slopes b = { .order = s.order, .sorted = s.sorted, .dy = factors(rows * w, half, 1), .rows = rows };
    e.scale = b.scale = n > 1 ? 4 : 1;
    e.places = n > 1 && half ? numbers(rows, 17) : NULL;
    e.position = n > 1 ? factors(17 * w, half, 1) : NULL, e.y = array(rows * w * 4), e.mask = mask_of(17, w, 0.2f);
    b.dtable = floats(11 * w, 1), b.dposition = floats(17 * w, 1), b.time = 17, b.width = w, b.half = half;
    b.add_position = n > 1;
    OPS(embed, e, over(rows * w, 8 * OPS_BLOCK));
    OPS(sort_ids, s, over(rows, OPS_SORT_ROWS));
    OPS(embed_slopes, b, over((rows + 17) * (w / ops_columns_of_thread(w)), OPS_BLOCK));
    compare(WHAT("%d rows of %d, half %d", (int)rows, (int)w, half));
}

/* Rows of a frozen matrix. */
static void stored(uint64_t w, uint32_t kind, int half) {
    uint64_t rows = 17, elems = 11 * w, blocks = over(elems, 64), bytes = kind == OPS_STORED_NF4 ? 36 : 68;
    ops_args_stored a = { .ids = numbers(rows, 11), .elems = rows * w, .width = w, .kind = kind, .half = half };
    uint8_t *from = kind >= OPS_STORED_INT8 ? array(blocks * bytes) : factors(elems, kind != OPS_STORED_F32, 1);
    for (uint64_t i = 0; kind >= OPS_STORED_INT8 && i < blocks * bytes; i++)
        from[i] = (uint8_t)(i * 89);
    for (uint64_t i = 0; kind >= OPS_STORED_INT8 && i < blocks; i++)
        memcpy(from + i * bytes, &(float){ 0.5f + (float)i }, 4);
    a.from = from, a.y = array(rows * w * 4), a.vector = ops_is_vector(w);
    ops_args_stored all = a;
    all.ids = NULL, all.elems = elems, all.y = array(elems * 4);
    OPS(stored, a, over(a.elems, 8 * OPS_BLOCK));
    OPS(stored, all, over(elems, 8 * OPS_BLOCK));
    compare(WHAT("rows of %d, kind %d, half %d", (int)w, (int)kind, half));
}

static void test_layers__frozen_matrices(void **state) {
    (void)state;
    for (int half = 0; half < 2; half++)
        EACH(uint64_t, w, 5, 24, 200)
    for (uint32_t kind = OPS_STORED_F32; kind <= OPS_STORED_NF4; kind++)
        stored(w, kind, half);
}

static void test_layers__elements_and_both_ends(void **state) {
    (void)state;
    for (int half = 0; half < 2; half++)
        EACH(uint64_t, w, 5, 8, 24) EACH(uint64_t, n, 1, 17) {
            bias_and_gelu(n, w, half);
            llama(n, w, half);
            embed(n, w, half);
        }
}

static void test_layers__bias_of_a_row_that_is_not_aligned(void **state) {
    (void)state;
    for (int half = 0; half < 2; half++)
        EACH(uint64_t, w, 18, 24) bias_of_a_row(w, half);
}

static void elements(uint64_t n) {
    const uint64_t blocks = over(n, OPS_BLOCK * OPS_EACH);
    ops_args_narrow narrow = { .x = floats(n, 9), .y = array(2 * n), .elems = n };
    ops_args_widen widen = { .x = factors(n, 1, 9), .y = array(4 * n), .elems = n };
    ops_args_add add = { .x = narrow.x, .y = floats(n, 1), .elems = n };
    OPS(narrow, narrow, blocks);
    OPS(widen, widen, blocks);
    OPS(add, add, blocks);
    compare(WHAT("%d elements", (int)n));
    ops_args_relu_backward r = { .y = floats(n, 1), .dy = floats(n, 1), .dx = array(4 * n), .elems = n, .scale = 0.5f };
    ops_args_bias_relu b = { .b = n > 3 ? floats(3, 1) : NULL, .y = floats(n, 1), .elems = n, .width = 3 };
    ops_args_dropout d = { .x = floats(3 * n, 1), .samples = 3, .elems = n, .seed = 9, .step = 2, .first_sample = 4 };
    b.relu = n > 1, d.layer = 6, d.rate = 0.3f;
    OPS(relu_backward, r, blocks);
    OPS(bias_relu, b, blocks);
    OPS(dropout, d, over(3 * over(n, 4), OPS_BLOCK));
    compare(WHAT("%d elements", (int)n));
}

static void test_layers__single_elements(void **state) {
    (void)state;
    EACH(uint64_t, n, 1, 4, 1021, 2500) elements(n);
}

static void test_layers__indices(void **state) {
    const uint64_t n = 5 * 307;
    ops_args_ids i = { .text = array(5 * 400), .out = array(4 * n), .elems = n, .time = 307, .stride = 400 };
    ops_args_tokens t = { .tokens = numbers(5 * 400, 50257), .elems = n, .time = 307, .stride = 400 };
    (void)state;
    for (int k = 0; k < 5 * 400; k++)
        ((uint8_t *)(uintptr_t)i.text)[k] = (uint8_t)(k * 89);
    t.out = array(4 * n);
    OPS(ids, i, over(n, OPS_BLOCK * OPS_EACH));
    OPS(tokens, t, over(n, OPS_BLOCK * OPS_EACH));
    ops_args_places p = { .tokens = t.tokens, .out = array(4 * n), .elems = n, .time = 307, .stride = 400 };
    p.begins = 1 << 6;
    OPS(places, p, over(n, OPS_BLOCK * OPS_EACH));
    compare("5 samples of 307");
}

/* ---- images ---------------------------------------------------------------------------------------- */
static void pools(int batch, int height, int width, int channels) {
    uint64_t in = (uint64_t)(batch * height * width * channels), across = (uint64_t)(height * width);
    uint64_t out = (uint64_t)(batch * (height / 2) * (width / 2) * channels);
    ops_args_maxpool f = { .x = floats(in, 1), .y = array(4 * out), .which = array(out), .batch = batch };
    ops_args_maxpool_backward b = { .y = f.y, .dy = floats(out, 1), .which = f.which, .dx = array(4 * in) };
    ops_args_avgpool_backward a = { .dy = floats((uint64_t)(batch * channels), 1), .dx = array(4 * in), .elems = in };
    f.height = b.height = height, f.width = b.width = width, f.channels = b.channels = channels;
    b.batch = batch, b.scale = 0.5f, a.places = across, a.channels = (uint64_t)channels;
    OPS(maxpool, f, over(out, OPS_BLOCK * OPS_EACH));
    OPS(maxpool_backward, b, over(in, OPS_BLOCK * OPS_EACH));
    OPS(avgpool_backward, a, over(in, OPS_BLOCK * OPS_EACH));
    compare(WHAT("%d images of %d by %d, %d channels", batch, height, width, channels));
}

static void test_layers__pools(void **state) {
    (void)state;
    pools(3, 8, 6, 5);
    pools(2, 7, 5, 33);
}

static void batchnorm(uint64_t rows, uint64_t channels, int train) {
    const uint64_t n = rows * channels, sums = over(rows, OPS_CHUNK) * 2 * channels;
    ops_args_batchnorm_sums s = { .x = floats(n, 2), .sums = array(8 * sums), .rows = rows, .channels = channels };
    ops_args_batchnorm_stats t = { .sums = train ? s.sums : NULL, .rows = rows, .channels = channels, .update = train };
    ops_args_batchnorm f = { .x = s.x, .w = floats(channels, 1), .b = floats(channels, 1), .y = array(4 * n) };
    t.running_mean = floats(channels, 1), t.running_var = floats(channels, 1), t.stats = array(8 * channels);
    for (uint64_t c = 0; c < channels; c++)
        t.running_var[c] = fabsf(t.running_var[c]) + 0.1f;
    f.stats = t.stats, f.elems = n, f.channels = channels, f.relu = train;
    OPS(batchnorm_sums, s, over(over(rows, OPS_CHUNK) * channels, OPS_BLOCK));
    OPS(batchnorm_stats, t, over(channels, OPS_BLOCK));
    OPS(batchnorm, f, over(n, OPS_BLOCK * OPS_EACH));
    compare(WHAT("%d rows of %d channels", (int)rows, (int)channels));
}

static void batchnorm_back(uint64_t rows, uint64_t channels, int relu) {
    const uint64_t n = rows * channels, sums = over(rows, OPS_CHUNK) * 2 * channels;
    ops_args_batchnorm_slopes s = { .x = floats(n, 2), .y = floats(n, 1), .dy = floats(n, 1), .relu = relu };
    ops_args_batchnorm_means m = { .dw = relu ? floats(channels, 1) : NULL, .db = floats(channels, 1), .rows = rows };
    ops_args_batchnorm_backward b = { .x = s.x, .y = s.y, .dy = s.dy, .w = floats(channels, 1), .dx = array(4 * n) };
    s.sums = array(8 * sums), m.sums = s.sums, m.means = array(8 * channels), b.means = m.means;
    s.stats = b.stats = floats(2 * channels, 1), s.rows = rows, s.channels = m.channels = b.channels = channels;
    b.elems = n, b.relu = relu;
    OPS(batchnorm_slopes, s, over(over(rows, OPS_CHUNK) * channels, OPS_BLOCK));
    OPS(batchnorm_means, m, over(channels, OPS_BLOCK));
    OPS(batchnorm_backward, b, over(n, OPS_BLOCK * OPS_EACH));
    compare(WHAT("%d rows of %d channels", (int)rows, (int)channels));
}

static void test_layers__batchnorm(void **state) {
    (void)state;
    EACH(uint64_t, rows, 9, 513) for (int how = 0; how < 2; how++) {
        batchnorm(rows, 5, how);
        batchnorm_back(rows, 5, how);
    }
}

static void windows(int32_t kernel, int32_t pad, int half) {
    ops_args_windows a = { .height = 7, .width = 5, .channels = 3, .kernel = kernel, .pad = pad, .first_place = 4 };
    a.out_height = 7 + 2 * pad - kernel + 1, a.out_width = 5 + 2 * pad - kernel + 1;
    a.elems = ((uint64_t)(2 * a.out_height * a.out_width) - a.first_place) * (uint64_t)(kernel * kernel * 3);
    a.x = floats(2 * 7 * 5 * 3, 1), a.half = half ? array(2 * a.elems) : NULL, a.out = array(4 * a.elems);
    OPS(windows, a, over(a.elems, OPS_BLOCK * OPS_EACH));
    compare(WHAT("kernel %d, pad %d, half %d", kernel, pad, half));
}

static void weights(int32_t turned, int halves) {
    const uint64_t n = 5 * 7 * 9;
    ops_args_turn_weights t = { .w = factors(n, halves, 1), .out = array(4 * n), .elems = n, .channels = 5 };
    ops_args_add_weights a = { .d = floats(n, 1), .dw = floats(n, 1), .elems = n, .channels = 5, .outputs = 7 };
    t.outputs = 7, t.kernel = a.kernel = 3, t.turned = turned, t.halves = halves, a.out_first = halves;
    OPS(turn_weights, t, over(n, OPS_BLOCK * OPS_EACH));
    OPS(add_weights, a, over(n, OPS_BLOCK * OPS_EACH));
    compare(WHAT("turned %d, halves %d", turned, halves));
}

static void test_layers__convolutions(void **state) {
    (void)state;
    for (int half = 0; half < 2; half++) {
        windows(3, 1, half);
        windows(2, 0, half);
        EACH(int32_t, turned, OPS_TURN_IN_OUT, OPS_TURN_ROUND, OPS_TURN_OUT_FIRST) weights(turned, half);
    }
}

/* ---- attention by products --------------------------------------------------------------------------- */
static void test_layers__attention_between_products(void **state) {
    const uint64_t heads = 2, rows = 19, time = 31, n = heads * rows * time;
    (void)state;
    for (int half = 0; half < 2; half++)
        EACH(uint64_t, first, 0, 5, 6) { /* 6: documents of seven */
            ops_args_attention_softmax f = { .heads = heads, .rows = rows, .first = first, .columns = first + rows };
            ops_args_attention_slopes b = { .heads = heads, .rows = rows, .first = first, .columns = first + rows };
            f.pitch = b.pitch = f.time = b.time = time, b.size = 13, b.half = half, b.scale = 0.3f;
            f.scores = floats(n, 5), f.lse = floats(heads * time, 1), f.half = half ? array(2 * n) : NULL;
            b.scores = floats(n, 5), b.dp = floats(n, 1), b.lse = floats(heads * time, 9);
            b.half_p = half ? array(2 * n) : NULL, b.half_ds = half ? array(2 * n) : NULL;
            b.y = factors(time * heads * 13, half, 1), b.dy = factors(time * heads * 13, half, 1);
            int32_t *places = first == 6 ? numbers(time, 7) : NULL;
            for (uint64_t i = 0; places && i < time; i++)
                places[i] = (int32_t)(i % 7);
            f.places = b.places = places, f.window = b.window = first == 6 ? 4 : 0;
            OPS(attention_softmax, f, over(heads * rows, OPS_ROWS_PER_BLOCK));
            OPS(attention_slopes, b, over(heads * rows, OPS_ROWS_PER_BLOCK));
            compare(WHAT("from row %d, half %d", (int)first, half));
        }
}

/* ---- factors in fp8 ---------------------------------------------------------------------------------- */
enum { AS_IT_IS = 1, TURNED = 2 };
static ops_cuda_fp8 fp8_of(const uint64_t *rows, uint64_t width, int orders, int e5m2, float size) {
    ops_cuda_fp8 f = { .width = width, .e5m2 = e5m2, .inverse = array(4) };
    for (int p = 0; p < OPS_FP8_PIECES; p++) {
        f.from[p] = rows[p] ? factors(rows[p] * width, 1, size) : NULL;
        f.rows[p] = rows[p], f.all += rows[p];
        f.blocks += (uint32_t)(over(rows[p], OPS_FP8_TILE) * over(width, OPS_FP8_TILE));
    }
    f.n_parts = f.seekers = (uint32_t)over(f.all * width, 8 * OPS_BLOCK), f.parts = array(f.n_parts * 4);
    f.to = orders & AS_IT_IS ? array(f.all * width) : NULL;
    f.turned = orders & TURNED ? array(f.all * width) : NULL;
    return f;
}
static void test_layers__codes_of_fp8(void **state) {
    static const uint64_t one[] = { 48, 0, 0 }, some[] = { 272, 16, 144 };
    (void)state;
    for (int orders = AS_IT_IS; orders <= (AS_IT_IS | TURNED); orders++)
        for (int e5m2 = 0; e5m2 < 2; e5m2++)
            for (int alone = 0; alone < 2; alone++) {
                ops_args_fp8_most a = { { fp8_of(some, 144, orders, e5m2, 1) } };
                if (!alone)
                    a.of[1] = fp8_of(one, 400, orders ^ AS_IT_IS ? orders ^ AS_IT_IS : TURNED, !e5m2, 1e-3f);
                OPS(fp8_most, a, a.of[0].seekers + a.of[1].seekers);
                OPS(fp8_codes, a, a.of[0].blocks + a.of[1].blocks);
                compare(WHAT("orders %d, e5m2 %d, alone %d", orders, e5m2, alone));
            }
}

/* What the writer's blocks have found: few numbers, and more of them than a block of codes reads. */
static void test_layers__codes_of_fp8_with_what_was_found(void **state) {
    static const uint64_t one[] = { 48, 0, 0 }, some[] = { 272, 16, 144 };
    (void)state;
    EACH(uint32_t, n, 1, 300, OPS_FP8_FEW + 700) {
        ops_args_fp8_most a = { { fp8_of(one, 400, TURNED, 1, 1), fp8_of(some, 144, AS_IT_IS, 0, 1) } };
        uint32_t *found = array(4 * n);
        for (uint32_t i = 0; i < n; i++)
            found[i] = (127u << 23) + i * 7919 % n;
        a.of[0].n_found = n, a.of[0].found = found, a.of[0].seekers = a.of[0].n_parts = (uint32_t)over(n, OPS_BLOCK);
        a.of[0].parts = array(4 * a.of[0].n_parts);
        if (n <= OPS_FP8_FEW)
            a.of[0].parts = found, a.of[0].n_parts = n, a.of[0].seekers = 0;
        OPS(fp8_most, a, a.of[0].seekers + a.of[1].seekers);
        OPS(fp8_codes, a, a.of[0].blocks + a.of[1].blocks);
        compare(WHAT("%d numbers", (int)n));
    }
}

static void test_layers__every_kernel_has_a_case(void **state) {
    (void)state;
    expect_all_launched(emulated_models, OPS_KERNEL_NAME(attend_)); /* test_attend.c */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers__norms_in_every_width),
        cmocka_unit_test(test_layers__columns_of_several_arrays),
        cmocka_unit_test(test_layers__columns_beside_a_norm),
        cmocka_unit_test(test_layers__column_sums),
        cmocka_unit_test(test_layers__losses_of_short_and_long_rows),
        cmocka_unit_test(test_layers__losses_of_rows_with_minus_infinity),
        cmocka_unit_test(test_layers__cross_entropy_and_its_sum),
        cmocka_unit_test(test_layers__losses_of_single_elements),
        cmocka_unit_test(test_layers__frozen_matrices),
        cmocka_unit_test(test_layers__elements_and_both_ends),
        cmocka_unit_test(test_layers__heads_and_caps),
        cmocka_unit_test(test_layers__bias_of_a_row_that_is_not_aligned),
        cmocka_unit_test(test_layers__single_elements),
        cmocka_unit_test(test_layers__indices),
        cmocka_unit_test(test_layers__pools),
        cmocka_unit_test(test_layers__batchnorm),
        cmocka_unit_test(test_layers__convolutions),
        cmocka_unit_test(test_layers__attention_between_products),
        cmocka_unit_test(test_layers__codes_of_fp8),
        cmocka_unit_test(test_layers__codes_of_fp8_with_what_was_found),
        cmocka_unit_test(test_layers__every_kernel_has_a_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
