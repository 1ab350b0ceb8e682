#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# examples/torch/decoder beside LibTorch alone and beside FSDP2 in Python: the median step, resident memory of a rank, bytes of its
# tensors, in rounds of all programs in turns. PYTHON has torch and safetensors; its LibTorch is the one that C++ gets. An idle machine.
#   PYTHON=/path/to/python docs/benchmarks/torch.sh [BUILD [OPTION of tests/reference/torch_fsdp2.py…]]
set -eu
SOURCE=$(cd "$(dirname "$0")/../.." && pwd)
BUILD=$(cd "${1:-$SOURCE/build/release}" && pwd)
shift || true
python=${PYTHON:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export TESSERA_LOG=error XDG_CACHE_HOME=$folder TESSERA_PLUGIN_PATH=$BUILD/plugins
. "$SOURCE/tests/support/torch_build.sh"
TORCH_BUILD_O=2 torch_build "$python" examples/torch/decoder/plain examples/torch/decoder/sharded
"$python" -c 'import torch; print("torch", torch.__version__)'
"$python" "$SOURCE/tests/reference/torch_fsdp2.py" "$BUILD/tessera" "$folder" --times --ranks 1,2 --layers 4 --width 128 "$@"
