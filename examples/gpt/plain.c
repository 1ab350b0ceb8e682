/* SPDX-License-Identifier: BSD-3-Clause */
/* A small GPT on bytes: hand-written forward and backward, AdamW, evaluation, generation and checkpoints.
 *
 *   cc -O3 -ffp-contract=off plain.c -lm -o plain
 *   ./plain --steps 200 --data input.txt --save model.bin
 *
 * All parameters lie in one block of memory. Tensors that every layer has are stacked: the attention weights of all
 * layers are one array of [layers, width, 3 * width]. The head reads the token embedding (tied weights). Gradients
 * and the two moments of AdamW have the same shapes. Every random number depends on the seed and on what it is for,
 * never on what was drawn before, so a run repeats to the last bit. */
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VOCAB 256
#define EVAL_BATCHES 4

/* ---- settings ---------------------------------------------------------------------------------- */
struct options {
    int steps, stop, eval_every, generate, batch;
    int layers, heads, width, context;
    uint64_t seed;
    double lr, weight_decay;
    const char *data, *save, *load;
};

static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "gpt: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

static int whole(const char *name, const char *text, int least, int most) {
    char *end;
    long value = text ? strtol(text, &end, 10) : 0;
    if (!text || end == text || *end || value < least || value > most)
        die("%s: expected a number from %d to %d, found '%s'", name, least, most, text ? text : "nothing");
    return (int)value;
}

static double real(const char *name, const char *text) {
    char *end;
    double value = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end || !(value >= 0 && value <= 1))
        die("%s: expected a number from 0 to 1, found '%s'", name, text ? text : "nothing");
    return value;
}

static struct options read_options(int argc, char **argv) {
    struct options o = { .steps = 100, .eval_every = 50, .generate = 64, .batch = 8, .layers = 4, .heads = 4 };
    o.width = 64, o.context = 64, o.seed = 1, o.lr = 1e-3, o.weight_decay = 0.1;
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--steps"))
            o.steps = whole(name, value, 0, 100000000);
        else if (!strcmp(name, "--stop"))
            o.stop = whole(name, value, 1, 100000000);
        else if (!strcmp(name, "--eval-every"))
            o.eval_every = whole(name, value, 0, 100000000);
        else if (!strcmp(name, "--generate"))
            o.generate = whole(name, value, 0, 1000000);
        else if (!strcmp(name, "--batch"))
            o.batch = whole(name, value, 1, 4096);
        else if (!strcmp(name, "--layers"))
            o.layers = whole(name, value, 1, 256);
        else if (!strcmp(name, "--heads"))
            o.heads = whole(name, value, 1, 256);
        else if (!strcmp(name, "--width"))
            o.width = whole(name, value, 1, 16384);
        else if (!strcmp(name, "--context"))
            o.context = whole(name, value, 1, 8192);
        else if (!strcmp(name, "--seed"))
            o.seed = (uint64_t)whole(name, value, 0, 2147483647);
        else if (!strcmp(name, "--lr"))
            o.lr = real(name, value);
        else if (!strcmp(name, "--weight-decay"))
            o.weight_decay = real(name, value);
        else if (!strcmp(name, "--data") && value)
            o.data = value;
        else if (!strcmp(name, "--save") && value)
            o.save = value;
        else if (!strcmp(name, "--load") && value)
            o.load = value;
        else
            die("'%s' is unknown or has no value: --steps --stop --eval-every --generate --batch --layers --heads "
                "--width "
                "--context --seed --lr --weight-decay --data --save --load",
                name);
    }
    return o;
}

/* ---- random numbers ---------------------------------------------------------------------------- */
enum { FOR_WEIGHTS = 1, FOR_TRAINING, FOR_EVALUATION, FOR_TEXT };

static uint64_t scramble(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The index-th number of one stream. */
static uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
    return scramble(scramble(scramble(seed) ^ stream) ^ index);
}

static float uniform(uint64_t bits) { /* in (0, 1) */
    return ((float)(bits >> 41) + 0.5f) * (1.0f / 8388608.0f);
}

static float normal(uint64_t bits) {
    float radius = sqrtf(-2.0f * logf(uniform(bits)));
    return radius * cosf(6.2831853f * uniform(scramble(bits)));
}

