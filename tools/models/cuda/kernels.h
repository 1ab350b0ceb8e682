/* The kernels of the reference models on a GPU, as functions that compile for CUDA and for the host alike: kernels.cu
 * makes kernels of them, tests/doubles and tests/unit/test_cuda_ops.c run them in loops.
 *
 * A grid is one-dimensional, a block has OPS_BLOCK threads, a kernel takes one struct. A body is called once per phase
 * for every thread of a block; between phases the block's threads wait for each other, and nothing is carried from one
 * phase to the next but through `room`, ROOM doubles that a block shares. Threads beyond the work return. Nothing is
 * atomic, so the bits do not depend on who runs when. */
#ifndef TESS_MODELS_CUDA_KERNELS_H
#define TESS_MODELS_CUDA_KERNELS_H
#include "../ops_formulas.h"
#include "../philox.h"

enum { OPS_BLOCK = 256, OPS_ROOM = 2 * OPS_BLOCK, OPS_EACH = 4 /* elements per thread, where each is on its own */ };
enum { OPS_ROWS_PER_BLOCK = OPS_BLOCK / OPS_LANES };
enum { OPS_COLUMNS_PER_BLOCK = 8, OPS_COLUMN_LANES = OPS_BLOCK / OPS_COLUMNS_PER_BLOCK };
enum { OPS_CHUNK = 512 }; /* rows of a chunk of batch normalisation's sums, as on the CPU */

/* for each element of a thread: block · 1024 + k · 256 + thread, so that neighbours are read together */
#define OPS_FOR_EACH(i, n)                                                                                             \
    for (uint64_t i = (uint64_t)block * (OPS_BLOCK * OPS_EACH) + thread, end_ = i + OPS_BLOCK * OPS_EACH;              \
         i < end_ && i < (n); i += OPS_BLOCK)
#define OPS_BODY(name)                                                                                                 \
    TESS_FN void ops_body_##name(const ops_args_##name *a, uint32_t block, uint32_t thread, int phase, double *room)
#define OPS_ONE_PHASE                                                                                                  \
    (void)phase;                                                                                                       \
    (void)room

/* ---- element by element ------------------------------------------------------------------------ */
typedef struct {
    const float *x;
    uint16_t *y;
    uint64_t elems;
} ops_args_narrow;
OPS_BODY(narrow) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) a->y[i] = tess_bf16_of_f32(a->x[i]);
}

typedef struct {
    const uint16_t *x;
    float *y;
    uint64_t elems;
} ops_args_widen;
OPS_BODY(widen) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) a->y[i] = tess_f32_of_bf16(a->x[i]);
}

typedef struct {
    const float *x;
    float *y;
    uint64_t elems;
} ops_args_add;
OPS_BODY(add) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) a->y[i] += a->x[i];
}

typedef struct {
    const float *y, *dy;
    float *dx;
    uint64_t elems;
    float scale;
} ops_args_relu_backward;
OPS_BODY(relu_backward) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) a->dx[i] = ops_relu_slope_of(a->y[i], a->dy[i], a->scale);
}

typedef struct {
    const float *x;
    float *y;
    uint64_t elems;
} ops_args_gelu;
OPS_BODY(gelu) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) a->y[i] = ops_gelu_of(a->x[i]);
}

typedef struct {
    const float *x, *dy;
    float *dx;
    uint64_t elems;
} ops_args_gelu_backward;
OPS_BODY(gelu_backward) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) a->dx[i] = ops_gelu_slope_of(a->x[i], a->dy[i]);
}

typedef struct { /* b null: none */
    const float *b;
    float *y;
    uint64_t elems, width;
    int32_t relu;
} ops_args_bias_relu;
OPS_BODY(bias_relu) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) a->y[i] = ops_bias_relu_of(a->y[i], a->b, i % a->width, a->relu);
}

