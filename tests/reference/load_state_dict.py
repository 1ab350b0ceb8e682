#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Loads in PyTorch what examples/torch/decoder has trained, by load_state_dict.

python load_state_dict.py TESSERA DECODER (needs torch, safetensors). DECODER, which is decoder_sharded, trains on two ranks;
`tessera ckpt export` writes its parameters. The same model in Python takes them: every name, every shape. Its evaluation
on the same batch must be the one that DECODER has printed.
"""
import math
import os
import subprocess
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, CONTEXT, BATCH, HEADS, LAYERS, WIDTH = 256, 64, 8, 4, 2, 32


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4)
        later = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        a = (q @ k.transpose(-2, -1) / math.sqrt(C // HEADS)).masked_fill(later, -math.inf).softmax(-1)
        x = x + self.drop(self.proj((a @ v).transpose(1, 2).reshape(B, T, C)))
        return x + self.drop(self.out(F.gelu(self.fc(self.ln2(x)))))


class Decoder(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.embed = nn.ModuleDict({"tokens": nn.Embedding(VOCABULARY, width), "positions": nn.Embedding(CONTEXT, width)})
        for table in self.embed.values():
            nn.init.normal_(table.weight, 0, 0.02)
        self.h = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.ModuleDict({"norm": nn.LayerNorm(width)})

    def forward(self, ids):
        x = self.embed["tokens"](ids) + self.embed["positions"](torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        return self.head["norm"](x) @ self.embed["tokens"].weight.t()


def pick(text, number):
    torch.manual_seed(1000 + number)
    places = torch.randint(len(text) - CONTEXT, (BATCH,))
    return torch.stack([text[at : at + CONTEXT] for at in places]), torch.stack([text[at + 1 : at + CONTEXT + 1] for at in places])


def check(tessera, decoder):
    from safetensors.torch import load_file  # torch_fsdp2.py does without

    data = "".join(f"{n}\n" for n in range(5000)).encode()
    open("text", "wb").write(data)
    words = [tessera, "run", "-n", "2", "--", decoder, "text", "20", str(LAYERS), str(WIDTH)]
    out = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    theirs = float(out.split("evaluation ")[1].split()[0])
    subprocess.run([tessera, "ckpt", "export", "decoder", "folder"], check=True, stdout=subprocess.DEVNULL)
    saved = load_file("folder/model.safetensors")
    model = Decoder(LAYERS, WIDTH).eval()
    model.load_state_dict(saved)  # strict: exactly these names, and these shapes
    for name, value in model.state_dict().items():
        assert value.dtype == saved[name].dtype and torch.equal(value, saved[name]), name
    x, y = pick(torch.tensor(list(data)), 1000000)
    with torch.no_grad():
        ours = F.cross_entropy(model(x).view(-1, VOCABULARY), y.view(-1)).item()
    assert abs(ours - theirs) <= 1e-5 * theirs, (ours, theirs)
    print(f"{len(saved)} tensors by load_state_dict; evaluation {ours:.9g} here, {theirs:.9g} there")


def main():
    tessera, decoder = map(os.path.abspath, sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        check(tessera, decoder)


if __name__ == "__main__":
    main()
