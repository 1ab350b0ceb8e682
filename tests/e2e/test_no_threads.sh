#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# Ranks that get no threads: the run goes on, or ends with exit code 3 and a line that says so, and blames no rank that had its
# own. The system's limit counts all threads of a user, but not root's: so another user runs them.
. "$SOURCE/tests/e2e/lib.sh"
[ "$(id -u)" = 0 ] && command -v setpriv >/dev/null || { echo "skipped: only root can run them as a user who runs nothing else"; exit 77; }
[ -z "$SANITIZE" ] || { echo "skipped: a sanitizer has threads of its own"; exit 77; }
folder=$(mktemp -d /tmp/tessera-threads-XXXXXX)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
cp "$TESSERA" "$BUILD"/plugins/libtessera-comm-*.so "$folder"
user=$((40000 + $$ % 20000))
# limited N COMMAND…: with N threads and processes at most.
limited() {
  (cd "$folder" && exec timeout 60 setpriv --reuid "$user" --regid "$user" --clear-groups \
    env HOME="$folder" TMPDIR="$folder" TESSERA_PLUGIN_PATH="$folder" TESSERA_LOG=error bash -c 'ulimit -u "$0" && exec "$@"' "$@")
}
# sweep COMM THREADS LIMIT…
sweep() {
  local comm=$1 threads=$2 failed=0 fine=0 n code lost
  shift 2
  for n in "$@"; do
    code=0
    limited $n ./tessera train linear -n 3 --steps 2 --threads $threads --comm $comm >out 2>err || code=$?
    case $code in
      0) fine=$((fine + 1)) ;;
      3) failed=$((failed + 1)) && grep -Eq 'thread|process|fork|Resource temporarily unavailable' err || fail "$comm with $n: $(cat err)" ;;
      *) fail "$comm, --threads $threads: exit code $code with $n threads, expected 0 or 3: $(cat err)" ;;
    esac
    # Whom another rank names has said itself what it did not get.
    for lost in $(sed -nE 's/.*rank ([0-9]) (failed|was lost).*/\1/p' err | sort -u); do
      grep -Eq "^tessera\[$lost\]: error: .*(thread|process|Resource temporarily unavailable)" err || fail "$comm with $n: rank $lost is blamed: $(cat err)"
    done
  done
  [ $failed -ge 2 ] && [ $fine -ge 1 ] || fail "$comm, --threads $threads: $failed limits failed and $fine did not"
  echo "$comm, --threads $threads: $failed limits were too low, $fine were not"
}
for comm in shm gloo; do
  [ -e "$folder/libtessera-comm-$comm.so" ] || { echo "without comm-$comm, which was not built"; continue; }
  sweep $comm 1 1 2 3 4 5 6 7 8 9 10 12 14 16 18 20 24 30 100
  sweep $comm 2 12 16 18 19 20 21 22 23 24 25 26 28 30 100
done

# One rank alone, so that nobody takes a thread away between our look and libgomp's: one line, and none of libgomp's.
compute=0 fine=0
for n in {1..12}; do
  code=0
  limited $n ./tessera train linear -n 1 --steps 2 --threads 3 --quiet >out 2>err || code=$?
  [ $code != 0 ] || { fine=$((fine + 1)) && continue; }
  [ $code = 3 ] && [ "$(wc -l <err)" = 1 ] && grep -q 'thread' err || fail "one rank, at most $n threads: exit code $code, expected 3 and one line: $(cat err)"
  ! grep -q 'cannot start 2 compute threads: Resource temporarily unavailable' err || compute=$((compute + 1))
done
[ $compute -ge 1 ] && [ $fine -ge 1 ] || fail "one rank: $compute limits too low for compute threads, $fine high enough"
echo "one rank: $compute limits were too low for compute threads, $fine high enough"
nothing_left
