#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# The Python package safetensors reads every file that is written here, and transformers' loader every folder: data files of
# checkpoints of gpt, convbn and llama, exports in one file, in several, in bf16, and of training. The pieces put together,
# the exports and what transformers holds are equal, element for element. What Python writes, in several files, bf16 and
# fp16 included, is imported to the same values. The Python is PYTHON or one from PyPI (tests/support/python.sh).
set -eu
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/python.sh"
need_python torch numpy safetensors transformers
"$python" -c 'import numpy, safetensors, torch, transformers; print("numpy", numpy.__version__, "safetensors", safetensors.__version__, "torch", torch.__version__, "transformers", transformers.__version__)'

common="--threads 1 --quiet --steps 2 --save-every 2"
expect 0 "$TESSERA" train convbn --image-size 15 --hidden 8 --batch 2 -n 3 $common --save convbn --export convbn-trained
expect 0 "$TESSERA" train gpt --layers 2 --heads 2 --width 32 --context 16 --batch 2 -n 4 --strategy hybrid:2 $common --save gpt --export gpt-trained
cat >llama.json <<'END'
{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,
"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":256,"max_position_embeddings":64,"rms_norm_eps":1e-5,"rope_theta":10000.0,
"hidden_act":"silu","tie_word_embeddings":false}
END
cat >gpt2.json <<'END'
{"model_type":"gpt2","architectures":["GPT2LMHeadModel"],"n_embd":64,"n_layer":2,"n_head":4,"n_positions":64,"n_ctx":64,"vocab_size":256,
"activation_function":"gelu_new","layer_norm_epsilon":1e-5}
END
for name in llama gpt2; do
  expect 0 "$TESSERA" train $name --config $name.json --context 32 --batch 1 -n 2 $common --save $name --export $name-trained
done
for name in convbn gpt llama gpt2; do
  expect 0 "$TESSERA" ckpt export $name $name-one
  expect 0 "$TESSERA" ckpt export $name $name-many --max-file 40KiB
  expect 0 "$TESSERA" ckpt export $name $name-half --dtype bf16
done
cat >check.py <<'END'
import glob, json, os, sys, torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

def folder(path):
    out = {}
    for f in sorted(glob.glob(path + "/*.safetensors")):
        out.update(load_file(f))
    index = path + "/model.safetensors.index.json"
    if os.path.exists(index):
        named = json.load(open(index))["weight_map"]
        assert set(named) == set(out), "the index names other tensors"
        for name, file in named.items():
            with safe_open(path + "/" + file, "pt") as f:
                assert f.metadata().get("format") == "pt", file
                assert name in f.keys(), (name, file)
    return out

def pieces(path):  # of a checkpoint: whole parameters, flat
    parts = {}
    for f in sorted(glob.glob(path + "/step-*/data-*.safetensors")):
        with safe_open(f, "pt") as x:
            for key in x.keys():
                kind, _, rest = key.partition("/")
                name, _, first = rest.rpartition("@")
                if kind in ("param", "buffer"):
                    parts.setdefault(name, []).append((int(first), x.get_tensor(key)))
    return {n: torch.cat([t for _, t in sorted(p, key=lambda q: q[0])]) for n, p in parts.items()}

def same(a, b, what):
    assert set(a) == set(b), (what, set(a) ^ set(b))
    for n in a:
        assert a[n].shape == b[n].shape and torch.equal(a[n], b[n]), (what, n)

total = 0
for name in ("convbn", "gpt", "llama", "gpt2"):
    one, many, half, trained = (folder(f"{name}-{k}") for k in ("one", "many", "half", "trained"))
    same(one, many, name + " in several files")
    same(one, trained, name + " of training")
    floats = {n: t for n, t in one.items() if half[n].dtype == torch.bfloat16}
    assert floats
    same({n: t.bfloat16() for n, t in floats.items()}, {n: half[n] for n in floats}, name + " in bf16")
    flat = pieces(name)
    if name in ("convbn", "gpt"):
        assert set(flat) == set(one), set(flat) ^ set(one)
        for n in one:
            assert torch.equal(flat[n], one[n].flatten()), n
    else:
        assert sum(t.numel() for t in flat.values()) == sum(t.numel() for t in one.values()), name
    total += len(one)
    print(name, len(one), "tensors; checkpoint, one file, several, bf16 and training agree")

from transformers import AutoModelForCausalLM
for name in ("llama", "gpt2"):
    for kind in ("one", "many", "half", "trained"):
        dtype = torch.bfloat16 if kind == "half" else torch.float32
        model, said = AutoModelForCausalLM.from_pretrained(f"{name}-{kind}", torch_dtype=dtype, output_loading_info=True)
        assert not said["missing_keys"] and not said["unexpected_keys"] and not said["mismatched_keys"], said
        held, read = model.state_dict(), folder(f"{name}-{kind}")
        for n, t in read.items():
            n = n if n in held else "transformer." + n
            assert torch.equal(held[n], t.to(held[n].dtype)), (name, kind, n)
        logits = model(torch.arange(8).reshape(1, 8)).logits
        assert torch.isfinite(logits).all()
    print(name, "loaded by transformers from all four folders")

# What Python writes: two files with an index, one in fp16; and one in bf16.
one = folder("gpt-one")
names = sorted(one)
os.makedirs("theirs", exist_ok=True); os.makedirs("theirs-half", exist_ok=True)
first, second = names[::2], names[1::2]
save_file({n: one[n] for n in first}, "theirs/model-00001-of-00002.safetensors", {"format": "pt"})
save_file({n: one[n].half() for n in second}, "theirs/model-00002-of-00002.safetensors", {"format": "pt"})
json.dump({"metadata": {}, "weight_map": {**{n: "model-00001-of-00002.safetensors" for n in first}, **{n: "model-00002-of-00002.safetensors" for n in second}}}, open("theirs/model.safetensors.index.json", "w"))
save_file({n: one[n].bfloat16() for n in names}, "theirs-half/model.safetensors", {"format": "pt"})
END
"$python" check.py
for name in theirs theirs-half; do
  expect 0 "$TESSERA" ckpt import $name $name-back
  expect 0 "$TESSERA" ckpt verify $name-back
  expect 0 "$TESSERA" ckpt export $name-back $name-out
done
cat >back.py <<'END'
import glob, torch
from safetensors.torch import load_file
def folder(path):
    out = {}
    for f in glob.glob(path + "/*.safetensors"):
        out.update(load_file(f))
    return out
for name in ("theirs", "theirs-half"):
    a, b = folder(name), folder(name + "-out")
    assert set(a) == set(b)
    assert all(torch.equal(a[n].float(), b[n].float()) for n in a), name
print("what Python wrote was imported to the same values, fp32, fp16 and bf16")
END
"$python" back.py
