#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 1500
# tests/gpu/run, the command for a machine with a GPU, with the doubles: every part runs and passes; one that fails is told by
# its exit code.
. "$SOURCE/tests/e2e/lib.sh"
[ -x "$BUILD/tests/gpu/gpu_bench" ] || { echo "skipped: no CUDA toolkit in this build"; exit 77; }
[ -z "${SANITIZE:-}" ] || { echo "skipped: the same parts run by themselves under a sanitizer"; exit 77; }
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
# compute-sanitizer for the script's sake: what it was asked, a tool that finds something, one that does not look.
mkdir bin
cat >bin/compute-sanitizer <<'SH'
#!/bin/bash
[ "$1" != --help ] || { echo "  --${FILTER:-kernel-name} arg"; exit; }
echo "$* with $TESSERA_DEVICE" >>"$SANITIZED"
tool=$2
echo "+ $tool" >>"$SANITIZED.order"
trap 'echo "- $tool" >>"$SANITIZED.order"' EXIT
[ "$tool" != "${FINDS:-}" ] || { echo "========= ERROR SUMMARY: 1 error"; exit 9; }
if [ "$tool" = "${BREAKS:-}" ]; then
  echo "========= Internal Sanitizer Error: The Sanitizer failed to handle a hardware exception."
  echo "tessera: error: ${BREAKS_AT:-cuBLAS: product of 128 x 64 by 64 x 64: the function failed to launch on the GPU}"
  echo "========= RACECHECK SUMMARY: ${BREAKS_AS:-1 hazard displayed (1 error, 0 warnings)}"
  exit 9
