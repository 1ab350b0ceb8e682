# SPDX-License-Identifier: BSD-3-Clause
# Sourced with SOURCE and BUILD set. torch_build PYTHON PROGRAM…: builds sources of the tree in this folder with the LibTorch of a
# Python's PyTorch: tests/torch/test_torch, and examples/torch/decoder/plain as decoder_plain. Its random numbers are then the same.
# Examples say at their end how much they held.
torch_build() {
  local python=$1 torch abi standard source name flags link
  shift
  torch=$("$python" -c 'import torch; print(torch.__path__[0])') || return
  abi=$("$python" -c 'import torch; print(int(torch.compiled_with_cxx11_abi()))') # older releases differ in what a string is
  standard=$(sed -n 's/^#error C++\(2[0-9]\) or later.*/\1/p' "$torch/include/torch/csrc/api/include/torch/all.h") # it says what it needs
  flags=("-std=c++${standard:-17}" "-O${TORCH_BUILD_O:-1}" -D_GLIBCXX_USE_CXX11_ABI="$abi" -I"$SOURCE/core/include" -isystem "$torch/include"
    -isystem "$torch/include/torch/csrc/api/include")
  link=(-L"$BUILD" -ltessera -L"$torch/lib" -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10 "-Wl,-rpath,$BUILD:$torch/lib")
  for source; do
    name=${source##*/} more=()
    case $source in examples/*)
      name=decoder_$name more=("$name.peak.o" -Wl,--wrap=tess_close)
      cc -c -I"$SOURCE/core/include" "$SOURCE/tests/support/peak_at_close.c" -o "$name.peak.o" || return
      ;;
    esac
    c++ "${flags[@]}" "$SOURCE/$source.cpp" "${more[@]}" -o "$name" "${link[@]}" || return
  done
}
