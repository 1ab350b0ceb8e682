#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# How `tessera plugins check` is asked and how it answers: targets, exit codes, the table, JSON and TAP. What it finds is
# in e2e/test_plugin_faults.
. "$SOURCE/tests/e2e/lib.sh"
faulty=$BUILD/tests/conformance/bad/faulty
[ -e "$faulty/wrap_none.so" ] || { echo "skipped: the sample plugins are not built"; exit 77; }
check() { "$TESSERA" plugins check "$@"; }
error() { [ "$(wc -l <err)" = 1 ] && grep -q -- "$1" err || fail "expected one line with '$1': $(cat err)"; }

# Exit code 2: usage. 3: no plugin at all.
expect 2 check
error 'say which plugin'
expect 2 check "$faulty/wrap_none.so" --jsno
error "unknown option.*'--jsno'"
expect 2 check "$faulty/wrap_none.so" another
error "unexpected 'another'"
expect 2 check "$faulty/wrap_none.so" --timeout soon
error '--timeout wants seconds'
expect 2 check "$faulty/wrap_none.so" --only 'nothing/*'
error 'no check matches'
expect 2 check "$faulty/wrap_none.so" --launch mpirun
error '--launch wants a command with %d'
expect 3 check "$PWD/nowhere.so"
error "nowhere.so' is not usable as a plugin: no such file"
expect 3 check nobody
error "no plugin 'nobody' found"
expect 3 check none
error "more than one plugin 'none'; say KIND-NAME or the file"
echo text >text.so
expect 3 check ./text.so
error 'not an ELF file'
head -c 5000 "$faulty/wrap_none.so" >cut.so
expect 3 check ./cut.so
error 'not usable as a plugin: truncated'
expect 3 check "$BUILD/tests/conformance/bad/plugins/other_section.so"
error 'no plugin: it has no section .tessera.plugin'
expect 0 check --help
grep -q '^Usage: tessera plugins check' out || fail "help: $(cat out)"

# By path, relative too; built in; with arguments; the table.
cp "$faulty/wrap_none.so" here.so
expect 0 check ./here.so --only 'wrap/*' --only 'static/*'
has_line out '.*/here.so: wrap faulty 0.1.0, ABI [0-9.]+'
has_line out 'wrap +each_parameter_once +passed'
has_line out '[0-9]+ passed, 0 failed, 0 skipped, in [0-9.]+ s'
! grep -q '^abi' out || fail "--only has no effect: $(cat out)"
expect 0 check wrap-size:20000 --only 'wrap/e*'
has_line out 'wrap size, built in'
expect 1 check wrap-size:many --only 'wrap/e*'
grep -q 'FAILED *open gave TESS_E_INVALID' out || fail "bad arguments: $(cat out)"
expect 0 check ./here.so --list
has_line out 'abi/shorter_host'
! grep -q passed out || fail "--list ran them"

# What is not claimed is skipped and counted, or fails.
expect 0 check precision-fp32 --only 'abi/options_*' --only 'abi/unknown_*'
has_line out '0 passed, 0 failed, 2 skipped, in .*'
expect 1 check precision-fp32 --only 'abi/options_*' --only 'abi/unknown_*' --no-skip
has_line out '0 passed, 2 failed, 0 skipped, in .*'

# JSON and TAP.
expect 1 check "$faulty/wrap_impure.so" --only 'wrap/[ep]*' --json
[ "$(grep -cv '^{.*}$' out)" = 0 ] || fail "other lines: $(cat out)"
has_line out '\{"event":"check","suite":"wrap","name":"each_parameter_once","status":"passed","message":.*,"seconds":.*\}'
has_line out '\{"event":"check","suite":"wrap","name":"pure","status":"failed","message":"assign of .*\}'
has_line out '\{"event":"summary","plugin":".*/wrap_impure.so","passed":1,"failed":1,"skipped":0,"seconds":.*\}'
expect 1 check "$faulty/wrap_impure.so" --only 'wrap/[ep]*' --tap
one_line <(head -1 out) 'TAP version 13'
has_line out '1\.\.2'
has_line out 'ok 1 - wrap/each_parameter_once'
has_line out 'not ok 2 - wrap/pure'
expect 0 check precision-fp32 --only 'abi/unknown_kind' --tap
has_line out 'ok 1 - abi/unknown_kind # SKIP built in: opened by kind'

# Ended from outside, its ranks end with it.
"$TESSERA" plugins check "$faulty/comm_init_hangs.so" --only 'comm/values_four_ranks' >out 2>&1 &
pid=$!
sleep 0.5
kill -9 "$pid"
wait "$pid" 2>/dev/null
nothing_left
echo "asked and answered"