/* ---- text -------------------------------------------------------------------------------------- */
static const char embedded_text[] =
    "The keeper of the lighthouse wrote down the weather every evening. On quiet days he wrote one line: wind from "
    "the west, sea calm, two boats went out and two came home. On rough days he wrote more, because there was nothing "
    "else to do. The waves came over the wall and the lamp had to be wiped every hour. A ship went by in the dark and "
    "he could see its lights go up and down, up and down, until they were gone behind the rain.\n"
    "In the morning he went down the stairs, all two hundred of them, and looked at what the sea had left on the "
    "stones. There was rope, and wood, and once a chair with four good legs. He took the chair up the stairs, all two "
    "hundred of them, and sat on it while he wrote: wind from the north, sea rough, no boats went out.\n"
    "The children of the village came to see the lamp. He told them how it works: a small flame, and around it a "
    "wall of glass that bends every ray of light the same way. The flame is no larger than a hand. The glass makes it "
    "a beam that ships can see from thirty miles away. The children asked what he does when the flame goes out. He "
    "said that it had never gone out, and that this was the whole of his work.\n"
    "When he was old the lamp was made electric, and a clock turned it on and off. He went up the stairs all the same "
    "and wrote down the weather every evening. On quiet days he wrote one line: wind from the west, sea calm, two "
    "boats went out and two came home.\n";

struct text {
    const unsigned char *bytes;
    unsigned char *memory; /* of what was read from a file */
    size_t train, total;   /* the last tenth is for evaluation */
};

static struct text read_text(const char *path, int context) {
    struct text text = { .bytes = (const unsigned char *)embedded_text, .total = sizeof embedded_text - 1 };
    if (path) {
        FILE *file = fopen(path, "rb");
        if (!file || fseek(file, 0, SEEK_END) || ftell(file) < 0)
            die("%s: cannot be read", path);
        text.total = (size_t)ftell(file);
        text.bytes = text.memory = malloc(text.total + 1);
        rewind(file);
        if (!text.memory || fread(text.memory, 1, text.total, file) != text.total)
            die("%s: cannot be read", path);
        fclose(file);
    }
    text.train = text.total - text.total / 10;
    if (text.total / 10 < (size_t)context + 2)
        die("%s: %zu bytes are too few for a context of %d: expected at least %d", path ? path : "embedded text",
            text.total, context, 10 * (context + 2));
    return text;
}

/* ---- the model --------------------------------------------------------------------------------- */
enum {
    TOKENS,
    POSITIONS,
    LN1_W, /* from here to PROJ_B: every layer has one */
    LN1_B,
    QKV_W,
    QKV_B,
    OUT_W,
    OUT_B,
    LN2_W,
    LN2_B,
    FC_W,
    FC_B,
    PROJ_W,
    PROJ_B,
    LNF_W,
    LNF_B,
    N_TENSORS
};

struct tensor {
    const char *name;
    int64_t stack; /* layers, or 0 */
    int64_t shape[2];
    int ndim, decays;
    size_t elems;  /* of one layer's slice */
    size_t offset; /* in the block */
};

/* What a layer's forward leaves for its backward; N rows are the tokens of the batch. */
struct layer_acts {
    float *in, *ln1, *mean1, *rstd1; /* [N, C], [N, C], [N], [N] */
    float *qkv, *probs, *heads;      /* [N, 3C], [batch, heads, T, T], [N, C] */
    float *mid, *ln2, *mean2, *rstd2;
    float *fc, *gelu; /* [N, 4C] */
};

struct gpt {
    struct options o;
    struct tensor tensor[N_TENSORS];
    size_t n_params;
    int step; /* done */
    float *params, *moment1, *moment2, *grads;
    float *memory; /* of all activations below */
    struct layer_acts *acts;
    float *stream, *lnf, *mean, *rstd, *logits; /* the residual stream after the last layer, and the head's */
    float *d_stream, *d_narrow, *d_wide;        /* gradients on their way down: [N, C], [N, C], [N, 4C] */
    int *tokens, *targets;
};

