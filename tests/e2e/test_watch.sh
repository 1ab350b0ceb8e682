#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# Those who look on: --watch serves the report while a run trains, read-only and to this host alone, whatever callers do;
# --tensorboard writes events that are there when their step is. Neither changes a bit, nor allocates in a step.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=info TESSERA_THREADS=1
command -v curl >/dev/null || { echo "skipped: no curl"; exit 77; }
head -c 4000 "$SOURCE/core/layout/layout.c" >text.txt
tiny=(gpt --data text.txt --layers 2 --heads 2 --width 32 --context 16 --batch 2 --sample 0)

# ---- TensorBoard: strings of the file; unit/tools/test_tensorboard decodes records, test_tensorboard_slow has its reader
expect 0 "$TESSERA" train "${tiny[@]}" --steps 4 --eval-every 2 --quiet --json=plain.json
expect 0 "$TESSERA" train "${tiny[@]}" --steps 4 --eval-every 2 --tensorboard board --watch --json=run.json
[ "$(summary params_digest run.json)" = "$(summary params_digest plain.json)" ] || fail "those who look on change the parameters"
[ "$(summary step_allocations run.json)" = "$(summary step_allocations plain.json)" ] || fail "allocations in steps: $(summary step_allocations run.json)"
[ "$(ls board | wc -l)" = 1 ] || fail "event files: $(ls board)"
for tag in train/loss:4 train/lr:4 train/grad_norm:4 train/tokens_per_second:4 memory/device_peak_bytes:4 validation/loss:2 validation/accuracy:2; do
  [ "$(grep -ao "${tag%:*}" board/* | wc -l)" = "${tag#*:}" ] || fail "$tag: $(grep -ao "${tag%:*}" board/* | wc -l)"
done
grep -aq '| lr | 0.002 |' board/* || fail "the settings of the run are not there"
# Nor when somebody asks for the page all the time.
"$TESSERA" train "${tiny[@]}" --steps 3000 --batch 8 --quiet --watch --json=polled.json >out 2>err &
pid=$!
is_there() { grep -q '"event":"start".*"watch":"http' polled.json 2>/dev/null; }
within 60 is_there || fail "the start has no address: $(cat err)"
url=$(sed -n 's/.*"event":"start".*"watch":"\([^"]*\)".*/\1/p' polled.json)
asked=0
while ! gone $pid; do [ "$(curl -s -m 5 -o /dev/null -w '%{http_code}' "${url}report")" != 200 ] || asked=$((asked + 1)); done
ends $pid 60
[ $code = 0 ] && [ $asked -ge 2 ] || fail "exit code $code, $asked reports: $(cat err)"
[ "$(summary step_allocations polled.json)" = "$(summary step_allocations plain.json)" ] ||
  fail "with $asked reports: $(summary step_allocations polled.json) allocations in steps"
expect 6 "$TESSERA" train "${tiny[@]}" --steps 1 --quiet --tensorboard none/such
one_line err "tessera: error: --tensorboard=none/such: No such file or directory"
# The report has the curves of validation and rate.
expect 0 "$TESSERA" train "${tiny[@]}" --steps 4 --eval-every 2 --quiet --report=page.html
for curve in 'Training loss' 'Validation loss' 'Learning rate' 'Gradient norm'; do
  grep -q "$curve over the run</title>" page.html || fail "the report has no curve of: $curve"
done

