#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 300
# processors: 2
# As test_kill.sh, on GPUs over NCCL, both doubles: once in each phase. Here NCCL does not see that a peer died, as within a
# host over NVLink, so that it is the core that ends it. What is queued on a GPU still runs, which takes a CPU longer.
[ -e "$BUILD/tests/doubles/libnccl.so.2" ] || { echo "skip: no doubles of CUDA in this build"; exit 77; }
export LD_LIBRARY_PATH=$BUILD/tests/doubles TESSERA_DOUBLE_NCCL_DEATH=hang TESSERA_DEVICE=cuda
KILL_COMM=nccl KILLS=1 KILL_PATIENCE=60 exec bash "$SOURCE/tests/e2e/test_kill.sh"