static void describe(struct gpt *g) {
    const int64_t L = g->o.layers, C = g->o.width;
    const struct tensor table[N_TENSORS] = {
        [TOKENS] = { .name = "embed.tokens", .shape = { VOCAB, C }, .ndim = 2, .decays = 1 },
        [POSITIONS] = { .name = "embed.positions", .shape = { g->o.context, C }, .ndim = 2, .decays = 1 },
        [LN1_W] = { .name = "h.*.ln1.weight", .stack = L, .shape = { C }, .ndim = 1 },
        [LN1_B] = { .name = "h.*.ln1.bias", .stack = L, .shape = { C }, .ndim = 1 },
        [QKV_W] = { .name = "h.*.qkv.weight", .stack = L, .shape = { C, 3 * C }, .ndim = 2, .decays = 1 },
        [QKV_B] = { .name = "h.*.qkv.bias", .stack = L, .shape = { 3 * C }, .ndim = 1 },
        [OUT_W] = { .name = "h.*.out.weight", .stack = L, .shape = { C, C }, .ndim = 2, .decays = 1 },
        [OUT_B] = { .name = "h.*.out.bias", .stack = L, .shape = { C }, .ndim = 1 },
        [LN2_W] = { .name = "h.*.ln2.weight", .stack = L, .shape = { C }, .ndim = 1 },
        [LN2_B] = { .name = "h.*.ln2.bias", .stack = L, .shape = { C }, .ndim = 1 },
        [FC_W] = { .name = "h.*.fc.weight", .stack = L, .shape = { C, 4 * C }, .ndim = 2, .decays = 1 },
        [FC_B] = { .name = "h.*.fc.bias", .stack = L, .shape = { 4 * C }, .ndim = 1 },
        [PROJ_W] = { .name = "h.*.proj.weight", .stack = L, .shape = { 4 * C, C }, .ndim = 2, .decays = 1 },
        [PROJ_B] = { .name = "h.*.proj.bias", .stack = L, .shape = { C }, .ndim = 1 },
        [LNF_W] = { .name = "head.ln.weight", .shape = { C }, .ndim = 1 },
        [LNF_B] = { .name = "head.ln.bias", .shape = { C }, .ndim = 1 },
    };
    memcpy(g->tensor, table, sizeof table);
    for (int t = 0; t < N_TENSORS; t++) {
        struct tensor *x = &g->tensor[t];
        x->elems = (size_t)(x->shape[0] * (x->ndim > 1 ? x->shape[1] : 1));
        x->offset = g->n_params;
        g->n_params += x->elems * (size_t)(x->stack ? x->stack : 1);
    }
}

static void allocate_params(struct gpt *g) {
    g->params = calloc(4 * g->n_params, sizeof(float));
    if (!g->params)
        die("no memory for %zu parameters", g->n_params);
    g->moment1 = g->params + g->n_params;
    g->moment2 = g->moment1 + g->n_params;
    g->grads = g->moment2 + g->n_params;
}

/* Where each tensor, or its slice of layer l, lies in a block. */
static void pointers(const struct gpt *g, float *block, int l, float **p) {
    for (int t = 0; t < N_TENSORS; t++)
        p[t] = block + g->tensor[t].offset + (g->tensor[t].stack ? (size_t)l * g->tensor[t].elems : 0);
}

static float *take(float **at, size_t n) {
    float *taken = *at;
    *at += n;
    return taken;
}

static void allocate_acts(struct gpt *g) {
    const size_t C = (size_t)g->o.width, T = (size_t)g->o.context, B = (size_t)g->o.batch, N = B * T;
    const size_t L = (size_t)g->o.layers, probs = N * T * (size_t)g->o.heads;
    const size_t n = L * (N * (16 * C + 4) + probs) + N * (8 * C + 2 + VOCAB);
    g->acts = calloc(L, sizeof *g->acts);
    g->tokens = calloc(2 * N, sizeof *g->tokens);
    g->memory = calloc(n, sizeof(float));
    if (!g->acts || !g->tokens || !g->memory)
        die("no memory for %zu tokens", N);
    float *at = g->memory;
    g->targets = g->tokens + N;
    for (size_t l = 0; l < L; l++) {
        struct layer_acts *a = &g->acts[l];
        a->in = take(&at, N * C), a->ln1 = take(&at, N * C), a->mean1 = take(&at, N), a->rstd1 = take(&at, N);
        a->qkv = take(&at, N * 3 * C), a->probs = take(&at, probs), a->heads = take(&at, N * C);
        a->mid = take(&at, N * C), a->ln2 = take(&at, N * C), a->mean2 = take(&at, N), a->rstd2 = take(&at, N);
        a->fc = take(&at, N * 4 * C), a->gelu = take(&at, N * 4 * C);
    }
    g->stream = take(&at, N * C), g->lnf = take(&at, N * C), g->mean = take(&at, N), g->rstd = take(&at, N);
    g->logits = take(&at, N * VOCAB);
    g->d_stream = take(&at, N * C), g->d_narrow = take(&at, N * C), g->d_wide = take(&at, N * 4 * C);
}