# ---- the page
"$TESSERA" train "${tiny[@]}" --steps 1000000 --eval-every 100000000 --watch --csv live.csv >out 2>err &
pid=$!
trap 'kill -KILL $pid 2>/dev/null' EXIT
said() { grep -q 'watch this run: http://127.0.0.1:[0-9]*/$' out; }
within 60 said || fail "nobody says where the page is: $(cat out err)"
url=$(sed -n 's/^watch this run: //p' out)
port=${url##*:} port=${port%/}
get() { curl -s -m 10 -o body -w '%{http_code}' "$@" || true; }
is() { [ "$(get "${@:2}")" = "$1" ]; }
is 200 "$url" && grep -q '<iframe id="page"' body || fail "the page: $(head -c 500 body)"
within 60 is 200 "${url}report" || fail "no report after a minute: $(head -c 500 body)"
grep -q 'Training loss over the run</title>' body || fail "the report has no curve: $(head -c 500 body)"
first=$(sed -n 's/.*at step \([0-9]*\) to .* at step \([0-9]*\);.*/\2/p' body | head -n 1)
later() { is 200 "${url}report" && [ "$(sed -n 's/.*at step \([0-9]*\) to .* at step \([0-9]*\);.*/\2/p' body | head -n 1)" -gt "$first" ]; }
within 30 later || fail "the report stays at step $first"

# Whatever callers do: one line for each mistake, and the run goes on.
one_answer() { # CODE LINE ARGUMENT…
  is "$1" "${@:3}" || fail "$1 expected of: ${*:3}"
  one_line body "$2"
}
one_answer 404 "There are / and /report." "${url}../../etc/passwd" --path-as-is
one_answer 405 "This page is read-only: GET alone." -X POST -d x "$url"
one_answer 403 "This page is for http://127.0.0.1 alone." -H "Host: evil.example" "${url}report"
for host in 127.0.0.1 "127.0.0.1:$port.evil.example" "evil.example:$port" ''; do # a name server may send any name here
  one_answer 403 "This page is for http://127.0.0.1 alone." -H "Host:${host:+ $host}" "${url}report"
done
is 200 -H "Host: LocalHost:$port" "$url" || fail "localhost is this host too"
one_answer 431 "This request is too long." -H "X: $(head -c 5000 /dev/zero | tr '\0' x)" "$url"
raw() { exec {fd}<>"/dev/tcp/127.0.0.1/$port" && printf '%b' "$1" >&"$fd" && timeout 10 cat <&"$fd" >body; exec {fd}>&-; }
raw 'GET /\r\n\r\n' && head -n 1 body | grep -q '^HTTP/1.1 400' || fail "half a request: $(cat body)"
raw '\x00\x01\x02\r\n\r\n' && head -n 1 body | grep -q '^HTTP/1.1 405' || fail "noise: $(cat body)"
# Twenty who say nothing, more than there is room for, do not keep others out for long.
silent=()
for ((i = 0; i < 20; i++)); do exec {fd}<>"/dev/tcp/127.0.0.1/$port" && silent+=("$fd"); done
within 15 is 200 "$url" || fail "silent callers keep others out"
for fd in "${silent[@]}"; do exec {fd}>&-; done
! grep -q . <(ss -Htln "sport = :$port" 2>/dev/null | grep -v '127\.0\.0\.1:') || fail "it listens elsewhere: $(ss -Htln)"
lines=$(wc -l <live.csv)
on() { [ "$(wc -l <live.csv)" -gt "$lines" ]; }
within 20 on || fail "the run has stopped"

# The port is taken: one line before training. A number that is none too.
expect 3 "$TESSERA" train "${tiny[@]}" --steps 1 --quiet --watch="$port"
one_line err "tessera: error: --watch=$port: Address already in use; without a number a free port is taken"
expect 3 "$TESSERA" train "${tiny[@]}" --steps 1 --quiet --watch=80x
one_line err "tessera: error: --watch=80x: expected a port, 1024 to 65535; without one a free one is taken"
expect 3 "$TESSERA" train "${tiny[@]}" --steps 1 --quiet --watch=80
one_line err "tessera: error: --watch=80: expected a port, 1024 to 65535; without one a free one is taken"

# In a browser: the shell shows the report that it fetches.
chromium=$(command -v chromium || command -v chromium-browser || true)
browse() {
  timeout 60 "$chromium" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --user-data-dir="$PWD/profile" \
    --virtual-time-budget=4000 "$@" 2>>chromium.log
}
if [ -n "$chromium" ] && browse --dump-dom "$url" >dom.html; then
  grep -q 'role="status">Training; as of ' dom.html || fail "the shell: $(head -c 2000 dom.html)"
  tr '\n' ' ' <dom.html | grep -q 'srcdoc="[^"]*Training loss over the run' || fail "the shell shows no report"
  browse --window-size=1100,1400 --screenshot="$PWD/watch.png" "$url"
  [ -s watch.png ] || fail "no screenshot"
  rm -rf profile
fi
kill -KILL $pid
wait $pid 2>/dev/null || true
# With several ranks the first one serves; JSON says where.
expect 0 "$TESSERA" train "${tiny[@]}" --batch 1 -n 2 --steps 2 --quiet --watch --json=two.json
grep -q '"event":"start".*"watch":"http://127.0.0.1:[0-9]*/"' two.json || fail "two ranks: $(head -n 1 two.json)"
nothing_left
