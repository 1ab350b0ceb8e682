#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Reference values of the models mnist, gpt and convbn, computed by PyTorch from the same weights and batches.

Run once: python make_reference.py OUT_DIR (needs torch, numpy, safetensors). Weights and batches come from the counter
of tools/models/philox.h, so they are not stored; tests/unit/models_common.h makes the same ones. See data/README.md.
"""
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

STEPS, SEED, BATCH_SEED = 20, 1, 7
INIT, BATCH = 1, 3  # purposes of streams, philox.h
MNIST_BATCH = 16
ON, FLIP = 0.2, 0.05
GPT = dict(layers=2, width=64, heads=4, context=32, batch=4)
CONVBN = dict(size=14, hidden=24, batch=2)


# ---- the counter -----------------------------------------------------------------------------------
def philox(seed, c0, c1, c2, c3):
    """Four uint32 arrays; the counters broadcast."""
    c = [np.asarray(v, np.uint64) for v in np.broadcast_arrays(c0, c1, c2, c3)]
    k0, k1, low = seed & 0xFFFFFFFF, seed >> 32, np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(q >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), q & low, (p >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [v.astype(np.uint32) for v in c]


def words(seed, purpose, elems, a, b):
    """The first `elems` words of a stream, one after another."""
    blocks = np.arange((elems + 3) // 4)
    return np.stack(philox(seed, blocks, purpose << 24, a, b), axis=1).reshape(-1)[:elems]


def uniform(w):
    return (w >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def normal(w):
    pairs = np.pad(w, (0, -len(w) % 4)).reshape(-1, 2).astype(np.float64)
    radius = np.sqrt(-2.0 * np.log((pairs[:, 0] + 1.0) * 2.0**-32))
    angle = pairs[:, 1] * 2.0**-32 * 6.283185307179586476925
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)[: len(w)].astype(np.float32)


# ---- models: parameters in declaration order as name -> fp32 array ---------------------------------------
def mnist_params():
    shapes = dict(conv1=(32, 1, 3, 3), conv2=(64, 32, 3, 3), fc1=(128, 9216), fc2=(10, 128))
    params = {}
    for layer, shape in shapes.items():
        bound = np.float32(1.0 / np.sqrt(np.prod(shape[1:])))
        for leaf, s in (("weight", shape), ("bias", shape[:1])):
            u = uniform(words(SEED, INIT, int(np.prod(s)), len(params), 0))
            params[f"{layer}.{leaf}"] = (bound * (np.float32(2) * u - np.float32(1))).reshape(s)
    return params


def mnist_loss(p, batch, keep=None):
    x, y = batch
    x = F.relu(F.conv2d(x, p["conv1.weight"], p["conv1.bias"]))
    x = F.relu(F.conv2d(x, p["conv2.weight"], p["conv2.bias"]))
    x = torch.flatten(F.max_pool2d(x, 2), 1)
    hidden = F.linear(x, p["fc1.weight"], p["fc1.bias"])
    if keep is not None:  # the two factors of fc1.weight's gradient
        hidden.retain_grad()
        keep.append((x, hidden))
    x = F.linear(F.relu(hidden), p["fc2.weight"], p["fc2.bias"])
    return F.nll_loss(F.log_softmax(x if x.dtype == torch.float64 else x.float(), dim=1), y)


def mnist_batch(index, dtype):
    images, labels = [], []
    for s in range(index * MNIST_BATCH, (index + 1) * MNIST_BATCH):
        label = int(words(BATCH_SEED, BATCH, 1, s, 1)[0] % 10)
        # 7 × 7 cells of 4 × 4 pixels: the label's pattern with some cells turned over, and noise: over an
        # even background a whole region of ReLUs would flip at once, and 20 steps of Adadelta magnify that
        shape = uniform(words(BATCH_SEED, BATCH, 49, label, 2)) < ON
        flip = uniform(words(BATCH_SEED, BATCH, 49, s, 2**31)) < FLIP
        lit = np.kron((shape ^ flip).reshape(7, 7), np.ones((4, 4), bool))
        noise = uniform(words(BATCH_SEED, BATCH, 784, s, 0)).reshape(28, 28)
        images.append((np.where(lit, np.float32(0.5), np.float32(-0.25)) + np.float32(0.5) * noise)[None])
        labels.append(label)
    return torch.tensor(np.stack(images)).to(dtype), torch.tensor(labels)


def gpt_params(tied):
    g, c, params = GPT, GPT["width"], {}

    def add(name, shape, std=None, value=0.0):
        elems = int(np.prod(shape))
        if std is None:
            params[name] = np.full(shape, value, np.float32)
        else:
            params[name] = (np.float32(std) * normal(words(SEED, INIT, elems, len(params), 0))).reshape(shape)

    add("embed.wte.weight", (256, c), 0.02)
    add("embed.wpe.weight", (g["context"], c), 0.02)
    residual = 0.02 / np.sqrt(2.0 * g["layers"])
    for i in range(g["layers"]):
        add(f"h.{i}.ln_1.weight", (c,), value=1.0)
        add(f"h.{i}.ln_1.bias", (c,))
        add(f"h.{i}.attn.c_attn.weight", (3 * c, c), 0.02)
        add(f"h.{i}.attn.c_attn.bias", (3 * c,))
        add(f"h.{i}.attn.c_proj.weight", (c, c), residual)
        add(f"h.{i}.attn.c_proj.bias", (c,))
        add(f"h.{i}.ln_2.weight", (c,), value=1.0)
        add(f"h.{i}.ln_2.bias", (c,))
        add(f"h.{i}.mlp.c_fc.weight", (4 * c, c), 0.02)
        add(f"h.{i}.mlp.c_fc.bias", (4 * c,))
        add(f"h.{i}.mlp.c_proj.weight", (c, 4 * c), residual)
        add(f"h.{i}.mlp.c_proj.bias", (c,))
    add("head.ln_f.weight", (c,), value=1.0)
    add("head.ln_f.bias", (c,))
    if not tied:
        add("head.weight", (256, c), 0.02)
    return params


def gpt_loss(p, batch, keep=None):
    x, y = batch
    c, (b, t) = GPT["width"], x.shape

    def norm(x, name):
        return F.layer_norm(x, (c,), p[name + ".weight"], p[name + ".bias"], 1e-5)

    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    def heads(x):
        return x.view(b, t, GPT["heads"], -1).transpose(1, 2)

    h = F.embedding(x, p["embed.wte.weight"]) + p["embed.wpe.weight"]
    for i in range(GPT["layers"]):
        q, k, v = linear(norm(h, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(c, dim=2)
        a = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
        h = h + linear(a.transpose(1, 2).reshape(b, t, c), f"h.{i}.attn.c_proj")
        up = F.gelu(linear(norm(h, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate="tanh")
        h = h + linear(up, f"h.{i}.mlp.c_proj")
    logits = F.linear(norm(h, "head.ln_f"), p.get("head.weight", p["embed.wte.weight"]))
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits.view(b * t, 256), y.reshape(-1))


def gpt_batch(index, dtype):
    rows = []
    for s in range(index * GPT["batch"], (index + 1) * GPT["batch"]):
        text, last = [], 0
        for w in words(BATCH_SEED, BATCH, GPT["context"] + 1, s, 3).tolist():
            last = (w >> 8) % 64 if w % 4 == 0 else (last * 5 + 7) % 64
            text.append(last)
        rows.append(text)
    rows = torch.tensor(rows)
    return rows[:, :-1], rows[:, 1:]


def convbn_params():
    """Running statistics are among them: they have their places in the declaration."""
    h, params = CONVBN["hidden"], {}

    def uniform_of(name, shape, fan):
        bound = np.float32(1.0 / np.sqrt(fan))
        u = uniform(words(SEED, INIT, int(np.prod(shape)), len(params), 0))
        params[name] = (bound * (np.float32(2) * u - np.float32(1))).reshape(shape)

    for at, (inputs, outputs, k) in {"stem.0": (3, 64, 3), "blocks.0": (64, h, 5), "blocks.3": (h, h, 5),
                                     "blocks.6": (h, h, 5)}.items():
        module, index = at.split(".")
        uniform_of(f"{at}.weight", (outputs, inputs, k, k), inputs * k * k)
        uniform_of(f"{at}.bias", (outputs,), inputs * k * k)
        for leaf, value in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
            params[f"{module}.{int(index) + 1}.{leaf}"] = np.full((outputs,), value, np.float32)
    uniform_of("head.weight", (10, h), h)
    uniform_of("head.bias", (10,), h)
    return params


def convbn_loss(p, x, keep=None):
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    for conv, norm, pad in (("stem.0", "stem.1", 0), ("blocks.0", "blocks.1", 2), ("blocks.3", "blocks.4", 2),
                            ("blocks.6", "blocks.7", 2)):
        x = F.conv2d(x, p[conv + ".weight"], p[conv + ".bias"], padding=pad)
        n = {leaf: p[f"{norm}.{leaf}"].to(wide) for leaf in ("weight", "bias")}  # FSDP keeps these in fp32
        y = F.batch_norm(x.to(wide), p[norm + ".running_mean"], p[norm + ".running_var"], n["weight"], n["bias"], True)
        x = F.relu(y.to(x.dtype))
    x = F.linear(x.mean(dim=(2, 3)), p["head.weight"], p["head.bias"])
    return F.mse_loss(x[0].to(wide).sum(), torch.zeros((), dtype=wide))


def convbn_batch(index, dtype):
    side, images = CONVBN["size"], []
    for s in range(index * CONVBN["batch"], (index + 1) * CONVBN["batch"]):
        u = uniform(words(BATCH_SEED, BATCH, side * side * 3, s, 4)).reshape(side, side, 3)
        images.append((np.float32(2) * u - np.float32(1)).transpose(2, 0, 1))
    return torch.tensor(np.stack(images)).to(dtype)


# ---- runs ------------------------------------------------------------------------------------------------
def make_optimizer(name, master):
    if name == "adadelta":
        return torch.optim.Adadelta(master.values(), lr=1.0, rho=0.9, eps=1e-6)
    if name.startswith("sgd"):
        return torch.optim.SGD(master.values(), lr=0.002 if name == "sgd-convbn" else 0.005, momentum=0.9)
    groups = [dict(params=[p for p in master.values() if p.ndim > 1], weight_decay=0.1),
              dict(params=[p for p in master.values() if p.ndim < 2], weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)


def train(model, params, optimizer, ranks, dtype, keep=None):
    """STEPS + 1 losses (the mean over ranks, before each step); the first step's averaged gradients, and the running
    statistics after its passes, all on the same ones as the test has them."""
    loss_of, batch_of = model
    master_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    master = {n: torch.tensor(v).to(master_dtype) for n, v in params.items()}
    buffers = {n: master.pop(n) for n in list(master) if ".running_" in n}
    master = {n: v.requires_grad_() for n, v in master.items()}
    opt, losses, first = make_optimizer(optimizer, master), [], None
    for step in range(STEPS + 1):
        sums, loss_sum = {n: torch.zeros_like(v) for n, v in master.items()}, 0.0
        for rank in range(ranks):
            used = {n: v.detach().to(dtype).requires_grad_() for n, v in master.items()}
            kept = keep if step == 0 else None
            loss = loss_of(used | buffers, batch_of(step * ranks + rank, dtype), kept)
            loss.backward()
            loss_sum += loss.item()
            for n, v in used.items():
                sums[n] += v.grad.to(master_dtype)
        losses.append(loss_sum / ranks)
        for n, v in master.items():
            v.grad = sums[n] / ranks
        if first is None:
            first = {n: v.grad.clone() for n, v in master.items()} | {n: v.clone() for n, v in buffers.items()}
        opt.step()
    return losses, first


def main(out):
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    mnist, gpt = (mnist_loss, mnist_batch), (gpt_loss, gpt_batch)
    cases = [("mnist-adadelta", mnist, mnist_params(), "adadelta"), ("mnist-sgd", mnist, mnist_params(), "sgd"),
             ("gpt-adamw", gpt, gpt_params(True), "adamw"), ("gpt-untied-adamw", gpt, gpt_params(False), "adamw"),
             ("convbn-sgd", (convbn_loss, convbn_batch), convbn_params(), "sgd-convbn")]
    lines = [f"# PyTorch {torch.__version__}, numpy {np.__version__}", "# case ranks step fp64 fp32 bf16"]
    for name, model, params, optimizer in cases:
        for ranks in (1, 2):
            keep = []
            l64, grads = train(model, params, optimizer, ranks, torch.float64, keep)
            l32, _ = train(model, params, optimizer, ranks, torch.float32)
            l16, _ = train(model, params, optimizer, ranks, torch.bfloat16)
            lines += [f"{name} {ranks} {s} {a:.12g} {b:.9g} {c:.9g}" for s, (a, b, c) in enumerate(zip(l64, l32, l16))]
            tensors = {n: g.to(torch.float32).numpy() for n, g in grads.items()}
            if name == "mnist-sgd":
                continue  # the first gradients are mnist-adadelta's
            if keep:  # fc1.weight is the product of two thin matrices: 0.6 MB a rank in place of 4.7 MB
                del tensors["fc1.weight"]
                tensors["fc1.input"] = np.concatenate([x.detach().float().numpy() for x, _ in keep])
                tensors["fc1.grad_output"] = np.concatenate([h.grad.float().numpy() for _, h in keep]) / np.float32(ranks)
            model_name = name.rsplit("-", 1)[0]
            save_file(tensors, out / f"{model_name}-{ranks}.safetensors")
            print(name, ranks, l64[0], l64[-1], l32[-1], l16[-1], flush=True)
    (out / "losses.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