/* Starting values of elements first … first + n - 1 of tensor t, counted over all layers. */
static void initial_values(const struct gpt *g, int t, size_t first, size_t n, float *out) {
    const float scale = t == OUT_W || t == PROJ_W ? 0.02f / sqrtf(2.0f * (float)g->o.layers) : 0.02f;
    for (size_t i = 0; i < n; i++)
        if (g->tensor[t].ndim > 1)
            out[i] = scale * normal(random_bits(g->o.seed, (uint64_t)(FOR_WEIGHTS + 16 * t), first + i));
        else
            out[i] = t == LN1_W || t == LN2_W || t == LNF_W ? 1.0f : 0.0f;
}

/* ---- checkpoints: a header, then all parameters in the block's order, then both moments ---------- */
struct header {
    char magic[8];
    int32_t layers, heads, width, context, step, reserved;
};

static struct header header_of(const struct gpt *g) {
    return (struct header){ "GPTBYTE2", g->o.layers, g->o.heads, g->o.width, g->o.context, g->step, 0 };
}

/* A run goes on where the checkpoint's has stopped: data and learning rate are functions of the step. */
static void take_header(struct gpt *g, const struct header *h) {
    struct header mine = header_of(g);
    mine.step = h->step;
    if (h->step < 0 || memcmp(h, &mine, sizeof mine) != 0)
        die("%s: not a checkpoint of this program with these sizes", g->o.load);
    g->step = h->step;
}

static void initialize(struct gpt *g) {
    for (int t = 0; t < N_TENSORS; t++) {
        const struct tensor *x = &g->tensor[t];
        initial_values(g, t, 0, x->elems * (size_t)(x->stack ? x->stack : 1), g->params + x->offset);
    }
}

static void load(struct gpt *g) {
    struct header h;
    FILE *file = fopen(g->o.load, "rb");
    if (!file || fread(&h, sizeof h, 1, file) != 1 ||
        fread(g->params, sizeof(float), 3 * g->n_params, file) != 3 * g->n_params || fclose(file))
        die("%s: cannot be read, or is shorter than its header says", g->o.load);
    take_header(g, &h);
}

static void save(struct gpt *g, const char *path) {
    struct header h = header_of(g);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(&h, sizeof h, 1, file) != 1 ||
        fwrite(g->params, sizeof(float), 3 * g->n_params, file) != 3 * g->n_params || fflush(file) ||
        fsync(fileno(file)) || fclose(file))
        die("%s: cannot be written", path);
    printf("saved %zu parameters in %s\n", g->n_params, path);
}

/* ---- kernels: forward writes, backward adds to the gradients of parameters ---------------------- */

