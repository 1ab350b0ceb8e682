#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes adamw8bit.inc: the first and the twentieth step of torchao's AdamW8bit on 4096 + 256 elements, fp32, eager; and
losses of 20 steps on two matrices, as in make_muon.py. Weights, gradients and data follow a formula that the tests have too.
Needs torch and torchao."""

import sys

import torch

torch.compile = lambda fn=None, **_: fn or (lambda f: f)  # eager
from torchao.optim import AdamW8bit

N, STEPS, EVERY = 4352, 20, 64
HIGH, WIDE, SAMPLES = 96, 64, 32

def noise(n, seed):
    """Numbers between -1 and 1, from a product modulo 2^32."""
    return [((i + 1) * 2654435761 + seed * 40503) % 2**32 / 2**31 - 1 for i in range(n)]

def matrix(rows, cols, seed):
    return torch.tensor(noise(rows * cols, seed), dtype=torch.float32).reshape(rows, cols)

def losses():
    one, two = torch.nn.Parameter(matrix(HIGH, WIDE, 0) * 0.3), torch.nn.Parameter(matrix(WIDE, HIGH, 1) * 0.3)
    x, target = matrix(WIDE, SAMPLES, 2), matrix(WIDE, SAMPLES, 3)
    optimizer = AdamW8bit([one, two], lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    for _ in range(STEPS):
        loss = ((two @ (one @ x) - target) ** 2).mean() / 2
        yield loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

def write(out, name, values):
    out.write(f"static const float {name}[] = {{\n")
    for v in values:
        out.write(f"    {v:.9g}f,\n" if "." in f"{v:.9g}" or "e" in f"{v:.9g}" else f"    {v:.9g}.0f,\n")
    out.write("};\n")

def main():
    p = torch.nn.Parameter(torch.tensor(noise(N, 0), dtype=torch.float32))
    optimizer = AdamW8bit([p], lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    with open(sys.argv[1], "w") as out:
        for step in range(1, STEPS + 1):
            p.grad = torch.tensor(noise(N, step), dtype=torch.float32) * 1e-3
            optimizer.step()
            if step not in (1, STEPS):
                continue
            state = optimizer.state[p]
            for name, values in (
                ("param", p.detach()),
                ("exp_avg", state["exp_avg"].dequantize()),
                ("exp_avg_sq", state["exp_avg_sq"].dequantize()),
            ):
                write(out, f"{name}_{step}", values[::EVERY].tolist())
        write(out, "losses", losses())

main()
