# For tests of options that change no bit, or a known one, of a model: planned bytes are the measured ones in every domain.
# . "$SOURCE/tests/e2e/trains.sh"
field() { sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p' <<< "$line"; }
always=() # options of every run
# trains OPTION…: trains $model; $line has the summary, $digest the parameters'.
trains() {
  local comm=()
  # auto would take shm too; with it each rank tries the plugins out first, which is longer than such a run.
  [[ "$*" != *-n\ * || ! -e $BUILD/plugins/libtessera-comm-shm.so ]] || comm=(env "TESSERA_COMM=${TESSERA_COMM:-shm}")
  # shellcheck disable=SC2086
  "${comm[@]}" "$TESSERA" train $model "${always[@]}" --quiet --json "$@" > out 2> err || fail "exit code $?: train $*: $(head -c 600 err)"
  line=$(tail -n 1 out)
  digest=$(field params_digest)
  for domain in device host disk; do
    [ "$(field peak_${domain}_bytes)" = "$(field planned_peak_${domain}_bytes)" ] || fail "$domain: planned differs: $*: $line"
  done
  case "$(field step_allocations) $*" in 0\ * | null\ * | *--save*) ;; *) fail "allocations in a step: $*: $line" ;; esac
}