/* Eight partial sums, so that the compiler can keep them in a vector register. */
static float dot(const float *a, const float *b, int n) {
    float part[8] = { 0 }, sum = 0;
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++)
            part[k] += a[i + k] * b[i + k];
    for (int k = 0; k < 8; k++)
        sum += part[k];
    for (; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void add_scaled(float *restrict out, const float *restrict in, float scale, int n) {
    for (int i = 0; i < n; i++)
        out[i] += scale * in[i];
}

/* out [rows, n_out] = in [rows, n_in] · w [n_in, n_out] + b */
static void matmul_forward(float *out, const float *in, const float *w, const float *b, int rows, int n_in, int n_out) {
    for (int r = 0; r < rows; r++) {
        float *y = out + (size_t)r * n_out;
        memcpy(y, b, (size_t)n_out * sizeof *y);
        for (int i = 0; i < n_in; i++)
            add_scaled(y, w + (size_t)i * n_out, in[(size_t)r * n_in + i], n_out);
    }
}

static void matmul_backward(float *d_in, float *d_w, float *d_b, const float *d_out, const float *in, const float *w,
                            int rows, int n_in, int n_out) {
    for (int r = 0; r < rows; r++) {
        const float *dy = d_out + (size_t)r * n_out;
        for (int i = 0; i < n_in; i++) {
            d_in[(size_t)r * n_in + i] = dot(dy, w + (size_t)i * n_out, n_out);
            add_scaled(d_w + (size_t)i * n_out, dy, in[(size_t)r * n_in + i], n_out);
        }
        add_scaled(d_b, dy, 1.0f, n_out);
    }
}

static void layernorm_forward(float *out, float *mean, float *rstd, const float *in, const float *w, const float *b,
                              int rows, int n) {
    for (int r = 0; r < rows; r++) {
        const float *x = in + (size_t)r * n;
        float sum = 0, squares = 0;
        for (int i = 0; i < n; i++)
            sum += x[i];
        mean[r] = sum / (float)n;
        for (int i = 0; i < n; i++)
            squares += (x[i] - mean[r]) * (x[i] - mean[r]);
        rstd[r] = 1.0f / sqrtf(squares / (float)n + 1e-5f);
        for (int i = 0; i < n; i++)
            out[(size_t)r * n + i] = (x[i] - mean[r]) * rstd[r] * w[i] + b[i];
    }
}

/* Adds to d_in: the residual stream's gradient arrives there from two sides. */
static void layernorm_backward(float *d_in, float *d_w, float *d_b, const float *d_out, const float *in,
                               const float *mean, const float *rstd, const float *w, int rows, int n) {
    for (int r = 0; r < rows; r++) {
        const float *x = in + (size_t)r * n, *dy = d_out + (size_t)r * n;
        float sum = 0, along = 0;
        for (int i = 0; i < n; i++) {
            float unit = (x[i] - mean[r]) * rstd[r];
            sum += dy[i] * w[i];
            along += dy[i] * w[i] * unit;
            d_w[i] += dy[i] * unit;
            d_b[i] += dy[i];
        }
        sum /= (float)n, along /= (float)n;
        for (int i = 0; i < n; i++)
            d_in[(size_t)r * n + i] += rstd[r] * (dy[i] * w[i] - sum - (x[i] - mean[r]) * rstd[r] * along);
    }
}

static void gelu_forward(float *out, const float *in, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float x = in[i];
        out[i] = 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    }
}

/* In place: d becomes the gradient of the input. */
static void gelu_backward(float *d, const float *in, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float x = in[i], t = tanhf(0.79788456f * (x + 0.044715f * x * x * x));
        float slope = 0.79788456f * (1.0f + 3.0f * 0.044715f * x * x);
        d[i] *= 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope;
    }
}