typedef struct { /* a thread has the four elements of one block of random words */
    float *x;
    uint64_t samples, elems, seed, step, first_sample;
    uint32_t layer;
    float rate;
} ops_args_dropout;
OPS_BODY(dropout) {
    uint64_t groups = (a->elems + 3) / 4, at = (uint64_t)block * OPS_BLOCK + thread, sample = at / groups;
    uint64_t first = at % groups * 4;
    float keep = 1.0f - a->rate, grow = 1.0f / keep;
    OPS_ONE_PHASE;
    if (sample >= a->samples)
        return;
    float *x = a->x + sample * a->elems + first;
    philox_block words = philox(a->seed, (uint32_t)(first / 4), (uint32_t)PHILOX_DROPOUT << 24 | a->layer,
                                (uint32_t)(a->first_sample + sample), (uint32_t)a->step);
    for (int j = 0; j < 4; j++)
        if (first + (uint64_t)j < a->elems)
            x[j] = philox_uniform(words.v[j]) < keep ? x[j] * grow : 0;
}

/* ---- pools ------------------------------------------------------------------------------------- */
typedef struct { /* images: batch, height, width, channels; y: batch, channels, height / 2, width / 2 */
    const float *x;
    float *y;
    uint8_t *which; /* null: not wanted */
    int32_t batch, height, width, channels;
} ops_args_maxpool;
OPS_BODY(maxpool) {
    int64_t h = a->height / 2, w = a->width / 2, c = a->channels;
    uint64_t elems = (uint64_t)(a->batch * h * w * c);
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, elems) {
        int64_t channel = (int64_t)i % c, place = (int64_t)i / c % (h * w), n = (int64_t)i / (c * h * w), best = 0;
        const float *image = a->x + n * a->height * a->width * c + channel;
        float most = image[ops_window_place(a->width, c, place / w, place % w, 0)];
        for (int k = 1; k < 4; k++) { /* the first of equals */
            float v = image[ops_window_place(a->width, c, place / w, place % w, k)];
            best = v > most ? k : best;
            most = v > most ? v : most;
        }
        a->y[(n * c + channel) * h * w + place] = most;
        if (a->which)
            a->which[(n * c + channel) * h * w + place] = (uint8_t)best;
    }
}

typedef struct {
    const float *y, *dy;
    const uint8_t *which;
    float *dx;
    int32_t batch, height, width, channels;
    float scale;
} ops_args_maxpool_backward;
OPS_BODY(maxpool_backward) {
    int64_t h = a->height / 2, w = a->width / 2, c = a->channels;
    uint64_t elems = (uint64_t)a->batch * (uint64_t)a->height * (uint64_t)a->width * (uint64_t)c;
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, elems) {
        int64_t channel = (int64_t)i % c, column = (int64_t)i / c % a->width;
        int64_t row = (int64_t)i / (c * a->width) % a->height, n = (int64_t)i / (c * a->width * a->height);
        int64_t from = ((n * c + channel) * h + row / 2) * w + column / 2;
        int inside = row / 2 < h && column / 2 < w, mine = (int)(row % 2 * 2 + column % 2);
        a->dx[i] = inside && a->which[from] == mine && a->y[from] > 0 ? a->scale * a->dy[from] : 0;
    }
}

typedef struct {
    const float *dy;
    float *dx;
    uint64_t elems, places, channels;
} ops_args_avgpool_backward;
OPS_BODY(avgpool_backward) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t sample = i / (a->places * a->channels), c = i % a->channels;
        a->dx[i] = (float)((double)a->dy[sample * a->channels + c] / (double)a->places);
    }
}

/* ---- sums over columns: 8 columns of 32 lanes each to a block
 * ----------------------------------------------------------
 */
TESS_FN double ops_add_column(const double *room, uint32_t column) {
    double sum = 0;
    for (int lane = 0; lane < OPS_COLUMN_LANES; lane++)
        sum += room[lane * OPS_COLUMNS_PER_BLOCK + (int)column];
    return sum;
}

typedef struct { /* y[sample, c] = over · the sum of x's rows of that sample, or += it */
    const float *x;
    float *y;
    uint64_t rows, width, groups; /* groups: blocks per sample */
    int32_t add;
    uint32_t over; /* 1: divided by rows */
} ops_args_column_sums;
OPS_BODY(column_sums) {
    uint64_t sample = block / a->groups, c = block % a->groups * OPS_COLUMNS_PER_BLOCK + thread % OPS_COLUMNS_PER_BLOCK;
    if (c >= a->width)
        return;
    if (phase == 0) {
        const float *x = a->x + sample * a->rows * a->width + c;
        double sum = 0;
        for (uint64_t r = thread / OPS_COLUMNS_PER_BLOCK; r < a->rows; r += OPS_COLUMN_LANES)
            sum += (double)x[r * a->width];
        room[thread] = sum;
    } else if (thread < OPS_COLUMNS_PER_BLOCK) {
        double sum = ops_add_column(room, thread);
        float *y = a->y + sample * a->width + c;
        sum = a->over ? sum / (double)a->rows : sum;
        *y = a->add ? *y + (float)sum : (float)sum;
    }
}

