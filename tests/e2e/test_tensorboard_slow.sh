#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 1200
# TensorBoard's own reader has every value of a run, and forgets what a resumed run repeats. The Python is PYTHON or
# one from PyPI (tests/support/python.sh).
set -eu
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/python.sh"
need_python tensorboard
head -c 4000 "$SOURCE/core/layout/layout.c" >text.txt
train() { expect 0 "$TESSERA" train gpt --data text.txt --layers 1 --heads 2 --width 32 --context 16 --batch 2 --sample 0 --quiet --tensorboard board "$@"; }
train --steps 10 --eval-every 5 --save run --save-every 6 --json=first.json
sleep 1.1 # files are read in the order of their names, which have the second
train --steps 12 --eval-every 5 --resume run/step-000006 --json=second.json
cat >read.py <<'END'
import json, math, struct, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
board = EventAccumulator("board", size_guidance={"scalars": 0, "tensors": 0}).Reload()
def events(path, kind): return [e for e in map(json.loads, open(path)) if e["event"] == kind]
f32 = lambda x: struct.unpack("f", struct.pack("f", x))[0]
steps = [e for e in events("first.json", "step") if e["step"] <= 6] + events("second.json", "step")
held = [e for e in events("first.json", "validation") if e["step"] <= 6] + events("second.json", "validation")
for tag, of, member in (("train/loss", steps, "loss"), ("train/lr", steps, "lr"), ("train/grad_norm", steps, "grad_norm"),
                        ("validation/loss", held, "loss"), ("validation/accuracy", held, "accuracy")):
    got = [(s.step, s.value) for s in board.Scalars(tag)]
    want = [(e["step"], f32(e[member])) for e in of]
    assert got == want, (tag, got, want)
assert len(steps) == 12 and all(s.value > 0 for s in board.Scalars("train/tokens_per_second"))
peak = events("second.json", "summary")[0]["peak_device_bytes"]
assert board.Scalars("memory/device_peak_bytes")[-1].value == f32(peak)
text = board.Tensors("run")[0].tensor_proto.string_val[0].decode()
assert "| model | gpt |" in text and "| schedule | cosine |" in text, text
print("TensorBoard", __import__("tensorboard").__version__, "reads", board.Tags()["scalars"])
END
"$python" read.py 2>read.err || fail "$(cat read.err)"
