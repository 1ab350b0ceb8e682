#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 1800
# PyTorch takes what examples/torch/decoder has saved by load_state_dict, and its evaluation is the same. tests/torch/test_modules
# takes what PyTorch has saved by save_file, and its evaluation is the same. PYTHON: one that has
# torch and safetensors; else a virtual environment is made, from PyPI.
set -eu
skip() { echo "skipped: $*"; exit 77; }
[ -x "$BUILD/examples/torch/decoder_sharded" ] || skip "LibTorch not found (libtorch-dev)"
python=${PYTHON:-$PWD/venv/bin/python}
if [ -z "${PYTHON:-}" ]; then
  python3 -m venv venv >venv.log 2>&1 || skip "no python3 with venv: $(tail -n 1 venv.log)"
  "$python" -m pip install -q --timeout 60 --retries 1 torch safetensors numpy >venv.log 2>&1 || skip "PyPI cannot be reached: $(tail -n 1 venv.log)"
fi
"$python" -c 'import safetensors, torch; print("torch", torch.__version__)' || skip "PYTHON has no torch, or no safetensors"
export XDG_CACHE_HOME=$PWD/cache
"$python" "$SOURCE/tests/reference/load_state_dict.py" "$TESSERA" "$BUILD/examples/torch/decoder_sharded"
"$python" "$SOURCE/tests/reference/save_file.py" "$TESSERA" "$BUILD/tests/torch/test_modules"
[ -n "${TESSERA_TEST_KEEP:-}" ] || rm -rf venv