/* In place. */
static void softmax(float *x, int n) {
    float largest = x[0], sum = 0;
    for (int i = 1; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (int i = 0; i < n; i++) {
        x[i] = expf(x[i] - largest);
        sum += x[i];
    }
    for (int i = 0; i < n; i++)
        x[i] /= sum;
}

/* Causal self-attention of one head over one sequence of T rows; q, k and v lie side by side in a row of 3C. */
static void attention_forward(float *out, float *probs, const float *qkv, int T, int C, int size) {
    const float scale = 1.0f / sqrtf((float)size);
    for (int t = 0; t < T; t++) {
        const float *q = qkv + (size_t)t * 3 * C;
        float *p = probs + (size_t)t * T, *y = out + (size_t)t * C;
        for (int s = 0; s <= t; s++)
            p[s] = scale * dot(q, qkv + (size_t)s * 3 * C + C, size);
        softmax(p, t + 1);
        memset(y, 0, (size_t)size * sizeof *y);
        for (int s = 0; s <= t; s++)
            add_scaled(y, qkv + (size_t)s * 3 * C + 2 * C, p[s], size);
    }
}

/* d_qkv is zero before the first head of a row. */
static void attention_backward(float *d_qkv, const float *d_out, const float *probs, const float *qkv, int T, int C,
                               int size) {
    const float scale = 1.0f / sqrtf((float)size);
    for (int t = 0; t < T; t++) {
        const float *q = qkv + (size_t)t * 3 * C, *p = probs + (size_t)t * T, *dy = d_out + (size_t)t * C;
        float *dq = d_qkv + (size_t)t * 3 * C, along = 0;
        for (int s = 0; s <= t; s++)
            along += p[s] * dot(dy, qkv + (size_t)s * 3 * C + 2 * C, size);
        for (int s = 0; s <= t; s++) {
            const float *k = qkv + (size_t)s * 3 * C + C, *v = k + C;
            float *dk = d_qkv + (size_t)s * 3 * C + C, *dv = dk + C;
            float d_score = scale * p[s] * (dot(dy, v, size) - along);
            add_scaled(dq, k, d_score, size);
            add_scaled(dk, q, d_score, size);
            add_scaled(dv, dy, p[s], size);
        }
    }
}

/* ---- the parts of the model -------------------------------------------------------------------- */
static void embed_forward(float *out, const int *tokens, float *const *w, int B, int T, int C) {
    for (int r = 0; r < B * T; r++) {
        const float *token = w[TOKENS] + (size_t)tokens[r] * C, *position = w[POSITIONS] + (size_t)(r % T) * C;
        for (int i = 0; i < C; i++)
            out[(size_t)r * C + i] = token[i] + position[i];
    }
}

static void embed_backward(float *const *d, const float *d_out, const int *tokens, int B, int T, int C) {
    for (int r = 0; r < B * T; r++) {
        add_scaled(d[TOKENS] + (size_t)tokens[r] * C, d_out + (size_t)r * C, 1.0f, C);
        add_scaled(d[POSITIONS] + (size_t)(r % T) * C, d_out + (size_t)r * C, 1.0f, C);
    }
}

static void layer_forward(float *out, const struct layer_acts *a, float *const *w, int B, int T, int C, int heads) {
    const int N = B * T, size = C / heads;
    layernorm_forward(a->ln1, a->mean1, a->rstd1, a->in, w[LN1_W], w[LN1_B], N, C);
    matmul_forward(a->qkv, a->ln1, w[QKV_W], w[QKV_B], N, C, 3 * C);
    for (int i = 0; i < B * heads; i++) {
        const size_t row = (size_t)(i / heads) * T, column = (size_t)(i % heads) * size;
        attention_forward(a->heads + row * C + column, a->probs + (size_t)i * T * T, a->qkv + row * 3 * C + column, T,
                          C, size);
    }
    matmul_forward(a->mid, a->heads, w[OUT_W], w[OUT_B], N, C, C);
    add_scaled(a->mid, a->in, 1.0f, N * C);
    layernorm_forward(a->ln2, a->mean2, a->rstd2, a->mid, w[LN2_W], w[LN2_B], N, C);
    matmul_forward(a->fc, a->ln2, w[FC_W], w[FC_B], N, C, 4 * C);
    gelu_forward(a->gelu, a->fc, (size_t)N * 4 * C);
    matmul_forward(out, a->gelu, w[PROJ_W], w[PROJ_B], N, 4 * C, C);
    add_scaled(out, a->mid, 1.0f, N * C);
}

/* d_stream: in, the gradient of the layer's output; out, of its input. */
static void layer_backward(float *d_stream, float *d_narrow, float *d_wide, const struct layer_acts *a, float *const *w,
                           float *const *d, int B, int T, int C, int heads) {
    const int N = B * T, size = C / heads;
    matmul_backward(d_wide, d[PROJ_W], d[PROJ_B], d_stream, a->gelu, w[PROJ_W], N, 4 * C, C);
    gelu_backward(d_wide, a->fc, (size_t)N * 4 * C);
    matmul_backward(d_narrow, d[FC_W], d[FC_B], d_wide, a->ln2, w[FC_W], N, C, 4 * C);
    layernorm_backward(d_stream, d[LN2_W], d[LN2_B], d_narrow, a->mid, a->mean2, a->rstd2, w[LN2_W], N, C);
    matmul_backward(d_narrow, d[OUT_W], d[OUT_B], d_stream, a->heads, w[OUT_W], N, C, C);
    memset(d_wide, 0, (size_t)N * 3 * C * sizeof *d_wide);
    for (int i = 0; i < B * heads; i++) {
        const size_t row = (size_t)(i / heads) * T, column = (size_t)(i % heads) * size;
        attention_backward(d_wide + row * 3 * C + column, d_narrow + row * C + column, a->probs + (size_t)i * T * T,
                           a->qkv + row * 3 * C + column, T, C, size);
    }
    matmul_backward(d_narrow, d[QKV_W], d[QKV_B], d_wide, a->ln1, w[QKV_W], N, C, 3 * C);
    layernorm_backward(d_stream, d[LN1_W], d[LN1_B], d_narrow, a->in, a->mean1, a->rstd1, w[LN1_W], N, C);
}

/* Leaves the probabilities of the next byte in g->logits. */
static void head_forward(struct gpt *g, float *const *w, int N, int C) {
    layernorm_forward(g->lnf, g->mean, g->rstd, g->stream, w[LNF_W], w[LNF_B], N, C);
    for (int r = 0; r < N; r++) {
        float *y = g->logits + (size_t)r * VOCAB;
        for (int v = 0; v < VOCAB; v++)
            y[v] = dot(g->lnf + (size_t)r * C, w[TOKENS] + (size_t)v * C, C);
        softmax(y, VOCAB);
    }
}

static void head_backward(struct gpt *g, float *const *w, float *const *d, const int *targets, int N, int C) {
    memset(g->d_narrow, 0, (size_t)N * C * sizeof *g->d_narrow);
    memset(g->d_stream, 0, (size_t)N * C * sizeof *g->d_stream);
    for (int r = 0; r < N; r++)
        for (int v = 0; v < VOCAB; v++) {
            float slope = (g->logits[(size_t)r * VOCAB + v] - (v == targets[r] ? 1.0f : 0.0f)) / (float)N;
            add_scaled(g->d_narrow + (size_t)r * C, w[TOKENS] + (size_t)v * C, slope, C);
            add_scaled(d[TOKENS] + (size_t)v * C, g->lnf + (size_t)r * C, slope, C);
        }
    layernorm_backward(g->d_stream, d[LNF_W], d[LNF_B], g->d_narrow, g->stream, g->mean, g->rstd, w[LNF_W], N, C);
}

/* ---- the whole model --------------------------------------------------------------------------- */

/* The average loss of B sequences of T tokens; 0 without targets. */
static double forward(struct gpt *g, const int *tokens, const int *targets, int B, int T) {
    const int L = g->o.layers, C = g->o.width;
    float *w[N_TENSORS];
    double loss = 0;
    pointers(g, g->params, 0, w);
    embed_forward(g->acts[0].in, tokens, w, B, T, C);
    for (int l = 0; l < L; l++) {
        float *out = l + 1 < L ? g->acts[l + 1].in : g->stream;
        pointers(g, g->params, l, w);
        layer_forward(out, &g->acts[l], w, B, T, C, g->o.heads);
    }
    pointers(g, g->params, 0, w);
    head_forward(g, w, B * T, C);
    for (int r = 0; targets && r < B * T; r++)
        loss -= log((double)g->logits[(size_t)r * VOCAB + targets[r]]) / (B * T);
    return loss;
}

/* Follows a forward of the same batch. */
static void backward(struct gpt *g, const int *tokens, const int *targets, int B, int T) {
    const int L = g->o.layers, C = g->o.width;
    float *w[N_TENSORS], *d[N_TENSORS];
    memset(g->grads, 0, g->n_params * sizeof(float));
    pointers(g, g->params, 0, w);
    pointers(g, g->grads, 0, d);
    head_backward(g, w, d, targets, B * T, C);
    for (int l = L - 1; l >= 0; l--) {
        pointers(g, g->params, l, w);
        pointers(g, g->grads, l, d);
        layer_backward(g->d_stream, g->d_narrow, g->d_wide, &g->acts[l], w, d, B, T, C, g->o.heads);
    }
    pointers(g, g->grads, 0, d);
    embed_backward(d, g->d_stream, tokens, B, T, C);
}

/* AdamW with weight decay on matrices only; step counts from 1. Operations are in PyTorch's order. */
static void update(struct gpt *g, int step, double lr) {
    const double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
    const float pace = (float)(-lr / (1 - pow(beta1, step))), root = (float)pow(1 - pow(beta2, step), 0.5);
    for (int t = 0; t < N_TENSORS; t++) {
        const struct tensor *x = &g->tensor[t];
        const float keep = (float)(1 - lr * (x->decays ? g->o.weight_decay : 0));
        const size_t end = x->offset + x->elems * (size_t)(x->stack ? x->stack : 1);
        for (size_t i = x->offset; i < end; i++) {
            float d = g->grads[i], *m = &g->moment1[i], *v = &g->moment2[i];
            *m = fmaf((float)(1 - beta1), d - *m, *m);
            *v = fmaf((float)(1 - beta2) * d, d, *v * (float)beta2);
            g->params[i] = g->params[i] * keep + pace * *m / (sqrtf(*v) / root + (float)eps);
        }
    }
}

/* A tenth of the steps upwards, then down a cosine to a tenth; in steps of 1e-8, so that it can be written down. */
static double learning_rate(const struct options *o, int step) {
    const int warmup = o->steps / 10 + 1, rest = o->steps > warmup ? o->steps - warmup : 1;
    double part = 0.1 + 0.45 * (1 + cos(3.14159265358979 * (step - warmup) / rest));
    if (step < warmup)
        part = (step + 1.0) / warmup;
    return round(o->lr * part * 1e8) / 1e8;
}

/* ---- training ---------------------------------------------------------------------------------- */

/* Batch number `index` of a stream: sequences from random places of the text, each predicting its own next byte. */
static void pick_batch(struct gpt *g, const struct text *text, uint64_t stream, uint64_t index) {
    const size_t T = (size_t)g->o.context, B = (size_t)g->o.batch;
    const size_t first = stream == FOR_TRAINING ? 0 : text->train;
    const size_t places = (stream == FOR_TRAINING ? text->train : text->total - text->train) - T;
    for (size_t b = 0; b < B; b++) {
        const size_t at = first + random_bits(g->o.seed, stream, index * B + b) % places;
        for (size_t t = 0; t < T; t++) {
            g->tokens[b * T + t] = text->bytes[at + t];
            g->targets[b * T + t] = text->bytes[at + t + 1];
        }
    }
}

static void evaluate(struct gpt *g, const struct text *text, int step) {
    double loss = 0;
    for (int i = 0; i < EVAL_BATCHES; i++) {
        pick_batch(g, text, FOR_EVALUATION, (uint64_t)i);
        loss += forward(g, g->tokens, g->targets, g->o.batch, g->o.context) / EVAL_BATCHES;
    }
    printf("step %d evaluation %.9g\n", step, loss);
}

/* Takes the byte at which the running sum of the probabilities passes a random number. */
static int choose(const float *probs, float chance) {
    for (int v = 0; v < VOCAB - 1; v++) {
        chance -= probs[v];
        if (chance < 0)
            return v;
    }
    return VOCAB - 1;
}

/* Prints the prompt and what the model makes of it. */
static void generate(struct gpt *g, const char *prompt, int n) {
    const int T = g->o.context;
    int *window = g->tokens, length = 0;
    for (; prompt[length] && length < T; length++)
        window[length] = (unsigned char)prompt[length];
    printf("text: %.*s", length, prompt);
    for (int i = 0; i < n; i++) {
        if (length == T)
            memmove(window, window + 1, (size_t)--length * sizeof *window);
        forward(g, window, NULL, 1, length);
        const float chance = uniform(random_bits(g->o.seed, FOR_TEXT, (uint64_t)i));
        window[length] = choose(g->logits + (size_t)(length - 1) * VOCAB, chance);
        printf("%c", window[length] < ' ' || window[length] > '~' ? ' ' : window[length]);
        length++;
    }
    printf("\n");
}

static void train(struct gpt *g, const struct text *text) {
    for (int step = g->step; step < (g->o.stop ? g->o.stop : g->o.steps); step++) {
        if (g->o.eval_every && step % g->o.eval_every == 0)
            evaluate(g, text, step);
        pick_batch(g, text, FOR_TRAINING, (uint64_t)step);
        double loss = forward(g, g->tokens, g->targets, g->o.batch, g->o.context);
        backward(g, g->tokens, g->targets, g->o.batch, g->o.context);
        update(g, step + 1, learning_rate(&g->o, step));
        printf("step %d loss %.9g\n", step + 1, loss);
        g->step = step + 1;
    }
}

int main(int argc, char **argv) {
    static struct gpt g;
    g.o = read_options(argc, argv);
    if (g.o.width % g.o.heads)
        die("--width %d is not a multiple of --heads %d", g.o.width, g.o.heads);
    struct text text = read_text(g.o.data, g.o.context);
    describe(&g);
    allocate_params(&g);
    allocate_acts(&g);
    initialize(&g);
    if (g.o.load)
        load(&g);
    printf("%zu parameters, %zu bytes of text\n", g.n_params, text.total);
    train(&g, &text);
    evaluate(&g, &text, g.step);
    if (g.o.generate)
        generate(&g, "The ", g.o.generate);
    if (g.o.save)
        save(&g, g.o.save);
    free(g.params);
    free(g.memory);
    free(g.acts);
    free(g.tokens);
    free(text.memory);
    return 0;
}
