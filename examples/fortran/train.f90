! SPDX-License-Identifier: BSD-3-Clause
! The loop of examples/first in Fortran, to the same bits: a network with one hidden layer learns the sine.
module start_values
  use, intrinsic :: iso_c_binding
  use tessera
  implicit none
contains
  ! Asked for in ranges: of each parameter only what this rank owns.
  function start(user, range, data) bind(c) result(status)
    type(c_ptr), value :: user
    type(tess_range), intent(in) :: range
    type(c_ptr), value :: data
    integer(c_int32_t) :: status
    real(c_float), pointer :: factor, values(:)
    integer(c_int64_t) :: i
    call c_f_pointer(user, factor)
    call c_f_pointer(data, values, [range%elems])
    do i = 1, range%elems
      values(i) = sin(factor * real(range%first_elem + i, c_float) * real(range%param + 1, c_float))
    end do
    status = 0
  end function
end module

program train
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit
  use tessera
  use start_values
  implicit none
  integer, parameter :: batch = 64, hidden = 32, steps = 1000
  type(c_ptr) :: t, p(2), g(2)
  integer(c_int32_t) :: hidden_scope, output_scope
  real(c_float), target :: factor = 12.9898
  real(c_float), pointer :: weight(:), bias(:), dweight(:), dbias(:)
  real(c_float) :: x(batch), a(hidden, batch), error(batch), d
  real(c_double) :: loss
  integer :: step, n, i

  call ok(tess_open(t))
  call ok(tess_scope_add(t, "hidden", hidden_scope)) ! what the loop will enter, in forward order
  call ok(tess_scope_add(t, "output", output_scope))
  call ok(tess_param_add(t, "hidden.weight", [hidden]))
  call ok(tess_param_add(t, "hidden.bias", [hidden]))
  call ok(tess_param_add(t, "output.weight", [hidden]))
  call ok(tess_param_add(t, "output.bias", [1]))
  call ok(tess_shard(t, start, c_loc(factor)))

  do step = 0, steps - 1
    loss = 0
    call ok(tess_pass(t, tess_pass_train))
    call ok(tess_forward_begin(t, hidden_scope, p)) ! pointers, valid from a begin to its end: whole parameters
    call take(p, hidden, hidden, weight, bias)
    do n = 1, batch
      x(n) = 3 * sin(real((step * tess_ranks(t) + tess_rank(t)) * batch + n - 1, c_float)) ! each rank its own
      do i = 1, hidden
        a(i, n) = tanh(weight(i) * x(n) + bias(i))
      end do
    end do
    call ok(tess_forward_end(t, hidden_scope))
    call ok(tess_forward_begin(t, output_scope, p))
    call take(p, hidden, 1, weight, bias)
    do n = 1, batch
      error(n) = bias(1) - sin(x(n))
      do i = 1, hidden
        error(n) = error(n) + weight(i) * a(i, n)
      end do
      loss = loss + error(n) * error(n) / batch
    end do
    call ok(tess_forward_end(t, output_scope))
    call ok(tess_backward_begin(t, output_scope, p, g))
    call take(p, hidden, 1, weight, bias)
    call take(g, hidden, 1, dweight, dbias)
    do n = 1, batch ! add to gradients: they start at zero
      d = 2 * error(n) / batch
      dbias(1) = dbias(1) + d
      do i = 1, hidden
        dweight(i) = dweight(i) + d * a(i, n)
        a(i, n) = d * weight(i) * (1 - a(i, n) * a(i, n))
      end do
    end do
    call ok(tess_backward_end(t, output_scope))
    call ok(tess_backward_begin(t, hidden_scope, p, g))
    call take(g, hidden, hidden, dweight, dbias)
    do n = 1, batch
      do i = 1, hidden
        dweight(i) = dweight(i) + a(i, n) * x(n)
        dbias(i) = dbias(i) + a(i, n)
      end do
    end do
    call ok(tess_backward_end(t, hidden_scope))
    call ok(tess_step(t, lr=0.01))
    call ok(tess_all_reduce(t, loss, tess_avg))
    if (tess_rank(t) == 0 .and. mod(step + 1, 200) == 0) print '(a, i0, a, f8.6)', "step ", step + 1, " loss ", loss
  end do
  call ok(tess_close(t))

contains
  subroutine ok(status)
    integer(c_int32_t), intent(in) :: status
    if (status >= 0) return
    write (error_unit, '(a)') tess_last_error()
    stop tess_exit_code(status), quiet=.true.
  end subroutine

  subroutine take(at, n_weights, n_biases, weights, biases)
    type(c_ptr), intent(in) :: at(2)
    integer, intent(in) :: n_weights, n_biases
    real(c_float), pointer, intent(out) :: weights(:), biases(:)
    call c_f_pointer(at(1), weights, [n_weights])
    call c_f_pointer(at(2), biases, [n_biases])
  end subroutine
end program
