#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A small Llama whose products are in fp8, computed by PyTorch on the CPU.

Run once: python make_fp8.py OUT_DIR (needs torch, numpy, safetensors). It writes OUT_DIR/llama-fp8.safetensors: the losses
before each of 20 steps of AdamW and after the last, with products in fp8 and in bf16, the gradients of the first step in fp8,
and a hash of the codes that torch.float8_e4m3fn and torch.float8_e5m2 have for every bf16.

A factor is divided by its tensor's scale, a power of two, cast to float8, and cast back: products are of those numbers.
Matrices that share an input share a scale. The other operators compute in fp32 and round to bf16 where tools/models does.
"""
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from make_reference import BATCH, BATCH_SEED, INIT, SEED, normal, words

LAYERS, WIDTH, HEADS, KV_HEADS, FEED, CONTEXT, SAMPLES, STEPS = 2, 32, 2, 1, 48, 16, 2, 20
SIZE = WIDTH // HEADS
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def scale_of(tensors, dtype):
    """The largest power of two that keeps the largest magnitude within the format."""
    most = max(t.float().abs().max().item() for t in tensors)
    return 1.0 if most == 0 else 2.0 ** np.floor(np.log2(torch.finfo(dtype).max / most))


def rounded(x, scale, dtype):
    return (x.float() * scale).to(dtype).float() / scale


class Products(torch.autograd.Function):
    """y_i = x · w_i^T. The gradients of matrices stay in fp32, as their masters are."""

    @staticmethod
    def forward(ctx, fp8, x, *masters):
        ws = [w.bfloat16() for w in masters]
        ctx.fp8 = fp8
        ctx.save_for_backward(x, *ws)
        x, ws = Products.factors(ctx.fp8, x, ws)
        return tuple((x @ w.T).bfloat16() for w in ws)

    @staticmethod
    def factors(fp8, x, ws):
        if not fp8:
            return x.float(), [w.float() for w in ws]
        scale = scale_of(ws, E4M3)
        return rounded(x, scale_of([x], E4M3), E4M3), [rounded(w, scale, E4M3) for w in ws]

    @staticmethod
    def backward(ctx, *dys):
        x, ws = Products.factors(ctx.fp8, ctx.saved_tensors[0], ctx.saved_tensors[1:])
        scale = scale_of(dys, E5M2)
        dys = [rounded(dy, scale, E5M2) if ctx.fp8 else dy.float() for dy in dys]
        dx = sum(dy @ w for dy, w in zip(dys, ws)).bfloat16()
        return (None, dx, *(dy.T @ x for dy in dys))


def params():
    out = {}

    def add(name, shape, std=None):
        elems = int(np.prod(shape))
        values = np.ones(elems, np.float32) if std is None else \
            np.float32(std) * normal(words(SEED, INIT, elems, len(out), 0))
        out[name] = torch.tensor(values.reshape(shape), requires_grad=True)

    residual = 0.02 / np.sqrt(2.0 * LAYERS)
    add("embed.weight", (256, WIDTH), 0.02)
    for i in range(LAYERS):
        at = f"layers.{i}."
        add(at + "input_layernorm.weight", (WIDTH,))
        add(at + "self_attn.q_proj.weight", (HEADS * SIZE, WIDTH), 0.02)
        add(at + "self_attn.k_proj.weight", (KV_HEADS * SIZE, WIDTH), 0.02)
        add(at + "self_attn.v_proj.weight", (KV_HEADS * SIZE, WIDTH), 0.02)
        add(at + "self_attn.o_proj.weight", (WIDTH, HEADS * SIZE), residual)
        add(at + "post_attention_layernorm.weight", (WIDTH,))
        add(at + "mlp.gate_proj.weight", (FEED, WIDTH), 0.02)
        add(at + "mlp.up_proj.weight", (FEED, WIDTH), 0.02)
        add(at + "mlp.down_proj.weight", (WIDTH, FEED), residual)
    add("head.norm.weight", (WIDTH,))
    return out


def norm(x, w):
    x = x.float()
    return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w.bfloat16().float()).bfloat16()


def turned(x):
    """Rotary positions of [samples, heads, time, size]."""
    angles = torch.outer(torch.arange(CONTEXT, dtype=torch.float64),
                         10000.0 ** (-2.0 * torch.arange(SIZE // 2, dtype=torch.float64) / SIZE))
    c, s = angles.cos().float(), angles.sin().float()
    re, im = x.float().split(SIZE // 2, dim=-1)
    return torch.cat([re * c - im * s, im * c + re * s], dim=-1).bfloat16()


def heads(x, n):
    return x.view(SAMPLES, CONTEXT, n, SIZE).transpose(1, 2)


def attention(q, k, v):
    y = F.scaled_dot_product_attention(turned(heads(q, HEADS)).float(), turned(heads(k, KV_HEADS)).float(),
                                       heads(v, KV_HEADS).float(), is_causal=True, enable_gqa=True)
    return y.transpose(1, 2).reshape(SAMPLES * CONTEXT, WIDTH).bfloat16()


def loss_of(p, batch, fp8):
    x, y = batch
    table = p["embed.weight"].bfloat16()
    h = F.embedding(x.reshape(-1), table)
    for i in range(LAYERS):
        def w(leaf):
            return p[f"layers.{i}.{leaf}.weight"]
        n = norm(h, w("input_layernorm"))
        qkv = Products.apply(fp8, n, *(w(f"self_attn.{m}_proj") for m in "qkv"))
        h = h + Products.apply(fp8, attention(*qkv), w("self_attn.o_proj"))[0]
        n = norm(h, w("post_attention_layernorm"))
        gate, up = Products.apply(fp8, n, w("mlp.gate_proj"), w("mlp.up_proj"))
        h = h + Products.apply(fp8, (F.silu(gate.float()) * up.float()).bfloat16(), w("mlp.down_proj"))[0]
    logits = norm(h, p["head.norm.weight"]).float() @ table.float().T
    return F.cross_entropy(logits, y.reshape(-1))


def batch_of(index):
    """make_reference's text, of another length."""
    rows = []
    for s in range(index * SAMPLES, (index + 1) * SAMPLES):
        text, last = [], 0
        for w in words(BATCH_SEED, BATCH, CONTEXT + 1, s, 3).tolist():
            last = (w >> 8) % 64 if w % 4 == 0 else (last * 5 + 7) % 64
            text.append(last)
        rows.append(text)
    rows = torch.tensor(rows)
    return rows[:, :-1], rows[:, 1:]


