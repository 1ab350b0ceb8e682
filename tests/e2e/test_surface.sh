#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# Every public function, slot, option and variable has a test, or a line in tests/untested that says why not.
. "$SOURCE/tests/e2e/lib.sh"
expect 0 "$SOURCE/tests/surface" "$TESSERA"
[ "$(grep -c '^function ' out)" -gt 40 ] && [ "$(grep -c '^slot ' out)" -gt 40 ] && [ "$(grep -c '^option ' out)" -gt 40 ] ||
  fail "the script finds less than there is: $(cut -d' ' -f1 out | sort | uniq -c)"
