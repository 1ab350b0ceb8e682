#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes tests/matrix/expected: the digests of the toy (tests/support/toy.c) after three steps, from NumPy alone.

    python3 -m venv env && env/bin/pip install numpy
    env/bin/python tests/reference/toy.py > tests/matrix/expected

Nothing of Tessera takes part. A line is the shape, the key of tests/matrix/test_matrix.c, and the digest. The runs are
of 1 to 4 ranks with one microbatch each, in fp32, by AdamW. Every operation is rounded to fp32 as docs/numbers.md
says; a sum of many is made in the order of the elements, and of ranks in the tree."""
import numpy
from numpy import float32, float64

WIDTH, STEPS, LR, BETA1, BETA2, EPS = 8, 3, 0.01, 0.9, 0.999, 1e-8
SCOPES = ["embed", "h.0", "h.1", "h.2", "head"]
NAMES = ["embed.weight", "h.0.weight", "h.0.bias", "h.1.weight", "h.1.frozen", "h.2.scale", "head.bias"]
SHAPES = {
    "small": [13 * 7, 37 * 5, 3, 128 * 2, 9 * 3, 1, 70],
    "large": [1301 * 63, 3701 * 45, 16411, 12801 * 27, 901 * 31, 17011, 70003],
}
TRAINED = [name for name in NAMES if name != "h.1.frozen"]
MASK = (1 << 64) - 1


def held_by(scope):
    own = [name for name in NAMES if name.rsplit(".", 1)[0] == scope]
    return own + ["embed.weight"] if scope == "head" else own


def initial(name, elems):
    seed = 0
    for c in name.encode():
        seed = (seed * 131 + c) & MASK
    x = (numpy.arange(elems, dtype=numpy.uint64) + numpy.uint64(seed)) * numpy.uint64(0x9E3779B97F4A7C15)
    x ^= x >> numpy.uint64(29)
    return ((x >> numpy.uint64(40)) % numpy.uint64(1000)).astype(float32) / float32(1000) - float32(0.5)


def share(elems):
    return ((numpy.arange(elems) * 271 + 400) % 1009 + 1).astype(float32) * float32(0.0001)


def in_order(start, terms):
    """start + terms[0] + terms[1] …, each sum rounded."""
    return numpy.add.accumulate(numpy.concatenate(([start], terms)).astype(float32))[-1]


def positions(elems):
    e = numpy.arange(elems)
    return e % WIDTH, e // WIDTH % WIDTH  # to and from


def forward(params, names, x):
    y = numpy.empty(WIDTH, float32)
    for j in range(WIDTH):
        total = float32(0.5) * x[j]
        for name in names:
            p = params[name][j::WIDTH]
            total = in_order(total, p * x[positions(params[name].size)[1][j::WIDTH]] * share(params[name].size)[j::WIDTH])
        y[j] = total / (float32(1) + abs(total))
    return y


def backward(params, grads, names, x, y, dy):
    slope = (float32(1) - abs(y)) * (float32(1) - abs(y))
    d = dy * slope
    dx = float32(0.5) * d
    for name in names:
        to, source = positions(params[name].size)
        weight = share(params[name].size)
        terms = d[to] * params[name] * weight
        for j in range(WIDTH):
            dx[j] = in_order(dx[j], terms[source == j])
        if name in TRAINED:
            grads[name] = grads[name] + d[to] * x[source] * weight
    return dx


def gradients(params, microbatch):
    grads = {name: numpy.zeros_like(params[name]) for name in TRAINED}
    x = [numpy.array([float32((microbatch + 1) * (j + 3) * 7919 % 97) / float32(97) - float32(0.4) for j in range(WIDTH)])]
    for scope in SCOPES:
        x.append(forward(params, held_by(scope), x[-1]))
    dy = x[-1] - numpy.array([0.3 if j % 2 else -0.2 for j in range(WIDTH)], float32)
    for k in reversed(range(len(SCOPES))):
        dy = backward(params, grads, held_by(SCOPES[k]), x[k], x[k + 1], dy)
    return grads


def tree(values):
    if len(values) == 1:
        return values[0]
    half = 1 << (len(values) - 1).bit_length() - 1
    return tree(values[:half]) + tree(values[half:])


def fused(a, b, c):
    """a b + c rounded once: the product is exact in fp64, and the sum there is rounded to odd."""
    product, c = a.astype(float64) * b.astype(float64), c.astype(float64)
    total = product + c
    back = total - product
    lost = (product - (total - back)) + (c - back)
    even = total.view(numpy.uint64) & numpy.uint64(1) == 0
    odd = numpy.nextafter(total, numpy.where(lost > 0, numpy.inf, -numpy.inf))
    return numpy.where((lost != 0) & even, odd, total).astype(float32)


def adamw(p, m, v, g, step):
    w, b = float32(1 - BETA1), float32(1 - BETA2)
    m1 = fused(numpy.full_like(m, w), g - m, m)
    v1 = fused(b * g, g, v * float32(BETA2))
    root = float32((1 - BETA2**step) ** 0.5)
    denominator = numpy.sqrt(v1) / root + float32(EPS)
    return p + float32(-(LR / (1 - BETA1**step))) * m1 / denominator, m1, v1


def digest(params):
    h = 14695981039346656037
    for name in NAMES:
        for byte in params[name].tobytes():
            h = (h ^ byte) * 1099511628211 & MASK
    return h


def train(shape, ranks):
    params = {name: initial(name, elems) for name, elems in zip(NAMES, SHAPES[shape])}
    states = {name: [numpy.zeros_like(params[name])] * 2 for name in TRAINED}
    for step in range(STEPS):
        each = [gradients(params, step * ranks + rank) for rank in range(ranks)]
        for name in TRAINED:
            g = tree([grads[name] for grads in each]) * float32(1 / ranks)
            params[name], *states[name] = adamw(params[name], *states[name], g, step + 1)
    return digest(params)


def main():
    print("# Made by tests/reference/toy.py with NumPy: shape, key, digest.")
    for shape in SHAPES:
        for ranks in range(1, 5):
            digest = f"{train(shape, ranks):016x}"
            print(f"{shape} fp32/adamw/1/off/{ranks} ranks, 1|{digest}")
            print(f"{shape} fp32/adamw/1/off/{ranks} microbatches|{digest}")  # deterministic: the same tree


if __name__ == "__main__":
    main()
