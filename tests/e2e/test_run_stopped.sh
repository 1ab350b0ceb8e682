#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# A rank that is stopped between fork and exec: the launcher goes on, finds it missing and ends it.
. "$SOURCE/tests/e2e/lib.sh"
[ -z "$SANITIZE" ] || { echo "a sanitizer's runtime must be loaded first, so nothing can be preloaded"; exit 77; }
export TESSERA_RENDEZVOUS_TIMEOUT=2 TESSERA_GRACE=0.5

# The launcher's children call prctl before they become ranks: the second one stops there.
cat >stop.c <<'END'
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
int prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d) {
    if (option == 1 && open("first", O_CREAT | O_EXCL, 0600) < 0 && open("second", O_CREAT | O_EXCL, 0600) >= 0)
        raise(SIGSTOP);
    return (int)syscall(SYS_prctl, option, a, b, c, d);
}
END
cc -shared -fPIC -o stop.so stop.c || fail "stop.c does not compile"
LD_PRELOAD=$PWD/stop.so expect 5 timeout 60 "$TESSERA" run -n 3 -- "$BUILD/tests/e2e/rank_probe"
[ -e second ] || fail "nothing was stopped"
grep -q '1 of 3 ranks did not come within 2 s (TESSERA_RENDEZVOUS_TIMEOUT): missing [012]' err || fail "$(cat err)"
nothing_left
