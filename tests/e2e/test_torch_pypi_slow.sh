#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# tessera/torch.hpp with PyPI's LibTorch: tests/torch and examples/torch are built with it and run. Losses of the decoder on 1, 2
# and 4 ranks are those of LibTorch alone and of PyTorch's FSDP2. The Python is PYTHON or one
# from PyPI (tests/support/python.sh).
. "$SOURCE/tests/e2e/lib.sh"
[ -z "$SANITIZE" ] || { echo "skipped: programs outside the tree are not built with the sanitizer"; exit 77; }
[ -e "$BUILD/libtessera.so" ] || { echo "skipped: no libtessera.so in this build"; exit 77; }
. "$SOURCE/tests/support/python.sh"
need_python torch safetensors numpy
"$python" -c 'import torch; print("torch", torch.__version__)'
export TESSERA_THREADS=1 OMP_NUM_THREADS=1 TESSERA_LOG=error XDG_CACHE_HOME=$PWD/cache
. "$SOURCE/tests/support/torch_build.sh"
torch_build "$python" tests/torch/test_torch tests/torch/test_modules tests/torch/test_programs examples/torch/decoder/plain examples/torch/decoder/sharded ||
  fail "a program is not built"
expect 0 ./test_torch
cat out
expect 0 ./test_modules
cat out
"$python" "$SOURCE/tests/reference/save_file.py" "$TESSERA" ./test_modules || fail "a file of Python's is not loaded"
expect 0 ./test_programs "$SOURCE/tests/torch/test_programs.cpp"
cat out
# In fp16, whose products this LibTorch has on a CPU, the losses are near.
seq 5000 >text
expect 0 ./decoder_plain text 50 2 32
cp out plain.txt
TESSERA_PRECISION=fp16 expect 0 "$TESSERA" run -n 2 -- ./decoder_sharded text 50 2 32
sed 's/^\[0\] //' out | grep loss | paste -d ' ' <(grep loss plain.txt) - | awk '{ d = $4 - $10; if (d < 0) d = -d; if ($2 != $8 || d > 0.01 * $4) { print; bad = 1 } }
  END { exit bad || NR != 50 }' || fail "decoder, fp16: other losses"
"$python" "$SOURCE/tests/reference/torch_fsdp2.py" "$TESSERA" . || fail "other losses than PyTorch's"
