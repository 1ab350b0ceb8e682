# SPDX-License-Identifier: BSD-3-Clause
# Ranks in which a bit flips from outside (flips_main.c). . "$SOURCE/tests/support/flips.sh" behind tests/e2e/lib.sh.
program="$BUILD/tests/support/flips"
seed=${SEED:-1} flips=0
ranks() { "$TESSERA" run -n "$1" --no-prefix --bind none "${@:2}" -- "$program"; }
clean() { rm -rf places places.part pid.* saved; }
# flip N VICTIM RANK:PHASE OPTION…: kills VICTIM behind it, unless it is -1. In a call of a block that follows from the seed,
# unless call says it. Its exit code is in $code, the kind of memory in $kind.
flip() {
  clean
  seed=$((seed + 1)) flips=$((flips + 1)) code=0
  FLIPS_CALL=${call:-$((seed % 10))} FLIPS="$3" "$program" drive $seed "$2" "$TESSERA" run -n "$1" --no-prefix --bind none "${@:4}" -- "$program" >out 2>err || code=$?
  [ $code != 77 ] || { echo "memory of another process cannot be written here"; exit 77; }
  grep -q '^flipped: ' err || fail "no bit was flipped: ${cell:-} $3 seed $seed: $(cat err)"
  kind=$(sed -n 's/^flipped: //p' err)
}
