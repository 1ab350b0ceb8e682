/* SPDX-License-Identifier: BSD-3-Clause */
#include "tracker.h"

#include <stdio.h>
#include <string.h>

/* ---- touching ---- */

static volatile unsigned char seen; /* so that reading is not left out */

static void read_all(const void *p, uint64_t bytes) {
    const unsigned char *at = p;
    for (uint64_t i = 0; p && i < bytes; i += 64)
        seen ^= at[i];
    if (p && bytes)
        seen ^= at[bytes - 1];
}

static void write_all(void *p, uint64_t bytes) {
    if (p)
        memset(p, 0x3c, bytes);
}

static void add_all(void *p, uint64_t elems) {
    float *at = p;
    for (uint64_t i = 0; at && i < elems; i++)
        at[i] += 0x1p-20f;
}

void tracker_touch_forward(const tracker_piece *piece, void *const *params, uint32_t param_bytes) {
    for (int i = 0; i < MOST_PARAMS && piece->params[i].name; i++)
        read_all(params[i], piece->params[i].elems * param_bytes);
}

void tracker_touch_backward(const tracker_piece *piece, void *const *params, void *const *grads, uint32_t param_bytes) {
    tracker_touch_forward(piece, params, param_bytes);
    for (int i = 0; i < MOST_PARAMS && piece->params[i].name; i++)
        add_all(grads[i], piece->params[i].elems);
}

static uint32_t dtype_bytes(const tess_block_call *c) {
    return c->compute_dtype == TESS_BF16 ? 2 : 4;
}

/* The first piece has the batch for input, any other the output of the one before it in the array. */
static uint64_t input_bytes(const tracker_piece *piece, const tess_block_call *c) {
    return c->input ? piece[-1].output_bytes : 0;
}

static tess_status forward(void *user, const tess_block_call *c) {
    const tracker_piece *piece = user;
    tracker_touch_forward(piece, (void *const *)c->params, dtype_bytes(c));
    read_all(c->input, input_bytes(piece, c));
    write_all(c->scratch, piece->forward_scratch_bytes);
    write_all(c->saved, piece->saved_bytes);
    write_all(c->output, piece->output_bytes);
    return TESS_OK;
}

static tess_status backward(void *user, const tess_block_call *c) {
    const tracker_piece *piece = user;
    read_all(c->saved, piece->saved_bytes);
    read_all(c->output, piece->output_bytes);
    read_all(c->grad_output, piece->output_bytes);
    write_all(c->scratch, piece->backward_scratch_bytes);
    write_all(c->grad_input, input_bytes(piece, c));
    tracker_touch_backward(piece, (void *const *)c->params, c->grads, dtype_bytes(c));
    return TESS_OK;
}

/* ---- declaring ---- */

static tess_status declare_param(tess *t, const tracker_piece *piece, const tracker_param *p) {
    char name[96];
    int64_t shape[1] = { (int64_t)p->elems };
    snprintf(name, sizeof name, "%s.%s", piece->name, p->name);
    if (p->tied_to)
        return tess_param_tie(t, name, p->tied_to);
    tess_param_options o = { .struct_size = sizeof o,
                             .dtype = TESS_F32,
                             .flags = piece->frozen ? TESS_FROZEN : 0,
                             .compute_dtypes = 1u << TESS_F32 | 1u << TESS_BF16,
                             .name = name,
                             .shape = shape,
                             .ndim = 1 };
    return tess_param_add(t, &o, NULL);
}

tess_status tracker_declare(tess *t, tracker_net *net, tess_scope *scopes) {
    tess_status s = TESS_OK;
    for (int i = 0; i < net->n && !s; i++) {
        tracker_piece *p = &net->pieces[i];
        tess_scope scope = -1;
        tess_block_options o = { .struct_size = sizeof o,
                                 .name = p->name,
                                 .output_bytes = p->output_bytes,
                                 .saved_bytes = p->saved_bytes,
                                 .forward_scratch_bytes = p->forward_scratch_bytes,
                                 .backward_scratch_bytes = p->backward_scratch_bytes,
                                 .forward = forward,
                                 .backward = backward,
                                 .user = p };
        s = net->hooks ? tess_scope_add(t, p->name, 0, &scope) : tess_block_add(t, &o, &scope);
        if (scopes)
            scopes[i] = scope;
    }
    for (int i = 0; i < net->n && !s; i++)
        for (int k = 0; k < MOST_PARAMS && net->pieces[i].params[k].name && !s; k++)
            s = declare_param(t, &net->pieces[i], &net->pieces[i].params[k]);
    return s;
}

