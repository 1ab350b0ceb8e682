#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# peft loads the adapters that training writes, for Llama and for GPT-2, beside the base that they were trained on. Its logits
# are those of the merged model that transformers loads. The Python is PYTHON or one from PyPI
# (tests/support/python.sh).
set -eu
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/python.sh"
need_python torch transformers peft
"$python" -c 'import peft, torch, transformers; print("peft", peft.__version__, "torch", torch.__version__, "transformers", transformers.__version__)'
printf "$(awk 'BEGIN { for (i = 0; i < 3000; i++) printf "\\%03o\\000", (i * i + 7 * i) % 61 }')" >nano.bin
train() { # MODEL BASE LORA
  cp -r "$SOURCE/tests/reference/data/$2" "base-$2"
  local common="--model base-$2 --context 16 --batch 2 --data nano.bin --token-bits 16 --quiet -n 2"
  expect 0 "$TESSERA" train "$1" $common --lora "$3" --steps 5 --lr 0.01 --export "adapters-$2"
  expect 0 "$TESSERA" train "$1" $common --lora "adapters-$2" --steps 0 --export "merged-$2" --merge
}
train llama hf-llama rank=4,alpha=8,targets=q_proj,v_proj,down_proj
train llama hf-llama-tied rank=2,alpha=3,targets=all-linear,rslora
train gpt2 hf-gpt2 rank=3,alpha=6,targets=c_attn,c_proj
cat >check.py <<'END'
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

tokens = torch.arange(32).reshape(2, 16)
for name in ("hf-llama", "hf-llama-tied", "hf-gpt2"):
    base = AutoModelForCausalLM.from_pretrained(f"base-{name}", dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(f"merged-{name}", dtype=torch.float32)
    with torch.no_grad():
        plain = base(tokens).logits
        model = PeftModel.from_pretrained(base, f"adapters-{name}")
        adapted, expected = model(tokens).logits, merged(tokens).logits
    held = [n for n, _ in model.named_parameters() if "lora_" in n]
    assert held and (adapted - plain).abs().max() > 1e-3, "the adapters change nothing"
    off = (adapted - expected).abs().max().item()
    assert off < 1e-5, (name, off)
    print(name, len(held), "tensors loaded by peft; its logits and the merged model's differ by", off)
END
"$python" check.py
