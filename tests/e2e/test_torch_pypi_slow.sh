#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# tessera/torch.hpp with PyPI's LibTorch: tests/torch and examples/torch are built with it and run. Losses of the decoder on 1, 2
# and 4 ranks are those of LibTorch alone and of PyTorch's FSDP2. PYTHON: one that has torch and safetensors; else a virtual
# environment is made, from PyPI.
. "$SOURCE/tests/e2e/lib.sh"
[ -z "$SANITIZE" ] || { echo "skipped: programs outside the tree are not built with the sanitizer"; exit 77; }
[ -e "$BUILD/libtessera.so" ] || { echo "skipped: no libtessera.so in this build"; exit 77; }
python=${PYTHON:-$PWD/venv/bin/python}
if [ -z "${PYTHON:-}" ]; then
  python3 -m venv venv >venv.log 2>&1 || { echo "skipped: no python3 with venv"; exit 77; }
  "$python" -m pip install -q --timeout 60 --retries 1 torch safetensors numpy >venv.log 2>&1 || { echo "skipped: PyPI cannot be reached: $(tail -n 1 venv.log)"; exit 77; }
fi
torch=$("$python" -c 'import safetensors, torch; print(torch.__path__[0])') || { echo "skipped: PYTHON has no torch, or no safetensors"; exit 77; }
"$python" -c 'import torch; print("torch", torch.__version__)'
export TESSERA_THREADS=1 OMP_NUM_THREADS=1 TESSERA_LOG=error XDG_CACHE_HOME=$PWD/cache
# Its older and newer releases differ in what a string is.
abi=$("$python" -c 'import torch; print(int(torch.compiled_with_cxx11_abi()))')
flags=(-std=c++17 -O1 -D_GLIBCXX_USE_CXX11_ABI="$abi" -I"$SOURCE/core/include" -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include")
link=(-L"$BUILD" -ltessera -L"$torch/lib" -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10 "-Wl,-rpath,$BUILD:$torch/lib")
for source in tests/torch/test_torch tests/torch/test_programs examples/torch/decoder/plain examples/torch/decoder/sharded; do
  name=${source##*/}
  case $source in examples/*) name=decoder_$name ;; esac
  c++ "${flags[@]}" "$SOURCE/$source.cpp" -o "$name" "${link[@]}" || fail "$source.cpp is not built"
done
expect 0 ./test_torch
cat out
expect 0 ./test_programs "$SOURCE/tests/torch/test_programs.cpp"
cat out
"$python" "$SOURCE/tests/reference/torch_fsdp2.py" "$TESSERA" . || fail "other losses than PyTorch's"
[ -n "${TESSERA_TEST_KEEP:-}" ] || rm -rf venv