/* ---- the networks ---- */

/* An MLP four times as wide inside: the hidden layer is saved, its gradient is scratch. */
static void add_mlp(tracker_net *net, uint64_t dim, uint64_t batch, uint64_t width) {
    tracker_piece *p = &net->pieces[net->n];
    *p = (tracker_piece){ .params = { { .name = "in.weight", .elems = 4 * dim * dim },
                                      { .name = "in.bias", .elems = 4 * dim },
                                      { .name = "out.weight", .elems = 4 * dim * dim },
                                      { .name = "out.bias", .elems = dim } },
                          .output_bytes = batch * dim * width,
                          .saved_bytes = batch * 4 * dim * width,
                          .backward_scratch_bytes = batch * 4 * dim * width };
    snprintf(p->name, sizeof p->name, "mlp%d", net->n++);
}

void tracker_mlps(tracker_net *net, uint64_t scale, uint64_t width) {
    const uint64_t dim = 2048 / scale, batch = 8192 / scale;
    *net = (tracker_net){ .optimizer = "adam", .input_bytes = batch * dim * 4, .accum = 1 };
    for (int i = 0; i < 4; i++)
        add_mlp(net, dim, batch, width);
}

void tracker_part(tracker_net *net, uint64_t scale, uint64_t width) {
    *net = (tracker_net){ .optimizer = "adam", .hooks = 1, .accum = 1 };
    for (int i = 0; i < 3; i++)
        add_mlp(net, 2048 / scale, 8, width);
}

void tracker_transformer(tracker_net *net, uint64_t scale, uint64_t width) {
    const uint64_t d = 16, heads = 4, T = 512 / scale, V = 8192 / scale, B = scale > 4 ? 2 : 16, N = B * T;
    *net = (tracker_net){ .optimizer = "adam", .input_bytes = N * 8, .accum = 1 };
    net->pieces[0] = (tracker_piece){
        .name = "embed",
        .params = { { .name = "token.weight", .elems = V * d }, { .name = "position.weight", .elems = T * d } },
        .output_bytes = N * d * width,
    };
    for (int i = 0; i < 4; i++) {
        net->pieces[1 + i] = (tracker_piece){ .params = { { .name = "norm1", .elems = 2 * d },
                                                          { .name = "attention.qkv", .elems = 3 * d * d },
                                                          { .name = "attention.out", .elems = d * d },
                                                          { .name = "norm2", .elems = 2 * d },
                                                          { .name = "up.weight", .elems = 4 * d * d },
                                                          { .name = "up.bias", .elems = 4 * d },
                                                          { .name = "down.weight", .elems = 4 * d * d },
                                                          { .name = "down.bias", .elems = d } },
                                              .output_bytes = N * d * width,
                                              .saved_bytes = N * (11 * d + heads * T) * width +
                                                             N * (heads * T + 2 * d), /* dropped: a byte each */
                                              .forward_scratch_bytes = N * heads * T * width,
                                              .backward_scratch_bytes = 2 * N * heads * T * width + 4 * N * d * width };
        snprintf(net->pieces[1 + i].name, sizeof net->pieces[0].name, "layers.%d", i);
    }
    net->pieces[5] =
        (tracker_piece){ .name = "head",
                         .params = { { .name = "norm", .elems = 2 * d },
                                     { .name = "weight", .elems = V * d, .tied_to = "embed.token.weight" } },
                         .output_bytes = 8,
                         .saved_bytes = N * V * width,
                         .backward_scratch_bytes = N * V * width };
    net->n = 6;
}

/* Sixteen layers of one unit of memory each, of which the first four are frozen. Two ranks: shards 8. The rest is
 * trained with momentum: optimizer 6. Two microbatches, so that 6 of sharded gradients stay; two unsharded gradients
 * are alive at a time: gradients 8. */
void tracker_device24(tracker_net *net, uint64_t unit_bytes, uint64_t width, uint64_t rest) {
    *net = (tracker_net){ .optimizer = "sgd", .momentum = 0.9f, .accum = 2, .n = 16, .input_bytes = 4096 };
    for (int i = 0; i < 16; i++) {
        net->pieces[i] = (tracker_piece){ .frozen = i < 4,
                                          .params = { { .name = "weight", .elems = unit_bytes / 4 } },
                                          .output_bytes = unit_bytes / 64 * width,
                                          .saved_bytes = unit_bytes / 16 * width,
                                          .backward_scratch_bytes = rest };
        snprintf(net->pieces[i].name, sizeof net->pieces[0].name, "layer%d", i);
    }
}