typedef struct { /* dw, db null: not wanted */
    const float *x, *dy, *stats;
    float *dw, *db;
    uint64_t rows, width;
} ops_args_layernorm_columns;
OPS_BODY(layernorm_columns) {
    uint64_t c = (uint64_t)block * OPS_COLUMNS_PER_BLOCK + thread % OPS_COLUMNS_PER_BLOCK;
    if (c >= a->width)
        return;
    if (phase == 0) {
        double dw = 0, db = 0;
        for (uint64_t r = thread / OPS_COLUMNS_PER_BLOCK; r < a->rows; r += OPS_COLUMN_LANES) {
            float dy = a->dy[r * a->width + c];
            dw += (double)(dy * ((a->x[r * a->width + c] - a->stats[2 * r]) * a->stats[2 * r + 1]));
            db += (double)dy;
        }
        room[thread] = dw;
        room[OPS_BLOCK + thread] = db;
    } else if (thread < OPS_COLUMNS_PER_BLOCK) {
        if (a->dw)
            a->dw[c] += (float)ops_add_column(room, thread);
        if (a->db)
            a->db[c] += (float)ops_add_column(room + OPS_BLOCK, thread);
    }
}

/* ---- rows: 16 rows of 16 lanes each to a block ------------------------------------------------- */
TESS_FN double ops_add_lanes(const double *room, uint32_t row) {
    double sum = 0;
    for (int lane = 0; lane < OPS_LANES; lane++)
        sum += room[(int)row * OPS_LANES + lane];
    return sum;
}
#define OPS_ROW                                                                                                        \
    uint32_t lane = thread % OPS_LANES, within = thread / OPS_LANES;                                                   \
    uint64_t r = (uint64_t)block * OPS_ROWS_PER_BLOCK + within

typedef struct {
    const float *x, *w, *b;
    float *y, *stats;
    uint64_t rows, width;
} ops_args_layernorm;
OPS_BODY(layernorm) {
    OPS_ROW;
    if (r >= a->rows)
        return;
    const float *x = a->x + r * a->width;
    float sum = 0;
    if (phase == 0) {
        for (uint64_t c = lane; c < a->width; c += OPS_LANES)
            sum += x[c];
        room[thread] = (double)sum;
        return;
    }
    float mean = (float)(ops_add_lanes(room, within) / (double)a->width);
    if (phase == 1) {
        for (uint64_t c = lane; c < a->width; c += OPS_LANES)
            sum += (x[c] - mean) * (x[c] - mean);
        room[OPS_BLOCK + thread] = (double)sum;
        return;
    }
    float rsigma = ops_rsigma_of(ops_add_lanes(room + OPS_BLOCK, within) / (double)a->width);
    for (uint64_t c = lane; c < a->width; c += OPS_LANES)
        a->y[r * a->width + c] = ops_norm_of(x[c], mean, rsigma, a->w[c], a->b[c]);
    if (lane == 0) {
        a->stats[2 * r] = mean;
        a->stats[2 * r + 1] = rsigma;
    }
}

typedef struct {
    const float *x, *w, *stats, *dy;
    float *dx;
    uint64_t rows, width;
} ops_args_layernorm_rows;
OPS_BODY(layernorm_rows) {
    OPS_ROW;
    if (r >= a->rows)
        return;
    const float *x = a->x + r * a->width, *dy = a->dy + r * a->width;
    float mean = a->stats[2 * r], rsigma = a->stats[2 * r + 1];
    if (phase == 0) {
        float sum = 0, dot = 0;
        for (uint64_t c = lane; c < a->width; c += OPS_LANES) {
            float g = dy[c] * a->w[c];
            sum += g;
            dot += g * ((x[c] - mean) * rsigma);
        }
        room[thread] = (double)sum;
        room[OPS_BLOCK + thread] = (double)dot;
        return;
    }
    float g_mean = (float)(ops_add_lanes(room, within) / (double)a->width);
    float g_dot = (float)(ops_add_lanes(room + OPS_BLOCK, within) / (double)a->width);
    for (uint64_t c = lane; c < a->width; c += OPS_LANES)
        a->dx[r * a->width + c] = ops_layernorm_slope_of(x[c], mean, rsigma, dy[c] * a->w[c], g_mean, g_dot);
}