fi
while [[ $1 != /* ]]; do shift; done
[ "$tool" != memcheck ] || "$@" || exit # the same for each tool: once
[ "$tool" != "${BLIND:-}" ] || exit 0
if [ "$tool" = racecheck ]; then
  echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
else
  echo "========= ERROR SUMMARY: 0 errors"
fi
SH
# And nsys: what it was asked, what it profiles runs, and its names are those of NVTX.
cat >bin/nsys <<'SH'
#!/bin/bash
echo "$*" >>"$PROFILED"
case $1 in
profile)
  shift 6
  "${@:2}" || exit
  if [ -z "${NO_REPORT:-}" ] || [ "$3 $NO_REPORT" = "--version of a run" ]; then touch "$1.nsys-rep"; else touch "$1.qdstrm" && exit 1; fi
  ;;
stats) echo '0.1,100,"forward of ""h.0"""' ;;
esac
SH
# And ncu, whose csv has two steps and what comes behind them.
cat >bin/ncu <<'SH'
#!/bin/bash
while [ "$1" != --log-file ]; do shift; done
log=$2
shift 2
"$@" || exit
echo "==PROF== Connected to process 7"
{
  echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
  n=0
  for name in embed adamw_f32 embed 'void a::product<a::wide, (int)3>(T1::Params)' attend adamw_f32 attend adamw_f32 embed_slopes adamw_f32 embed attend; do
    case $name in void*) ;; adam*) name=tess_cuda_$name ;; *) name=tess_ops_$name ;; esac
    echo "\"$n\",\"$name\",\"dram__bytes.sum\",\"Mbyte\",\"1,000\""
    echo "\"$((n++))\",\"$name\",\"gpu__time_duration.sum\",\"us\",\"500\""
  done
} >"$log"
SH
chmod +x bin/*
export PROFILED=$PWD/profiled
export SANITIZED=$PWD/sanitized
OUT=$PWD/results expect 0 env PATH="$PWD/bin:$PATH" "$SOURCE/tests/gpu/run" --minutes 20 --doubles "$BUILD" --only '[!c]*'
for tool in memcheck racecheck initcheck synccheck; do
  parts="ops engine offload hooks" filter="--kernel-name kns=tess_ "
  [ $tool != initcheck ] || filter= # which has to see what cuBLAS writes
  [ $tool != racecheck ] || parts="$parts kernels" filter="--check-bulk-copy no --check-warpgroup-mma no "
  for what in $parts; do
    grep -Eq "^$tool-$what +[0-9]+ s  ok$" out || fail "no line that $tool-$what is ok: $(cat out)"
  done
  [ "$(grep -c -- "^--tool $tool --target-processes all --error-exitcode 9 $filter/.* with cuda$" sanitized)" = "$(wc -w <<<"$parts")" ] ||
    fail "$tool was not asked for $parts: $(cat sanitized)"
done
# What takes no times runs side by side.
awk '/^[+]/ { if (++n > most) most = n } /^-/ { n-- } END { exit most < 2 }' sanitized.order || fail "tools ran one after the other: $(cat sanitized.order)"
first_time=$(grep -n '^gpt-bf16 ' results/table | cut -d: -f1)
for part in test_cuda_ops test_cuda_layer test_cuda_llama test_cuda_fp8 test_cuda_models matrix; do
  [ "$(grep -n "^$part " results/table | cut -d: -f1)" -lt "$first_time" ] || fail "$part comes after times: $(cat results/table)"
done
for part in test_cuda_ops test_cuda_layer test_cuda_llama test_cuda_fp8 test_cuda_models gpt2-bf16 gpt2-fp16 llama-bf16 llama-fp8 mnist gpt-bf16-all graphs gpu_bench nsys nsys-names; do
  grep -Eq "^$part +[0-9]+ s  ok$" out || fail "no line that $part is ok: $(cat out)"
done
grep -q "FAILED" out && fail "a part failed: $(cat out)"
for line in "both in one launch" "loss and gradient of 256 classes" embedding rotation "SwiGLU's backward"; do
  grep -Eq "^  $line +[0-9.]+ +[0-9.]+ +[0-9.]+ GB/s" out || fail "gpu_bench has no line of $line: $(cat out)"
done
# No more files than a lent machine gives back: eight.
[ "$(ls results | tr '\n' ' ')" = "launches logs.tgz steps.nsys-rep table " ] || fail "there are: $(ls results)"
grep -q "^gpu_bench .* ok$" results/table || fail "the table: $(cat results/table)"
for log in memcheck-hooks.log gpt-bf16.json gpu_bench.log; do
  tar -tzf results/logs.tgz | grep -qx "./$log" || fail "no $log among the logs: $(tar -tzf results/logs.tgz)"
done
grep -q "^profile -t cuda,nvtx .* train gpt " profiled && grep -q "^stats .*steps.nsys-rep$" profiled || fail "nsys: $(cat profiled)"
grep -Eq "^  step [0-9.]+ ms, peak [0-9]+ MiB of device memory as planned" out || fail "no step time: $(cat out)"
# The last whole step of what ncu saw, which has its optimizer beside backward. A name keeps the arguments that tell it from others.
printf '%s\n' "8 launches of a step, 4.000 ms by ncu, one at a time" "tess_cuda_adamw_f32 3 1.500 ms 37.5 % 2000 GB/s" \
  "tess_ops_attend 2 1.000 ms 25.0 % 2000 GB/s" >step
for name in tess_ops_embed "a::product<a::wide, (int)3>" tess_ops_embed_slopes; do echo "$name 1 0.500 ms 12.5 % 2000 GB/s" >>step; done
expect 0 diff step <(sed '/^$/,$d; s/  */ /g' results/launches)
expect 0 diff <(sed 's/  */ /g; s/^/ /' step) <(sed 's/  */ /g' results/table | grep -A 5 "^ 8 launches of a step")
grep -q "^tess_ops_embed_slopes  *500.000 us  *1000000000 bytes$" results/launches || fail "no line of each launch: $(cat results/launches)"
tar -xzOf results/logs.tgz ./launches.csv | head -n 7 >one.csv
expect 1 "$SOURCE/tests/gpu/launches" one.csv
one_line out "ncu saw 1 step end, and two are needed"
echo "fsdp2 offload=0 recompute=0 compile=0 params=1 step_ms=10.0 peak_reserved_mib=100 loss=1.0" >fsdp2.log
printf '%s\n' '{"event": "timing", "step_seconds": 0.004}' '{"event": "summary", "peak_device_bytes": 52428800}' >ours.json
expect 0 "$SOURCE/tests/gpu/summary" ours.json fsdp2.log 0.7
one_line out "tessera over it: step 0.40 (at most 0.7 is wanted), peak of memory 0.50"

has_line results/table 'llm\.c: left out, its sources are not given \(--llm\.c DIR\)'
mkdir llmc && touch llmc/train_gpt2.cu # one that prints what the real one does
printf 'train_gpt2cu:\n\tcp ../said train_gpt2cu && chmod +x train_gpt2cu\n' >llmc/Makefile
cat >said <<'SH'
#!/bin/bash
[ "$(od -An -tx4 -N8 "$2" | tr -d ' ')" = 0134d88800000001 ] || exit 1 # as its reader expects
for i in 1 2 3 4 5; do
  echo "step    $i/5 | loss 3.208939 (+nanz)| norm 1.4800 (+nanz)| lr 3.00e-04 | $((90 - 10 * i)).00 ms | 40.0% bf16 MFU | 91886 tok/s"
done
SH
OUT=$PWD/results expect 0 "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only '[lg][lp][mt]*[c6]' --llm.c "$PWD/llmc"
grep -Eq "^llm.c +[0-9]+ s  ok$" out && grep -q "^  llm.c step 45.00 ms, 182044 tokens/s$" out || fail "llm.c's steps are not told: $(cat out)"
grep -Eq "^  tessera over it: step [0-9.]+$" out || fail "no ratio to llm.c: $(cat out)"
rm llmc/train_gpt2cu
printf 'train_gpt2cu:\n\tfalse\n' >llmc/Makefile
OUT=$PWD/results LLMC=$PWD/llmc expect 1 "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only llm.c
expect 2 "$SOURCE/tests/gpu/run" --llm.c "$PWD/bin"
one_line err "tests/gpu/run: there is no train_gpt2.cu in $PWD/bin"

# A machine without Python: bytes are compared all the same, also where they are not those planned.
mkdir bare
for tool in bash env cat cut tr sed grep awk head tail tee tar gzip mktemp mkdir rm mv ls dirname realpath timeout date touch; do
  ln -s "$(command -v $tool)" bare/
done
OUT=$PWD/poor expect 0 env PATH="$PWD/bare" "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only mnist
grep -Eq "^mnist +[0-9]+ s  ok$" poor/table && grep -Eq "^  step [0-9.]+ s, peak [0-9]+ bytes" poor/table || fail "without Python: $(cat poor/table)"
sed -n '/^value_of()/p; /^summarise()/,/^}/p' "$SOURCE/tests/gpu/run" >summarise.sh
printf '%s\n' '{"event":"summary","peak_device_bytes":5,"planned_peak_device_bytes":6,"step_allocations":0,"loss":1}' >more.json
expect 1 env python= bash -c '. ./summarise.sh; summarise more.json'
grep -q "measured 5, planned 6; 0 allocations in steps" out || fail "more than planned: $(cat out)"

# A part that hangs is ended at its own limit with all that it began; the next one runs. Each result is in the table, and its log among
# the logs, before the next part begins. Where the minutes are over, a part is named as left out.
sed -n '/^part()/,/^note()/p' "$SOURCE/tests/gpu/run" >part.sh
cat >parts.sh <<'SH'
room=$PWD/room out=$PWD/parts logs=$PWD/room/logs doubles= only="*" minutes=1 began=$SECONDS
mkdir -p "$logs" "$out"
. ./part.sh
part 1 hangs bash -c 'sleep 60 & echo $! >child; wait'
cp "$out/table" before && tar -tzf "$out/logs.tgz" >logged
part 5 next true
began=$((SECONDS - 56))
part 5 late true
[ -e room/failed ]
SH
expect 0 bash parts.sh
grep -Eq "^hangs +[1-9] s  FAILED: longer than 1 s$" before && grep -qx ./hangs.log logged || fail "a part that hangs: $(cat before logged)"
gone "$(cat child)" || fail "what a part began goes on behind its limit"
grep -Eq "^next +0 s  ok$" parts/table || fail "the part behind one that hangs: $(cat parts/table)"
has_line parts/table "late: left out, the 1 minutes are over"

OUT=$PWD/failing TESSERA_DOUBLE_FAIL=cublasCreate:1 expect 1 "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only mnist
grep -Eq "^mnist .*FAILED.*cuBLAS does not start" out || fail "the failure is not told: $(cat out)"
OUT=$PWD/found FINDS=racecheck expect 1 env PATH="$PWD/bin:$PATH" "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only '[ri]*check-h*'
grep -Eq "^initcheck-hooks +[0-9]+ s  ok$" out || fail "a failure stopped what comes behind it: $(cat out)"
grep -Eq "^racecheck-hooks .*FAILED \(9\): ========= ERROR SUMMARY: 1 error" out || fail "what a tool finds is not told: $(cat out)"
OUT=$PWD/blind BLIND=initcheck expect 1 env PATH="$PWD/bin:$PATH" "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only 'initcheck-h*'
grep -Eq "^initcheck-hooks .*FAILED \(1\): initcheck has not said that it found nothing" out || fail "a tool that is blind: $(cat out)"
# A tool that breaks down at a product of cuBLAS is no failure of ours, and any other is.
export BREAKS=racecheck
OUT=$PWD/breaks expect 0 env PATH="$PWD/bin:$PATH" "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only 'racecheck-h*'
grep -Eq "^racecheck-hooks .*skipped: racecheck breaks down at a product of cuBLAS: Internal Sanitizer Error: " out || fail "a tool that breaks down: $(cat out)"
OUT=$PWD/breaks BREAKS_AT="attention: it failed" expect 1 env PATH="$PWD/bin:$PATH" "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only 'racecheck-h*'
OUT=$PWD/breaks BREAKS_AS="2 hazards displayed (2 errors, 0 warnings)" expect 1 env PATH="$PWD/bin:$PATH" "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only 'racecheck-h*'
unset BREAKS
: >sanitized # a sanitizer from before the filter had its name
OUT=$PWD/older FILTER=kernel-regex expect 0 env PATH="$PWD/bin:$PATH" "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only 'synccheck-h*'
grep -q -- "--kernel-regex kns=tess_ /" sanitized || fail "an older sanitizer was asked: $(cat sanitized)"
# An nsys that records and makes no report hides no run that fails.
OUT=$PWD/none NO_REPORT=all expect 0 env PATH="$PWD/bin:$PATH" "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only 'nsys*'
grep -Eq "^nsys .*skipped: .*/nsys makes no report of anything" out || fail "no report of anything: $(cat out)"
OUT=$PWD/none NO_REPORT="of a run" expect 0 env PATH="$PWD/bin:$PATH" "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only 'nsys*'
grep -Eq "^nsys .*skipped: .*/nsys recorded a run and made no report of it" out || fail "no report: $(cat out)"
[ "$(ls none | tr '\n' ' ')" = "logs.tgz table " ] || fail "there are: $(ls none)"
OUT=$PWD/none NO_REPORT="of a run" TESSERA_DOUBLE_FAIL=cublasCreate:1 expect 1 env PATH="$PWD/bin:$PATH" "$SOURCE/tests/gpu/run" \
  --doubles "$BUILD" --only 'nsys*'

# On several: NCCL between them, the digests, each strategy. Cells of as many ranks are selected, without Gloo.
OUT=$PWD/cells expect 0 "$SOURCE/tests/gpu/run" --minutes 20 --doubles "$BUILD" --gpus 8 --only matrix
grep -Eq "^matrix +[0-9]+ s  ok$" out || fail "--gpus 8: no line that matrix is ok: $(cat out)"
! tar -xzOf cells/logs.tgz ./matrix.log | grep -q gloo || fail "--gpus 8: cells over gloo"
OUT=$PWD/several expect 0 "$SOURCE/tests/gpu/run" --minutes 20 --doubles "$BUILD" --gpus 4 --only '[dgl]*'
for part in digests gpt2-bf16-4 llama-bf16-4 gpt-bf16-4-full gpt-bf16-4-hybrid gpt-bf16-4-offload; do
  grep -Eq "^$part +[0-9]+ s  ok$" out || fail "no line that $part is ok: $(cat out)"
done
expect 2 "$SOURCE/tests/gpu/run" --gpus none
one_line err 'tests/gpu/run: "none" is no number of 1 or more'
expect 2 "$SOURCE/tests/gpu/run" --nonsense
PATH=/usr/bin:/bin command -v nvidia-smi >/dev/null || {
  expect 3 env PATH=/usr/bin:/bin OUT="$PWD/none" "$SOURCE/tests/gpu/run"
  one_line err "tests/gpu/run: no GPU here (nvidia-smi names none)"
}
# Where configuring leaves CUDA out, no part could run. A toolkit's headers lie beside its nvcc.
mkdir -p without links toolkit/bin toolkit/include
printf '#!/bin/bash\necho "A GPU, 1 MiB, 580.1"\n' >without/nvidia-smi
printf '#!/bin/bash\necho "-- tessera: left out device-cuda: CUDA toolkit not found (nvcc, cuda.h)"\n' >without/cmake
touch toolkit/bin/nvcc toolkit/include/cuda.h
chmod +x without/* toolkit/bin/nvcc
ln -s ../toolkit/bin/nvcc links/nvcc
OUT=$PWD/no-toolkit expect 3 env PATH="$PWD/without:$PATH" "$SOURCE/tests/gpu/run"
one_line err "tests/gpu/run: configuring finds no CUDA toolkit (nvcc, cuda.h, cublas_v2.h): nothing here would run"
# A build that was carried is used as it is where it starts.
OUT=$PWD/carried expect 0 env PATH="$PWD/without:$PATH" "$SOURCE/tests/gpu/run" --built "$BUILD" --only nothing
grep -qx "built before: $BUILD" carried/table || fail "a build that starts: $(cat carried/table)"
! grep -q "^configure" carried/table || fail "a build that starts is made again: $(cat carried/table)"
mkdir -p little/plugins little/tests/unit # to pack all programs and their libraries would take long
printf '#!/bin/sh\nexec "%s" "$@"\n' "$BUILD/tessera" >little/tessera && chmod +x little/tessera
ln -s "$BUILD"/plugins/*.so little/plugins
ln -s "$BUILD/tests/unit/test_cuda_fp8" little/tests/unit
XZ_LEVEL=0 expect 0 "$SOURCE/tests/gpu/carry" little carried.txz
OUT=$PWD/unpacked expect 0 "$SOURCE/tests/gpu/run" --doubles "$BUILD" --built carried.txz --only mnist
grep -Eq "^built before: .*/built$" unpacked/table && grep -Eq "^mnist +[0-9]+ s  ok$" unpacked/table || fail "an archive: $(cat unpacked/table)"
echo nothing >empty.txz
expect 3 "$SOURCE/tests/gpu/run" --doubles "$BUILD" --built empty.txz --only mnist
grep -q "^tests/gpu/run: empty.txz cannot be unpacked$" err || fail "an archive that is none: $(cat err)"
mkdir broken && printf '#!/bin/bash\nexit 1\n' >broken/tessera && chmod +x broken/tessera
OUT=$PWD/rebuilt expect 3 env PATH="$PWD/without:$PATH" "$SOURCE/tests/gpu/run" --built "$PWD/broken"
grep -q "^what was built before does not start" rebuilt/table && grep -q "^configure" rebuilt/table || fail "a build that does not start: $(cat rebuilt/table)"
cat >find.cmake <<END
include($SOURCE/cmake/TesseraCuda.cmake)
message("headers: \${TESSERA_CUDA_INCLUDE}")
END
expect 0 env -u CUDA_PATH PATH="$PWD/links:$PATH" cmake -P find.cmake
grep -Eq "headers: ($PWD/toolkit/include|$PWD/toolkit/bin/../include)$" err || fail "headers elsewhere: $(cat err)"
OUT=$PWD/convbn expect 0 env PATH="$PWD/bin:$PATH" "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only 'convbn*'
for part in convbn convbn-fp16; do
  grep -Eq "^$part +[0-9]+ s  ok$" out || fail "no line that $part is ok: $(cat out)"
done
echo "tests/gpu/run passes on the doubles and tells what fails"
