# SPDX-License-Identifier: BSD-3-Clause
"""The products' share of a step of the reference models on one rank, by oneDNN's own clock.

    TESSERA=build/release/tessera python3 tests/reference/share.py [--steps 8] [--threads 1] [--only WORDS]

A row comes from two runs. One has ONEDNN_VERBOSE=1: oneDNN's lines between two steps' are the later one's. The other, without
it, has the step's time. Figures are medians over the steps but the first. Rates are of matrix products, where there are no others; the peak is that of
a product of 512 x 512 matrices, as `tessera train --json` says. Of the rest, `optimizer` is the last step's norm and optimizer.
--only keeps the rows that have every one of its words. Needs no package. An idle machine takes a minute or two.
"""
import argparse
import collections
import json
import os
import subprocess
import tempfile

DECODER = "--layers 6 --heads 6 --width 384 --context 256 --batch 8"
MODELS = {
    "gpt": ("gpt", DECODER),
    "llama": ("llama", "--context 256 --batch 8"),
    "gpt-small": ("gpt", "--layers 4 --heads 4 --width 128 --context 64 --batch 6"),
    "mnist": ("mnist", "--batch 64"),
}
LLAMA = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=384, intermediate_size=1024, num_hidden_layers=6,
             num_attention_heads=6, num_key_value_heads=2, vocab_size=256, max_position_embeddings=256, rms_norm_eps=1e-5,
             rope_theta=10000.0, tie_word_embeddings=True, hidden_act="silu")
PRODUCTS = ("matmul", "inner_product", "convolution")


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--only", default="")
    return p.parse_args()


def train(model, precision, config, o, verbose):
    name, shape = MODELS[model]
    more = ["--config", config] if name == "llama" else []
    more += [] if name == "mnist" else ["--sample", "0"]
    command = [os.environ.get("TESSERA", "build/release/tessera"), "train", name, "--precision", precision, "--steps", str(o.steps), "--threads",
               str(o.threads), "--quiet", "--json", "--log", "error"] + shape.split() + more
    return subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ, ONEDNN_VERBOSE=verbose)).stdout.splitlines()


def flops(problem):
    """Of MxK:KxN:MxN."""
    try:
        a, b = problem.split(":")[:2]
        return 2.0 * int(a.split("x")[0]) * int(a.split("x")[1]) * int(b.split("x")[1])
    except (ValueError, IndexError):
        return 0.0


def by_step(lines):
    """oneDNN's lines before the event of each step but the first."""
    out, here = [], []
    for line in lines:
        if line.startswith("onednn_verbose,exec"):
            here.append(line.split(","))
        elif line.startswith('{"event":"step"'):
            out.append(here)
            here = []
    return out[1:]


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


def seconds(step, chosen):
    return sum(float(field[-1]) for field in step if chosen(field)) / 1e3


def ways(steps, products):
    """The implementations that take most of the products' time, and their parts of it."""
    names = collections.Counter()
    for step in steps:
        for field in step:
            if field[3] in PRODUCTS:
                names[field[4]] += float(field[-1]) / 1e3 / len(steps)
    return ", ".join(f"{name} {spent / products:.2f}" for name, spent in names.most_common(2))


def row(model, precision, o, config):
    steps = by_step(train(model, precision, config, o, "1"))
    plain = [json.loads(line) for line in train(model, precision, config, o, "0") if line.startswith("{")]
    step, peak = plain[-1]["step_seconds"], plain[-1]["peak_flops_per_second"]
    products = median([seconds(s, lambda field: field[3] in PRODUCTS) for s in steps])
    matrix = median([seconds(s, lambda field: field[3] == "matmul") for s in steps])
    work = median([sum(flops(field[-2]) for field in s if field[3] == "matmul") for s in steps])
    optimizer = sum(e["seconds"] for e in plain if e["event"] == "span" and e["source"] == "measured" and e["op"] in ("norm", "optimizer"))
    rate = f"{work / matrix / 1e9:.0f} | {peak / 1e9:.0f} | {work / peak / step:.2f}" if matrix > 0.9 * products and peak else "| |"
    return f"| {model} | {precision} | {step:.4g} | {products:.4g} | {products / step:.2f} | {optimizer / step:.3f} | {rate} | {ways(steps, products)} |"


def main():
    o = arguments()
    print("| model | precision | step, s | products, s | share | optimizer | GFLOP/s | peak | share at the peak | implementations, of products |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        json.dump(LLAMA, config)
        config.flush()
        for model in MODELS:
            for precision in ("fp32", "bf16"):
                if all(word in (model, precision) for word in o.only.split()):
                    print(row(model, precision, o, config.name), flush=True)
    print(f"\n{o.threads} thread(s), {o.steps} steps; load {os.getloadavg()[0]:.1f}.")


main()
