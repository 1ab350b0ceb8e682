#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# processors: 2
# The timeline of GPUs, on the doubles: collectives and transfers are in it although no thread waits for them, and times are
# those of the streams, where work is slow, not of the host, which queues it at once.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libnccl.so.2 tests/doubles/libcublas.so.13 plugins/libtessera-comm-nccl.so
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
gpt="gpt $(brief_text) --batch 2 --layers 2 --heads 2 --width 16 --context 8 --steps 2"

delay=800 expect 0 on_double "$TESSERA" train $gpt -n 2 --device cuda --json=run.json
expect 0 on_double "$TESSERA" train $gpt -n 2 --device cuda --offload cpu --activations offload --json=offload.json
# Rank 0 writes the spans of its second step. A step has six reductions; the second one there, of the last layer, waits until the
# gather behind it, of the first layer, has passed.
TESSERA_DOUBLE_LOG=calls TESSERA_DOUBLE_OVERTAKE=ncclReduceScatter:8:60@0 expect 0 on_double "$TESSERA" train \
  ${gpt/--layers 2/--layers 3} -n 2 --device cuda --json=apart.json
grep -qx "0 ncclReduceScatter 12" calls || fail "a step has other reductions than six: $(grep Reduce calls)"
grep -qx "0 reductions-overtaken 1" calls || fail "no gather passed the reduction that waits"
cat >look.py <<'PY'
import json, sys
def spans(file):
    return [e for e in map(json.loads, open(file)) if e["event"] == "span"]
def end(s):
    return s["start"] + s["seconds"]
run = spans("run.json")
of = lambda lane, op: [s for s in run if s["lane"] == lane and s["op"] == op]
gathers, waits = of("communication", "all_gather"), of("compute", "wait_all_gather")
units = {s["unit"] for s in run if s["unit"] and s["op"] in ("forward", "backward")}
assert gathers and of("communication", "reduce_scatter"), "no collectives in %s" % {(s["lane"], s["op"]) for s in run}
assert all(s["seconds"] >= 0 and s["start"] >= 0 for s in run), "a span ends before it begins"
# One communicator does one thing after another; reductions have one of their own.
for reduces in (0, 1):
    comm = sorted((s for s in run if s["lane"] == "communication" and (s["op"] == "reduce_scatter") == reduces),
                  key=lambda s: s["start"])
    for a, b in zip(comm, comm[1:]):
        assert end(a) <= b["start"] + 1e-5, "collectives overlap: %s, %s" % (a, b)
# A wait ends with the collective that it is for.
for w in waits:
    before = [g for g in gathers if g["unit"] == w["unit"] and g["start"] <= end(w) + 1e-6]
    assert before, "a wait without its all_gather: %s" % w
    assert abs(end(before[-1]) - end(w)) <= 1e-6, "%s does not end with %s" % (w, before[-1])
compute = sorted((s for s in run if s["lane"] == "compute" and s["op"] in ("forward", "backward")), key=lambda s: s["start"])
for a, b in zip(compute, compute[1:]):
    assert end(a) <= b["start"] + 1e-5, "blocks overlap: %s, %s" % (a, b)
# With pauses of 0.4 ms on average in a quarter of some hundred pieces of work, blocks take many milliseconds in all; the host
# queues them in less than one.
total = sum(s["seconds"] for s in compute)
assert total > 4e-3, "blocks take no time: %s" % [s["seconds"] for s in compute]
apart = [s for s in spans("apart.json") if s["lane"] == "communication"]
held, = (s for s in apart if s["op"] == "reduce_scatter" and s["unit"] == "h.2")
passed = [s for s in apart if s["op"] == "all_gather" and s["unit"] == "h.0"][-1]
assert held["start"] <= passed["start"] < end(held), "%s does not pass %s" % (passed, held)
moved = {(s["lane"], s["op"]) for s in spans("offload.json") if s["lane"] in ("transfer_up", "transfer_down")}
assert {l for l, o in moved} == {"transfer_up", "transfer_down"}, "no transfers in the timeline: %s" % moved
PY
python3 look.py 2>why || fail "$(tail -1 why)"
echo "collectives, blocks and transfers of GPUs are in the timeline, by the streams' own times"