/* ---- loss
 * --------------------------------------------------------------------------------------------------------------
 */
typedef struct { /* as ops_loss */
    double loss;
    uint64_t correct, count, reserved;
} ops_cuda_loss;
typedef struct {
    double loss;
    uint64_t correct;
} ops_cuda_row_loss;

typedef struct { /* rows: those that count */
    float *logits;
    const int32_t *labels;
    ops_cuda_row_loss *losses;
    uint64_t rows, classes;
} ops_args_cross_entropy;
OPS_BODY(cross_entropy) {
    OPS_ROW;
    if (r >= a->rows)
        return;
    float *row = a->logits + r * a->classes;
    uint64_t label = (uint64_t)a->labels[r], first = within * OPS_LANES, best = lane;
    if (phase == 0) { /* each lane's greatest, the first of equals */
        for (uint64_t c = lane + OPS_LANES; c < a->classes; c += OPS_LANES)
            best = row[c] > row[best] ? c : best;
        room[thread] = lane < a->classes ? (double)row[best] : 0;
        room[OPS_BLOCK + thread] = (double)best;
        return;
    }
    uint64_t lanes = a->classes < (uint64_t)OPS_LANES ? a->classes : (uint64_t)OPS_LANES;
    if (phase == 1) { /* the row's; every lane's first room now holds the same two and the label's logit */
        uint64_t winner = first;
        for (uint64_t i = first + 1; i < first + lanes; i++)
            if (room[i] > room[winner] || (room[i] == room[winner] && room[OPS_BLOCK + i] < room[OPS_BLOCK + winner]))
                winner = i;
        if (lane == 0) {
            a->losses[r].loss = room[winner] - (double)row[label];
            a->losses[r].correct = (uint64_t)room[OPS_BLOCK + winner] == label;
        }
        return;
    }
    float most = (float)room[first];
    for (uint64_t i = first + 1; i < first + lanes; i++)
        most = room[i] > (double)most ? (float)room[i] : most;
    if (phase == 2) {
        double sum = 0;
        for (uint64_t c = lane; c < a->classes; c += OPS_LANES) {
            row[c] = ops_exp(row[c] - most);
            sum += (double)row[c];
        }
        room[OPS_BLOCK + thread] = sum;
        return;
    }
    double sum = ops_add_lanes(room + OPS_BLOCK, within);
    float over = (float)(1.0 / sum);
    for (uint64_t c = lane; c < a->classes; c += OPS_LANES)
        row[c] *= over;
    if (lane == 0)
        a->losses[r].loss += log(sum);
}

typedef struct { /* one block */
    const ops_cuda_row_loss *losses;
    ops_cuda_loss *out;
    uint64_t rows;
} ops_args_loss_sum;
OPS_BODY(loss_sum) {
    if (block)
        return;
    if (phase == 0) {
        double loss = 0, correct = 0;
        for (uint64_t r = thread; r < a->rows; r += OPS_BLOCK) {
            loss += a->losses[r].loss;
            correct += (double)a->losses[r].correct;
        }
        room[thread] = loss;
        room[OPS_BLOCK + thread] = correct;
    } else if (thread == 0) {
        double loss = 0, correct = 0;
        for (int i = 0; i < OPS_BLOCK; i++) {
            loss += room[i];
            correct += room[OPS_BLOCK + i];
        }
        a->out->loss = loss;
        a->out->correct = (uint64_t)correct;
        a->out->count = a->rows;
        a->out->reserved = 0;
    }
}

typedef struct {
    const float *probabilities;
    const int32_t *labels;
    float *dlogits;
    uint64_t elems, classes, count;
    float over; /* 1 / count */
} ops_args_cross_entropy_backward;
OPS_BODY(cross_entropy_backward) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t r = i / a->classes, c = i % a->classes;
        float hit = r < a->count && c == (uint64_t)a->labels[r] ? 1.0f : 0.0f;
        a->dlogits[i] = r < a->count ? (a->probabilities[i] - hit) * a->over : 0;
    }
}

