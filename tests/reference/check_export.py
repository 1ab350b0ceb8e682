#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Exports every family with `tessera`, loads the folders in transformers, and compares every tensor.

python check_export.py TESSERA DATA_DIR (needs torch, transformers, safetensors). For each of DATA_DIR/hf-*: a run of one
step at rate 0 exports the parameters as they were loaded; transformers must load exactly the tensors of the original,
and the logits of both models must be equal. Models made from nothing, and `tessera ckpt export`, are loaded too.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM


def run(tessera, *words):
    subprocess.run([tessera, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    wrong = {k: v for k, v in info.items() if v}
    assert not wrong, f"{folder}: {wrong}"
    assert model.dtype == torch.float32 or "hf-" in folder.name, model.dtype
    return model.float().eval()


def compare(name, ours, theirs):
    a, b = ours.state_dict(), theirs.state_dict()
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    for key in a:
        assert torch.equal(a[key], b[key]), f"{name}: {key} differs"
    tokens = torch.arange(12).reshape(1, 12)
    with torch.no_grad():
        assert torch.equal(ours(tokens).logits, theirs(tokens).logits), f"{name}: logits differ"
    print(f"{name}: {len(a)} tensors equal, logits equal")


def main(tessera, data):
    out = pathlib.Path(tempfile.mkdtemp())
    (out / "t.bin").write_bytes(bytes(i % 64 if i % 2 == 0 else 0 for i in range(2000)))
    common = ["--context", 16, "--batch", 1, "--steps", 1, "--lr", 0, "--data", out / "t.bin", "--quiet"]
    for folder in sorted(f for f in data.glob("hf-*") if f.is_dir()):
        model = json.loads((folder / "config.json").read_text())["model_type"].removesuffix("_text")
        (out / folder.name).mkdir()
        run(tessera, "train", model, "--model", folder, *common, "-n", 2, "--export", out / folder.name / "a",
            "--save", out / f"run-{folder.name}")
        run(tessera, "ckpt", "export", out / f"run-{folder.name}", out / folder.name / "b", "--max-file", "8KiB")
        original = load(folder)
        compare(f"{folder.name}, train --export", load(out / folder.name / "a"), original)
        compare(f"{folder.name}, ckpt export in pieces", load(out / folder.name / "b"), original)
    for model in ("llama", "gpt2", "qwen2", "qwen3", "mistral", "gemma2", "gemma3"):
        run(tessera, "train", model, "--layers", 2, "--heads", 2, "--width", 32, "--context", 16, "--steps", 2,
            "--batch", 2, "--quiet", "--export", out / model)
        print(f"{model} from nothing: {sum(p.numel() for p in load(out / model).parameters())} parameters load")


if __name__ == "__main__":
    os.environ.setdefault("TESSERA_LOG", "error")
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
