#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes muon.inc: losses of 20 steps of torch.optim.Muon (2.11, products in bf16) on two matrices, by each of its rules for
the rate, and the first update of both in fp32. Weights and data follow a formula that the test has too. Needs torch."""

import sys

import torch
from torch.optim import Muon, _muon

HIGH, WIDE, SAMPLES, STEPS = 24, 16, 32, 20

def noise(rows, cols, seed):
    """Numbers between -1 and 1, from a product modulo 2^32."""
    values = [((i + 1) * 2654435761 + seed * 40503) % 2**32 / 2**31 - 1 for i in range(rows * cols)]
    return torch.tensor(values, dtype=torch.float32).reshape(rows, cols)

def orthogonal(grad, coefficients, steps, eps):
    """torch's own, without its bf16."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x

def train(rule, steps):
    one = torch.nn.Parameter(noise(HIGH, WIDE, 0) * 0.3)
    two = torch.nn.Parameter(noise(WIDE, HIGH, 1) * 0.3)
    x, target = noise(WIDE, SAMPLES, 2), noise(WIDE, SAMPLES, 3)
    optimizer = Muon([one, two], lr=0.01, weight_decay=0.1, adjust_lr_fn=rule)
    before, losses = (one.detach().clone(), two.detach().clone()), []
    for _ in range(steps):
        loss = ((two @ (one @ x) - target) ** 2).mean() / 2
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses, [p.detach() - b * (1 - 0.01 * 0.1) for p, b in zip((one, two), before)]

def write(out, name, values):
    out.write(f"static const float {name}[] = {{")
    for i, v in enumerate(values):
        text = f"{v:.9g}"
        out.write(("\n    " if i % 6 == 0 else " ") + text + ("f," if "." in text or "e" in text else ".0f,"))
    out.write("\n};\n")

def main():
    with open(sys.argv[1], "w") as out:
        for rule in ("original", "match_rms_adamw"):
            write(out, "losses_" + rule, train(rule, STEPS)[0])
        _muon._zeropower_via_newtonschulz = orthogonal
        for name, update in zip(("one", "two"), train("original", 1)[1]):
            write(out, "update_" + name, update.flatten().tolist())

main()