typedef struct { /* one thread: a handful of elements, in order */
    const float *x;
    ops_cuda_loss *out;
    uint64_t elems, count;
    int32_t squared;
} ops_args_sum_loss;
OPS_BODY(sum_loss) {
    double sum = 0;
    OPS_ONE_PHASE;
    if (block || thread)
        return;
    for (uint64_t i = 0; i < a->elems; i++)
        sum += (double)a->x[i];
    a->out->loss = a->squared ? sum * sum : sum;
    a->out->correct = a->out->reserved = 0;
    a->out->count = a->count;
}

typedef struct {
    const float *x;
    float *dx;
    uint64_t elems, all;
    int32_t squared;
    float scale;
} ops_args_sum_loss_backward;
OPS_BODY(sum_loss_backward) {
    double sum = 0;
    OPS_ONE_PHASE;
    for (uint64_t i = 0; a->squared && i < a->elems; i++)
        sum += (double)a->x[i];
    OPS_FOR_EACH(i, a->all) a->dx[i] = i >= a->elems ? 0 : a->squared ? (float)(2 * sum) : a->scale;
}

/* ---- embedding --------------------------------------------------------------------------------- */
typedef struct {
    const uint8_t *text;
    int32_t *out;
    uint64_t elems, time, stride;
} ops_args_ids;
OPS_BODY(ids) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) a->out[i] = a->text[i / a->time * a->stride + i % a->time];
}

typedef struct {
    const int32_t *ids;
    const float *table, *position;
    float *y;
    uint64_t elems, time, width;
} ops_args_embedding;
OPS_BODY(embedding) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t r = i / a->width, c = i % a->width;
        a->y[i] = a->table[(uint64_t)a->ids[r] * a->width + c] + a->position[r % a->time * a->width + c];
    }
}

typedef struct { /* an element of the table collects its rows one after another, so the bits do not depend on who is
                  * first
                  */
    const int32_t *ids;
    const float *dy;
    float *dtable;
    uint64_t rows, tokens, width;
} ops_args_embedding_table;
OPS_BODY(embedding_table) {
    uint64_t i = (uint64_t)block * OPS_BLOCK + thread, token = i / a->width, c = i % a->width;
    OPS_ONE_PHASE;
    if (token >= a->tokens)
        return;
    float sum = a->dtable[i];
    for (uint64_t r = 0; r < a->rows; r++)
        if ((uint64_t)a->ids[r] == token)
            sum += a->dy[r * a->width + c];
    a->dtable[i] = sum;
}

typedef struct {
    const float *dy;
    float *dposition;
    uint64_t rows, time, width;
} ops_args_embedding_position;
OPS_BODY(embedding_position) {
    uint64_t i = (uint64_t)block * OPS_BLOCK + thread;
    OPS_ONE_PHASE;
    if (i >= a->time * a->width)
        return;
    float sum = a->dposition[i];
    for (uint64_t at = i; at < a->rows * a->width; at += a->time * a->width)
        sum += a->dy[at];
    a->dposition[i] = sum;
}

/* ---- batch normalisation: as on the CPU, sums of chunks of rows, then of the chunks in order
 * ----------------------------
 */
typedef struct {
    const float *x;
    double *sums; /* per chunk: two for each channel */
    uint64_t rows, channels;
} ops_args_batchnorm_sums;
OPS_BODY(batchnorm_sums) {
    uint64_t i = (uint64_t)block * OPS_BLOCK + thread, chunk = i / a->channels, c = i % a->channels;
    uint64_t first = chunk * OPS_CHUNK, last = first + OPS_CHUNK < a->rows ? first + OPS_CHUNK : a->rows;
    double sum = 0, square = 0;
    OPS_ONE_PHASE;
    if (first >= a->rows)
        return;
    for (uint64_t r = first; r < last; r++) {
        double v = (double)a->x[r * a->channels + c];
        sum += v;
        square += v * v;
    }
    a->sums[chunk * 2 * a->channels + c] = sum;
    a->sums[(chunk * 2 + 1) * a->channels + c] = square;
}

/* Chunk by chunk; the first one's, with nothing added to it, begin. */
TESS_FN double ops_add_chunks(const double *sums, uint64_t rows, uint64_t channels, uint64_t at) {
    double sum = sums[at];
    for (uint64_t chunk = 1; chunk * OPS_CHUNK < rows; chunk++)
        sum += sums[chunk * 2 * channels + at];
    return sum;
}