def train(fp8):
    p = params()
    groups = [dict(params=[w for w in p.values() if w.ndim > 1], weight_decay=0.1),
              dict(params=[w for w in p.values() if w.ndim < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    losses, first = [], None
    for step in range(STEPS + 1):
        optimizer.zero_grad()
        loss = loss_of(p, batch_of(step), fp8)
        loss.backward()
        losses.append(loss.item())
        first = first or {name: w.grad.clone() for name, w in p.items()}
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64), first


def code_hash(dtype):
    """FNV-1a of the codes of all finite bf16 within the format, in their order."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    codes = every[every.abs() <= torch.finfo(dtype).max].to(dtype).view(torch.uint8)
    value = 1469598103934665603
    for code in codes.tolist():
        value = (value ^ code) * 1099511628211 % 2**64
    return torch.tensor([float(value >> 16 * k & 0xFFFF) for k in range(4)])


def main(out):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    fp8, gradients = train(True)
    bf16, _ = train(False)
    save_file(gradients | {"losses.fp8": fp8.float(), "losses.bf16": bf16.float(), "codes.e4m3": code_hash(E4M3),
                           "codes.e5m2": code_hash(E5M2)}, out / "llama-fp8.safetensors")
    print(torch.__version__, *(f"{a:.6f}/{b:.6f}" for a, b in zip(fp8.tolist(), bf16.tolist())))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
