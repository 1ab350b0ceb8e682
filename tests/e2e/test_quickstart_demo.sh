#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# `tools/quickstart demo` on a tree that is built, with one step instead of an epoch: four rows whose peaks are the planned
# ones, one digest, three commands to go on with that work, exit code 0. A run that fails, or ends with other parameters, ends it with 1 and one line.
. "$SOURCE/tests/e2e/lib.sh"
[ -z "$SANITIZE" ] || { echo "skipped: quickstart builds without a sanitizer"; exit 77; }

# A tree whose build does nothing, and a command that trains for a step where the demo asks for an epoch.
mkdir -p tree/tools tree/build/release bin
cp "$SOURCE/tools/quickstart" tree/tools/
printf '#!/bin/sh\necho "$*" >>"$CALLS"\nfor n in 1 2 3 4 5 6 7 8; do echo "[$n/8] Building C object x$n"; done\n' >bin/cmake
printf '#!/bin/sh\n' >bin/apt-get
export CALLS=$PWD/calls
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
sed -n '/planned MiB/,/^All ended/p' out >table
while read -r label; do
  awk -v label="$label" 'index($0, label) == 1 {
      n = split(substr($0, length(label) + 1), v, " ")
      if (n == 4 && v[1] > 0 && v[2] > 0.5 && v[2] == v[3] && v[4] >= 0 && v[4] <= 100) { print v[2]; good = 1 }
    } END { exit !good }' table >>peaks || fail "no row, or a peak beside the plan: $label: $(cat table)"
done <labels
[ "$(wc -l <table)" = 7 ] || fail "more than four rows: $(cat table)"
[ "$(sort -n peaks | tail -n 1)" = "$(head -n 1 peaks)" ] && [ "$(sort -u peaks | wc -l)" -gt 1 ] ||
  fail "sharding saves nothing: $(tr '\n' ' ' <peaks)"
digest=$(tail -n 1 table | sed -n 's/^All ended with the same parameters, bit for bit: \([0-9a-f]\{32\}\)$/\1/p')
[ -n "$digest" ] || fail "the last line of the table is: $(tail -n 1 table)"
# Built is what runs, and neither tests nor kernels; the other lines of a build go to a file.
grep -qx -- '--build .*/tree/build/release .*--target tessera tessera-comm-shm' calls || fail "built: $(cat calls)"
grep -q -- '--preset release .*-DTESSERA_BUILD_TESTS=OFF' calls || fail "configured: $(cat calls)"
[ "$(sed -n '/^== building/,/^== built/p' out | sed '1d;$d' | tr -d ' \n')" = 2of84of86of88of8 ] || fail "progress: $(cat out)"
[ "$(grep -c 'Building C object' tree/build/release/quickstart.log)" -ge 8 ] || fail "no log of the build"
sed -n '/^Go on:$/,$p' out | sed -n 's/^  \([a-z/]* .*[a-z0-9]\)   .*/\1/p' | sed 's/--steps 200/--steps 1/; s/  *$//' >go
[ "$(wc -l <go)" = 3 ] || fail "to go on with: $(cat go)"
while read -r go; do
  case $go in
    build/release/tessera\ *) (cd tree && TESSERA_THREADS=1 expect 0 $go) || exit 1 ;;
    *) grep -Eq "^ *${go##* }\)" "$SOURCE/tools/quickstart" || fail "quickstart does not know: $go" ;;
  esac
done <go
expect 0 "$TESSERA" train mnist -n 2 --steps 1 --seed 1 --threads 1 --quiet --json
grep -q "\"params_digest\":\"$digest\"" out || fail "train ends with another digest than $digest"

OTHER=1 demo 1
grep -q '^quickstart: the runs ended with different parameters: ' err || fail "other parameters: $(cat err)"
BROKEN=1 demo 1
grep -qx 'quickstart: training failed: FSDP (strategy full, wrap none)' err || fail "a run that fails: $(cat err)"
[ -z "$(find . -maxdepth 1 -name 'tmp.*')" ] || fail "left behind: $(find . -maxdepth 1)"
nothing_left