typedef struct { /* sums null: the running values are what is normalised with */
    const double *sums;
    float *running_mean, *running_var, *stats;
    uint64_t rows, channels;
    int32_t update;
} ops_args_batchnorm_stats;
OPS_BODY(batchnorm_stats) {
    uint64_t c = (uint64_t)block * OPS_BLOCK + thread;
    double rows = (double)a->rows;
    OPS_ONE_PHASE;
    if (c >= a->channels)
        return;
    if (!a->sums) {
        a->stats[c] = a->running_mean[c];
        a->stats[a->channels + c] = ops_rsigma_of((double)a->running_var[c]);
        return;
    }
    double mean = ops_add_chunks(a->sums, a->rows, a->channels, c) / rows;
    double variance = ops_add_chunks(a->sums, a->rows, a->channels, a->channels + c) / rows - mean * mean;
    variance = variance > 0 ? variance : 0;
    a->stats[c] = (float)mean;
    a->stats[a->channels + c] = ops_rsigma_of(variance);
    if (!a->update)
        return;
    double unbiased = rows > 1 ? variance * (rows / (rows - 1)) : variance;
    a->running_mean[c] = (float)(0.9 * (double)a->running_mean[c] + 0.1 * mean);
    a->running_var[c] = (float)(0.9 * (double)a->running_var[c] + 0.1 * unbiased);
}

typedef struct {
    const float *x, *w, *b, *stats;
    float *y;
    uint64_t elems, channels;
    int32_t relu;
} ops_args_batchnorm;
OPS_BODY(batchnorm) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t c = i % a->channels;
        float v = ops_norm_of(a->x[i], a->stats[c], a->stats[a->channels + c], a->w[c], a->b[c]);
        a->y[i] = a->relu && v < 0 ? 0 : v; /* a NaN stays */
    }
}

typedef struct { /* y: the result, where relu is to be undone */
    const float *x, *y, *dy, *stats;
    double *sums;
    uint64_t rows, channels;
    int32_t relu;
} ops_args_batchnorm_slopes;
OPS_BODY(batchnorm_slopes) {
    uint64_t i = (uint64_t)block * OPS_BLOCK + thread, chunk = i / a->channels, c = i % a->channels;
    uint64_t first = chunk * OPS_CHUNK, last = first + OPS_CHUNK < a->rows ? first + OPS_CHUNK : a->rows;
    double sum = 0, dot = 0;
    OPS_ONE_PHASE;
    if (first >= a->rows)
        return;
    float mean = a->stats[c], rsigma = a->stats[a->channels + c];
    for (uint64_t r = first; r < last; r++) {
        uint64_t at = r * a->channels + c;
        float g = !a->relu || a->y[at] > 0 ? a->dy[at] : 0;
        sum += (double)g;
        dot += (double)g * (double)((a->x[at] - mean) * rsigma);
    }
    a->sums[chunk * 2 * a->channels + c] = sum;
    a->sums[(chunk * 2 + 1) * a->channels + c] = dot;
}

typedef struct { /* dw, db null: not wanted; means: two for each channel */
    const double *sums;
    float *dw, *db, *means;
    uint64_t rows, channels;
} ops_args_batchnorm_means;
OPS_BODY(batchnorm_means) {
    uint64_t c = (uint64_t)block * OPS_BLOCK + thread;
    OPS_ONE_PHASE;
    if (c >= a->channels)
        return;
    double sum = ops_add_chunks(a->sums, a->rows, a->channels, c);
    double dot = ops_add_chunks(a->sums, a->rows, a->channels, a->channels + c);
    if (a->db)
        a->db[c] += (float)sum;
    if (a->dw)
        a->dw[c] += (float)dot;
    a->means[c] = (float)(sum / (double)a->rows);
    a->means[a->channels + c] = (float)(dot / (double)a->rows);
}

typedef struct {
    const float *x, *y, *dy, *w, *stats, *means;
    float *dx;
    uint64_t elems, channels;
    int32_t relu;
} ops_args_batchnorm_backward;
OPS_BODY(batchnorm_backward) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t c = i % a->channels;
        float g = !a->relu || a->y[i] > 0 ? a->dy[i] : 0;
        a->dx[i] = ops_batchnorm_slope_of(a->x[i], a->stats[c], a->stats[a->channels + c], a->w[c], g, a->means[c],
                                          a->means[a->channels + c]);
    }
}

