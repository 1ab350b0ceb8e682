#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# processors: 2
# tessera.f90 and examples/fortran: every line and every bit of examples/first, on 1 and 2 ranks; its types lie as C's do;
# an error of either language ends with the C message and exit code.
. "$SOURCE/tests/e2e/lib.sh"
command -v gfortran >/dev/null || { echo "skipped: no gfortran"; exit 77; }
[ -z "$SANITIZE" ] || { echo "skipped: programs outside the tree are not built with the sanitizer"; exit 77; }
[ -e "$BUILD/libtessera.so" ] || { echo "skipped: no libtessera.so in this build"; exit 77; }
export TESSERA_THREADS=1 TESSERA_LOG=warning
unset TESSERA_STRATEGY TESSERA_WRAP TESSERA_COMM TESSERA_ACCUM
module=$SOURCE/core/include/tessera/tessera.f90
link=(-L"$BUILD" -ltessera -lm -Wl,-rpath,"$BUILD" -Wl,--wrap=tess_close)
cc -O2 -c -I"$SOURCE/core/include" "$SOURCE/tests/support/digest_at_close.c" || fail "digest_at_close.c"
cc -O2 -I"$SOURCE/core/include" "$SOURCE/examples/first/train.c" digest_at_close.o "${link[@]}" -o in_c || fail "examples/first"
# As examples/fortran/CMakeLists.txt says, to have the bits of C.
gfortran -std=f2018 -Wall -Wextra -Werror -O2 -fno-tree-vectorize "$module" "$SOURCE/examples/fortran/train.f90" digest_at_close.o "${link[@]}" -o in_fortran ||
  fail "examples/fortran"

for n in 1 2; do
  expect 0 "$TESSERA" run -n $n -- ./in_c
  cp out c.txt
  expect 0 "$TESSERA" run -n $n -- ./in_fortran
  cmp -s out c.txt || fail "W = $n: $(diff c.txt out)"
  [ "$(grep -c ' loss ' out)" = 5 ] && grep -q 'digest [0-9a-f]' out || fail "W = $n: $(cat out)"
done

expect 3 env TESSERA_OPTIMIZER=no-such ./in_fortran
grep -q 'no-such' err || fail "an error without the C message: $(cat err)"

# Each bind(c) type: the offset of its last field, which no field before may move, and its size, so that none is missing at the
# end. Of tess_options also of some between.
cat >offsets.c <<'END'
#include <tessera/tessera.h>
#include <stdio.h>
int main(void) {
    printf("%zu %zu %zu %zu\n", offsetof(tess_range, stacked_first), offsetof(tess_options, common_bytes),
           offsetof(tess_param_options, tag), offsetof(tess_optimizer_options, group_lr));
    printf("%zu %zu %zu %zu\n", sizeof(tess_range), sizeof(tess_options), sizeof(tess_param_options),
           sizeof(tess_optimizer_options));
    printf("%zu %zu %zu %zu %zu\n", offsetof(tess_options, own_states), offsetof(tess_options, microbatches),
           offsetof(tess_options, group), offsetof(tess_options, on_audit), offsetof(tess_options, audit_failed));
    printf("%d %d %d %d %d %d %d %d %d\n", TESS_F32, TESS_F64, TESS_BF16, TESS_SUM, TESS_AVG, TESS_PASS_TRAIN,
           TESS_FROZEN, TESS_GRAD_OVERWRITE, TESS_OF_PARAM);
    return 0;
}
END
sed 's/^  private$/  public/' "$module" >open.f90
cat >offsets.f90 <<'END'
program offsets
  use tessera
  use, intrinsic :: iso_c_binding
  type(tess_range) :: r
  type(options), target :: o
  type(param_options) :: p
  type(optimizer_options) :: s
  print '(*(i0, :, 1x))', c_sizeof(r) - c_sizeof(r%stacked_first), c_sizeof(o) - c_sizeof(o%common_bytes), &
    c_sizeof(p) - c_sizeof(p%tag), c_sizeof(s) - c_sizeof(s%group_lr)
  print '(*(i0, :, 1x))', c_sizeof(r), c_sizeof(o), c_sizeof(p), c_sizeof(s)
  print '(*(i0, :, 1x))', at(c_loc(o%own_states)), at(c_loc(o%microbatches)), at(c_loc(o%group)), at(c_loc(o%on_audit)), &
    at(c_loc(o%audit_failed))
  print '(*(i0, :, 1x))', tess_f32, tess_f64, tess_bf16, tess_sum, tess_avg, tess_pass_train, tess_frozen, &
    tess_grad_overwrite, tess_of_param
contains
  integer(c_intptr_t) function at(field) ! from the beginning of o
    type(c_ptr), value :: field
    at = transfer(field, at) - transfer(c_loc(o), at)
  end function
end program
END
cc -I"$SOURCE/core/include" offsets.c -o offsets_c && ./offsets_c >c.txt || fail "offsets in C"
gfortran open.f90 offsets.f90 -L"$BUILD" -ltessera -Wl,-rpath,"$BUILD" -o offsets_f && ./offsets_f >f.txt || fail "offsets in Fortran"
cmp -s c.txt f.txt || fail "types of tessera.f90 do not lie as C's do: $(diff c.txt f.txt)"
