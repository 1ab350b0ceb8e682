# SPDX-License-Identifier: BSD-3-Clause
"""Pre-trains one llama with tessera and with PyTorch: the same weights, batches, schedule and number of steps.

    TESSERA=build/release/tessera python tests/reference/pretrain.py TEXT [--size small|10m] [--steps N] [--batch N] [--ranks W] [OUT.csv]

`python` is one with torch and transformers. Tessera writes the starting weights as a Hugging Face folder, which both
read. Batches are windows of TEXT in the order of tessera's permutation (tools/train/data/sampler.c), computed here
again. OUT.csv has a line per step: both losses. It is written as steps are done, PyTorch's first, so that a run that is
ended early leaves its curve. The last line printed compares the means of the last tenth.
"""
import argparse
import itertools
import json
import math
import os
import pathlib
import subprocess
import tempfile
import time

import torch
from transformers import LlamaForCausalLM

SIZES = dict(small=(128, 344, 4, 4, 2, 128, 8), **{"10m": (320, 864, 8, 8, 4, 256, 8)})
SEED, RATE, DECAY, BETAS, CLIP = 1, 2e-3, 0.1, (0.9, 0.95), 1.0


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("text")
    p.add_argument("out", nargs="?")
    p.add_argument("--size", choices=SIZES, default="small")
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--batch", type=int, default=0)
    p.add_argument("--ranks", type=int, default=1)
    return p.parse_intermixed_args()


def config_of(width, feed, layers, heads, kv_heads, context):
    return dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=width, intermediate_size=feed, num_hidden_layers=layers,
                num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=256, max_position_embeddings=context,
                rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=True, hidden_act="silu")


def write_curve(out, ours, theirs):
    """A loss that is not known yet is an empty cell."""
    if not out:
        return
    cells = itertools.zip_longest(ours, theirs)
    lines = [",".join([str(i + 1)] + ["" if loss is None else f"{loss:.6f}" for loss in pair]) + "\n" for i, pair in enumerate(cells)]
    pathlib.Path(out + ".part").write_text("step,tessera,pytorch\n" + "".join(lines))
    os.replace(out + ".part", out)


def step_losses(path):
    if not os.path.exists(path):
        return []
    whole = open(path).read().rpartition("\n")[0].splitlines()
    return [e["loss"] for e in map(json.loads, whole) if e["event"] == "step"]


def train(o, where, context, batch, steps, *more, show=lambda losses: None):
    command = [os.environ.get("TESSERA", "build/release/tessera"), "train", "llama", "--data", o.text, "--context", str(context),
               "--batch", str(batch), "--steps", str(steps), "--seed", str(SEED), "--weight-decay", str(DECAY), "--clip", str(CLIP),
               "--threads", "1", "--sample", "0", "--quiet", "--log", "error", f"--json={where}/run.json"]
    begin, json_file = time.perf_counter(), f"{where}/run.json"
    pathlib.Path(json_file).unlink(missing_ok=True)
    with subprocess.Popen(command + list(more)) as running:
        while True:
            try:
                code = running.wait(timeout=2)
                break
            except subprocess.TimeoutExpired:
                show(step_losses(json_file))
    if code:
        raise SystemExit(f"{' '.join(command)}: exit code {code}")
    spent = time.perf_counter() - begin
    show(step_losses(json_file))
    return step_losses(json_file), spent, json.loads(open(json_file).read().splitlines()[-1])


def philox(seed, c):
    k, mask = [seed & 0xFFFFFFFF, seed >> 32], 0xFFFFFFFF
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & mask, (p >> 32) ^ c[3] ^ k[1], p & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def permuted(samples, epoch, x):
    half = 1
    while half < 31 and 1 << 2 * half < samples:
        half += 1
    mask = (1 << half) - 1
    while True:
        left, right = x >> half, x & mask
        for turn in range(6):
            word = philox(SEED, [right, epoch & 0xFFFFFFFF, epoch >> 32, 0x53000000 + turn])
            left, right = right, left ^ ((word[1] << 32 | word[0]) & mask)
        x = left << half | right
        if x < samples:
            return x


def window(text, context, number):
    samples = (len(text) - len(text) // 10 - 1) // context
    first = permuted(samples, number // samples, number % samples) * context
    return text[first : first + context + 1]


def rate(step, steps):
    warm = min(steps // 10, 100)
    if step < warm:
        return RATE * (step + 1) / (warm + 1)
    return RATE * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm))))


def torch_losses(folder, text, context, batch, steps, show):
    net = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    decayed = [p for p in net.parameters() if p.ndim >= 2]
    groups = [dict(params=decayed, weight_decay=DECAY), dict(params=[p for p in net.parameters() if p.ndim < 2], weight_decay=0.0)]
    optimizer, losses, begin = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=1e-8), [], time.perf_counter()
    for step in range(steps):
        tokens = torch.tensor([list(window(text, context, step * batch + i)) for i in range(batch)])
        loss = torch.nn.functional.cross_entropy(net(input_ids=tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        optimizer.step()
        losses.append(loss.item())
        show(losses)
    return losses, time.perf_counter() - begin, sum(p.numel() for p in net.parameters())


def main():
    o = arguments()
    torch.set_num_threads(1)
    width, feed, layers, heads, kv_heads, context, batch = SIZES[o.size]
    batch = o.batch or batch
    text = pathlib.Path(o.text).read_bytes()
    with tempfile.TemporaryDirectory() as where:
        with open(f"{where}/config.json", "w") as f:
            json.dump(config_of(width, feed, layers, heads, kv_heads, context), f)
        train(o, where, context, batch, 1, "--config", f"{where}/config.json", "--lr", "0", "--export", f"{where}/start")
        theirs, their_time, elements = torch_losses(f"{where}/start", text, context, batch, o.steps, lambda losses: write_curve(o.out, [], losses))
        ours, our_time, summary = train(o, where, context, batch // o.ranks, o.steps, "--model", f"{where}/start", "--lr", str(RATE), "-n", str(o.ranks),
                                        show=lambda losses: write_curve(o.out, losses, theirs))
    apart = [abs(a - b) for a, b in zip(ours, theirs)]
    last = max(1, o.steps // 10)
    means = sum(ours[-last:]) / last, sum(theirs[-last:]) / last
    print(f"{elements} parameters, {o.steps} steps of {batch} x {context} tokens: loss {ours[0]:.4f} to {means[0]:.4f} (tessera, {our_time:.0f} s), "
          f"{theirs[0]:.4f} to {means[1]:.4f} (PyTorch, {their_time:.0f} s), means of the last {last} steps; validation {summary['validation_loss']:.4f}; "
          f"largest difference {max(apart[:20]):.2g} in the first 20 steps, {max(apart):.2g} in all")


main()
