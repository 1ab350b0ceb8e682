#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes optimizers.inc: ten steps of torch.optim's optimizers on a few elements, for tests/unit/test_formulas.c.

    /opt/ref/bin/python tests/reference/make_optimizers.py > tests/reference/optimizers.inc

Each optimizer runs twice: with square roots rounded correctly (numpy's), which the formulas must meet to the bit, and
with those of PyTorch's CPU build (Intel's vector library, up to an ulp off), to which the distance is bounded.
Inputs come from splitmix64, which the test draws too, so only results are stored."""
import math
import numpy
import torch

ELEMS, STEPS = 128, 10
CASES = [  # name, torch class, settings, state names
    ("sgd", torch.optim.SGD, dict(lr=0.1), []),
    ("sgd_decay", torch.optim.SGD, dict(lr=0.05, weight_decay=0.01), []),
    ("sgd_momentum", torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.0005), ["momentum_buffer"]),
    ("adam", torch.optim.Adam, dict(lr=0.001), ["exp_avg", "exp_avg_sq"]),
    ("adam_decay", torch.optim.Adam, dict(lr=0.003, weight_decay=0.01, betas=(0.3, 0.99)), ["exp_avg", "exp_avg_sq"]),
    ("adamw", torch.optim.AdamW, dict(lr=0.001, weight_decay=0.01), ["exp_avg", "exp_avg_sq"]),
    ("adamw_gpt", torch.optim.AdamW, dict(lr=0.0006, weight_decay=0.1, betas=(0.9, 0.95)), ["exp_avg", "exp_avg_sq"]),
    ("adadelta", torch.optim.Adadelta, dict(lr=1.0), ["square_avg", "acc_delta"]),
    ("adadelta_decay", torch.optim.Adadelta, dict(lr=0.7, rho=0.95, weight_decay=0.01), ["square_avg", "acc_delta"]),
]
MASK = (1 << 64) - 1
own_sqrt, own_sqrt_ = torch.Tensor.sqrt, torch.Tensor.sqrt_


class Random:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
        return z ^ z >> 31

    def unit(self):
        n = self.next() >> 32
        n -= (n >> 31) << 32
        return numpy.float32(numpy.float32(n) * numpy.float32(2.0 ** -31))

    def wide(self):
        unit = self.unit()
        return numpy.float32(math.ldexp(float(unit), self.next() % 24 - 12))


def correct_roots(on):
    torch.Tensor.sqrt = (lambda t: torch.from_numpy(numpy.sqrt(t.numpy()))) if on else own_sqrt
    torch.Tensor.sqrt_ = (lambda t: t.copy_(torch.from_numpy(numpy.sqrt(t.numpy())))) if on else own_sqrt_


def run(kind, settings, states):
    random = Random(42)
    param = torch.nn.Parameter(torch.tensor(numpy.array([random.unit() for _ in range(ELEMS)])))
    optimizer = kind([param], foreach=False, **settings)
    for _ in range(STEPS):
        param.grad = torch.tensor(numpy.array([random.wide() for _ in range(ELEMS)]))
        optimizer.step()
    return [param.detach()] + [optimizer.state[param][name] for name in states]


def table(tensor):
    words = [f"0x{w:08x}" for w in tensor.numpy().view(numpy.uint32)]
    return "{ " + ",\n      ".join(", ".join(words[i:i + 9]) for i in range(0, len(words), 9)) + " }"


def main():
    torch.set_num_threads(1)
    print(f"/* Made by make_optimizers.py with PyTorch {torch.__version__}. */")
    for name, kind, settings, states in CASES:
        correct_roots(True)
        exact = run(kind, settings, states)
        correct_roots(False)
        own = run(kind, settings, states)
        beta1, beta2 = settings.get("betas", (0.9, 0.999))
        eps = 1e-6 if kind is torch.optim.Adadelta else 1e-8
        which = {"SGD": "SGD", "Adam": "ADAM", "AdamW": "ADAMW", "Adadelta": "ADADELTA"}[kind.__name__]
        print(f'{{ "{name}", TESS_OPT_{which}, {len(states)}, {settings["lr"]}f, '
              f'{settings.get("weight_decay", 0.0)}f, {settings.get("momentum", 0.0)}f, {beta1}f, {beta2}f, {eps}f, '
              f'{settings.get("rho", 0.9)}f,\n    {{')
        print(",\n    ".join(table(t) for t in exact), "},\n    " + table(own[0]) + " },")


main()