/* ---- convolution as a product: windows as rows, weights turned
 * ---------------------------------------------------------
 */
typedef struct { /* rows: places of the output from `first_place` on; each k · k · channels; either out or half */
    const float *x;
    float *out;
    uint16_t *half;
    uint64_t elems, first_place;
    int32_t height, width, channels, kernel, pad, out_height, out_width;
} ops_args_windows;
OPS_BODY(windows) {
    uint64_t c = (uint64_t)a->channels, k = (uint64_t)a->kernel, taps = k * k * c;
    uint64_t ow = (uint64_t)a->out_width, oh = (uint64_t)a->out_height;
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t place = a->first_place + i / taps, tap = i % taps;
        int64_t row = (int64_t)(place / ow % oh + tap / (k * c)) - a->pad;
        int64_t column = (int64_t)(place % ow + tap / c % k) - a->pad;
        float v = 0;
        if (row >= 0 && row < a->height && column >= 0 && column < a->width) {
            int64_t image = (int64_t)(place / (ow * oh));
            v = a->x[((image * a->height + row) * a->width + column) * a->channels + (int64_t)(tap % c)];
        }
        if (a->half)
            a->half[i] = tess_bf16_of_f32(v);
        else
            a->out[i] = v;
    }
}

typedef struct { /* [out, in, k, k] to [k, k, in, out]; turned: to [k, k, out, in], the taps from last to first */
    const void *w;
    void *out;
    uint64_t elems;
    int32_t channels, outputs, kernel, turned;
    int32_t halves; /* both are bf16 */
} ops_args_turn_weights;
OPS_BODY(turn_weights) {
    uint64_t c = (uint64_t)a->channels, n = (uint64_t)a->outputs, kk = (uint64_t)a->kernel * (uint64_t)a->kernel;
    uint64_t fast = a->turned ? c : n, slow = a->turned ? n : c;
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) { /* of the result: [tap, slow, fast] */
        uint64_t at_fast = i % fast, at_slow = i / fast % slow, tap = i / (fast * slow);
        uint64_t out = a->turned ? at_slow : at_fast, in = a->turned ? at_fast : at_slow;
        uint64_t from = (out * c + in) * kk + (a->turned ? kk - 1 - tap : tap);
        if (a->halves)
            ((uint16_t *)a->out)[i] = ((const uint16_t *)a->w)[from];
        else
            ((float *)a->out)[i] = ((const float *)a->w)[from];
    }
}

typedef struct { /* dw[out, in, k, k] += d[k, k, in, out] */
    const float *d;
    float *dw;
    uint64_t elems;
    int32_t channels, outputs, kernel;
} ops_args_add_weights;
OPS_BODY(add_weights) {
    uint64_t c = (uint64_t)a->channels, n = (uint64_t)a->outputs, kk = (uint64_t)a->kernel * (uint64_t)a->kernel;
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t tap = i % kk, in = i / kk % c, out = i / (kk * c);
        a->dw[i] += a->d[(tap * c + in) * n + out];
    }
}

/* ---- attention: of `heads` heads of one sample, query rows first … first + rows - 1, scores `pitch` apart
 * --------------
 */
typedef struct { /* scores become probabilities, in place or rounded into half; beyond what a row may see: 0 */
    float *scores, *lse;
    uint16_t *half;
    uint64_t heads, rows, first, columns, pitch, time; /* lse: [heads, time] */
} ops_args_attention_softmax;
OPS_BODY(attention_softmax) {
    OPS_ROW;
    if (r >= a->heads * a->rows)
        return;
    float *row = a->scores + r * a->pitch;
    uint64_t query = a->first + r % a->rows, n = query + 1, begin = within * OPS_LANES;
    if (phase == 0) {
        float most = lane < n ? row[lane] : row[0];
        for (uint64_t c = lane + OPS_LANES; c < n; c += OPS_LANES)
            most = row[c] > most ? row[c] : most;
        room[thread] = (double)most;
        return;
    }
    float most = (float)room[begin];
    for (uint64_t i = begin + 1; i < begin + OPS_LANES; i++)
        most = room[i] > (double)most ? (float)room[i] : most;
    if (phase == 1) {
        double sum = 0;
        for (uint64_t c = lane; c < n; c += OPS_LANES) {
            row[c] = ops_exp(row[c] - most);
            sum += (double)row[c];
        }
        room[OPS_BLOCK + thread] = sum;
        return;
    }
    double sum = ops_add_lanes(room + OPS_BLOCK, within);
    float over = (float)(1.0 / sum);
    for (uint64_t c = lane; c < a->columns; c += OPS_LANES) {
        float p = c < n ? row[c] * over : 0;
        if (a->half)
            a->half[r * a->pitch + c] = tess_bf16_of_f32(p);
        else
            row[c] = p;
    }
    if (lane == 0)
        a->lse[r / a->rows * a->time + query] = most + (float)log(sum);
}

