# SPDX-License-Identifier: BSD-3-Clause
# Writes loss_scale.inc: steps whose gradients are finite or not, drawn at random, and PyTorch's scale after each.
import random

import torch

random.seed(1)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=3)
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
rows = []
for step in range(60):
    finite = random.random() < 0.8 if step < 40 else random.random() < 0.45
    scaler.scale(weight.sum() * 0)
    before = weight.detach().clone()
    weight.grad = torch.tensor([1.0, 2.0]) * scaler.get_scale()
    if not finite:
        weight.grad[step % 2] = float("nan" if step % 3 else "inf")
    scaler.step(optimizer)
    assert torch.equal(before, weight) == (not finite)
    scaler.update()
    rows.append("{ %d, %.9g }" % (finite, scaler.get_scale()))
with open("tests/reference/loss_scale.inc", "w") as out:
    out.write("/* make_loss_scale.py, PyTorch %s: whether a step's gradients are finite, and the scale after it */\n"
              % torch.__version__.split("+")[0])
    for first in range(0, len(rows), 6):
        out.write(", ".join(rows[first:first + 6]) + ",\n")
