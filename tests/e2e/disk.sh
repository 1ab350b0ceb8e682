# For tests of what rests in files: a model on the disk, whose planned bytes are the measured ones: . "$SOURCE/tests/e2e/disk.sh"
[ -f "$BUILD/plugins/libtessera-offload-disk.so" ] || { echo "skip: offload-disk is not built here"; exit 77; }
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
export TESSERA_LOG=error
head -c 20000 "$SOURCE/README.md" > text
mkdir -p files
gpt="gpt --data text --layers 3 --width 72 --heads 2 --context 16 --batch 2 --steps 3 --optimizer adamw"
field() { sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p' <<< "$line"; }
trains() {
  # shellcheck disable=SC2086
  "$TESSERA" train $gpt --quiet --json "$@" > out 2> err || fail "exit code $?: train $*: $(head -c 600 err)"
  line=$(tail -n 1 out)
  digest=$(field params_digest)
  for domain in device host disk; do
    [ "$(field peak_${domain}_bytes)" = "$(field planned_peak_${domain}_bytes)" ] || fail "$domain: planned differs: $*: $line"
  done
  case "$(field step_allocations) $*" in 0\ * | null\ * | *--save*) ;; *) fail "allocations in a step: $*: $line" ;; esac
}
