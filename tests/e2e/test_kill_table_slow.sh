#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 7200
# processors: 2
# The table of test_kill: 528 kills of one or two of four ranks, in every phase, over shm, gloo and both. And once in each phase
# on GPUs over NCCL, both doubles: NCCL does not see there that a peer died, as within a host over NVLink, so that the core ends
# it. What is queued on a GPU still runs, which takes a CPU longer.
TABLE=1 bash "$SOURCE/tests/e2e/test_kill.sh" || exit $?
[ -e "$BUILD/tests/doubles/libnccl.so.2" ] || { echo "no doubles of CUDA in this build"; exit 0; }
DOUBLES=1 KILL_COMMS=nccl:hang KILL_PHASES="rendezvous transfer forward backward step launcher stopped" KILLS=1 KILL_PATIENCE=6 KILL_ELEMS=16777216 \
  exec bash "$SOURCE/tests/e2e/test_kill.sh"
