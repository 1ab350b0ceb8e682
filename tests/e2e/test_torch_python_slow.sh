#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 1800
# PyTorch takes what examples/torch/decoder has saved by load_state_dict, and its evaluation is the same. tests/torch/test_modules
# takes what PyTorch has saved by save_file, and its evaluation is the same. The Python is PYTHON or one from PyPI
# (tests/support/python.sh).
set -eu
skip() { echo "skipped: $*"; exit 77; }
[ -x "$BUILD/examples/torch/decoder_sharded" ] || skip "LibTorch not found (libtorch-dev)"
. "$SOURCE/tests/support/python.sh"
need_python torch safetensors numpy
"$python" -c 'import torch; print("torch", torch.__version__)'
export XDG_CACHE_HOME=$PWD/cache
"$python" "$SOURCE/tests/reference/load_state_dict.py" "$TESSERA" "$BUILD/examples/torch/decoder_sharded"
"$python" "$SOURCE/tests/reference/save_file.py" "$TESSERA" "$BUILD/tests/torch/test_modules"
