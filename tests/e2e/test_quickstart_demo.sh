#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# `tools/quickstart demo` on a tree that is built, with one step instead of an epoch: four rows whose peaks are the planned
# ones, one digest, exit code 0. A run that fails, or ends with other parameters, ends it with 1 and one line.
. "$SOURCE/tests/e2e/lib.sh"
[ -z "$SANITIZE" ] || { echo "skipped: quickstart builds without a sanitizer"; exit 77; }

# A tree whose build does nothing, and a command that trains for a step where the demo asks for an epoch.
mkdir -p tree/tools tree/build/release bin
cp "$SOURCE/tools/quickstart" tree/tools/
printf '#!/bin/sh\nexit 0\n' >bin/cmake
cp bin/cmake bin/apt-get
printf '#!/bin/sh\nprintf installed\n' >bin/dpkg-query
cat >tree/build/release/tessera <<END
#!/bin/bash
echo "\$*" >>"$PWD/asked"
arguments=("\${@/--epochs/--steps}")
[ -z "\${OTHER:-}" ] || [ "\$(wc -l <"$PWD/asked")" != 3 ] || arguments+=(--lr 0.02)
[ -z "\${BROKEN:-}" ] || [ "\$(wc -l <"$PWD/asked")" != 2 ] || exit 5
exec "$TESSERA" "\${arguments[@]}"
END
chmod +x bin/* tree/build/release/tessera
demo() {
  : >asked
  PATH=$PWD/bin:$PATH TESSERA_THREADS=1 TMPDIR=$PWD expect "$@" tree/tools/quickstart demo
}

demo 0
[ "$(wc -l <asked)" = 4 ] && [ "$(grep -c '^train mnist -n 2 --epochs 1 --seed 1 ' asked)" = 4 ] || fail "asked for: $(cat asked)"
printf '%s\n' 'DDP (strategy none)' 'FSDP (strategy full, wrap none)' 'FSDP (full), wrap size:20000' 'FSDP (full), wrap scopes' >labels
sed -n '/planned MiB/,$p' out >table
while read -r label; do
  awk -v label="$label" 'index($0, label) == 1 {
      n = split(substr($0, length(label) + 1), v, " ")
      if (n == 4 && v[1] > 0 && v[2] > 0.5 && v[2] == v[3] && v[4] >= 0 && v[4] <= 100) { print v[2]; good = 1 }
    } END { exit !good }' table >>peaks || fail "no row, or a peak beside the plan: $label: $(cat table)"
done <labels
[ "$(wc -l <table)" = 7 ] || fail "more than four rows: $(cat table)"
[ "$(sort -n peaks | tail -n 1)" = "$(head -n 1 peaks)" ] && [ "$(sort -u peaks | wc -l)" -gt 1 ] ||
  fail "sharding saves nothing: $(tr '\n' ' ' <peaks)"
digest=$(tail -n 1 out | sed -n 's/^All ended with the same parameters, bit for bit: \([0-9a-f]\{32\}\)$/\1/p')
[ -n "$digest" ] || fail "the last line is: $(tail -n 1 out)"
expect 0 "$TESSERA" train mnist -n 2 --steps 1 --seed 1 --threads 1 --quiet --json
grep -q "\"params_digest\":\"$digest\"" out || fail "train ends with another digest than $digest"

OTHER=1 demo 1
grep -q '^quickstart: the runs ended with different parameters: ' err || fail "other parameters: $(cat err)"
BROKEN=1 demo 1
grep -qx 'quickstart: training failed: FSDP (strategy full, wrap none)' err || fail "a run that fails: $(cat err)"
[ -z "$(find . -maxdepth 1 -name 'tmp.*')" ] || fail "left behind: $(find . -maxdepth 1)"
nothing_left