typedef struct { /* scores and dp = dy v^T become p and ds, in place or rounded into the halves */
    float *scores, *dp;
    uint16_t *half_p, *half_ds;
    const float *lse, *y, *dy; /* y, dy: [time, heads, size] */
    uint64_t heads, rows, first, columns, pitch, time, size;
    float scale;
} ops_args_attention_slopes;
OPS_BODY(attention_slopes) {
    OPS_ROW;
    if (r >= a->heads * a->rows)
        return;
    uint64_t head = r / a->rows, query = a->first + r % a->rows, n = query + 1, at = r * a->pitch;
    if (phase == 0) {
        const float *y = a->y + (query * a->heads + head) * a->size, *dy = a->dy + (query * a->heads + head) * a->size;
        double dot = 0;
        for (uint64_t c = lane; c < a->size; c += OPS_LANES)
            dot += (double)y[c] * (double)dy[c];
        room[thread] = dot;
        return;
    }
    float dot = (float)ops_add_lanes(room, within), lse = a->lse[head * a->time + query];
    for (uint64_t c = lane; c < a->columns; c += OPS_LANES) {
        float p = c < n ? ops_exp(a->scores[at + c] - lse) : 0;
        float ds = c < n ? a->scale * p * (a->dp[at + c] - dot) : 0;
        if (a->half_p) {
            a->half_p[at + c] = tess_bf16_of_f32(p);
            a->half_ds[at + c] = tess_bf16_of_f32(ds);
        } else {
            a->scores[at + c] = p;
            a->dp[at + c] = ds;
        }
    }
}

/* ---- all of them: name, phases ----------------------------------------------------------------- */
#define OPS_CUDA_KERNELS(X)                                                                                            \
    X(narrow, 1)                                                                                                       \
    X(widen, 1)                                                                                                        \
    X(add, 1)                                                                                                          \
    X(relu_backward, 1)                                                                                                \
    X(gelu, 1)                                                                                                         \
    X(gelu_backward, 1)                                                                                                \
    X(bias_relu, 1)                                                                                                    \
    X(dropout, 1)                                                                                                      \
    X(maxpool, 1)                                                                                                      \
    X(maxpool_backward, 1)                                                                                             \
    X(avgpool_backward, 1)                                                                                             \
    X(column_sums, 2)                                                                                                  \
    X(layernorm_columns, 2)                                                                                            \
    X(layernorm, 3)                                                                                                    \
    X(layernorm_rows, 2)                                                                                               \
    X(cross_entropy, 4)                                                                                                \
    X(loss_sum, 2)                                                                                                     \
    X(cross_entropy_backward, 1)                                                                                       \
    X(sum_loss, 1)                                                                                                     \
    X(sum_loss_backward, 1)                                                                                            \
    X(ids, 1)                                                                                                          \
    X(embedding, 1)                                                                                                    \
    X(embedding_table, 1)                                                                                              \
    X(embedding_position, 1)                                                                                           \
    X(batchnorm_sums, 1)                                                                                               \
    X(batchnorm_stats, 1)                                                                                              \
    X(batchnorm, 1)                                                                                                    \
    X(batchnorm_slopes, 1)                                                                                             \
    X(batchnorm_means, 1)                                                                                              \
    X(batchnorm_backward, 1)                                                                                           \
    X(windows, 1)                                                                                                      \
    X(turn_weights, 1)                                                                                                 \
    X(add_weights, 1)                                                                                                  \
    X(attention_softmax, 3)                                                                                            \
    X(attention_slopes, 2)

/** Shared by all blocks of `name`, as kernels of this name. */
#define OPS_KERNEL_NAME(name) "tess_ops_" #name
#endif
