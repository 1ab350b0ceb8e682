! SPDX-License-Identifier: BSD-3-Clause
! tessera.f90: the calls of a first training loop for Fortran 2008, over tessera.h, which says what each does. Compile it
! with your program: compilers do not read each other's modules. A name is that of C. A status below 0 is a failure, of
! which tess_last_error() has one sentence. Optional arguments that are missing are the default, as zero fields are in C.
! Pointers to parameters and gradients come as type(c_ptr); c_f_pointer makes arrays of them, in C's order of elements.
module tessera
  use, intrinsic :: iso_c_binding
  implicit none
  private
  integer, parameter, public :: tess_f32 = 7, tess_f64 = 8, tess_bf16 = 6
  integer, parameter, public :: tess_sum = 1, tess_min = 2, tess_max = 3, tess_avg = 4
  integer, parameter, public :: tess_pass_train = 1, tess_pass_eval = 2
  integer, parameter, public :: tess_frozen = 1, tess_grad_overwrite = 2, tess_buffer = 4
  integer, parameter, public :: tess_of_param = 1

  type, bind(c), public :: tess_range
    integer(c_int32_t) :: struct_size
    integer(c_int32_t) :: param
    integer(c_int64_t) :: tag, slice, slice_elems, first_elem, elems
    type(c_ptr) :: name
    integer(c_int64_t) :: stacked_first
  end type

  abstract interface
    !> The starting values of a range, or a reader of it: data holds range%elems elements.
    function tess_range_fn(user, range, data) bind(c) result(status)
      import :: c_ptr, c_int32_t, tess_range
      type(c_ptr), value :: user
      type(tess_range), intent(in) :: range
      type(c_ptr), value :: data
      integer(c_int32_t) :: status
    end function
  end interface

  public :: tess_open, tess_close, tess_last_error, tess_exit_code, tess_rank, tess_ranks, tess_accum, tess_microbatch
  public :: tess_scope_add, tess_param_add, tess_param_tie, tess_shard, tess_each_full, tess_range_fn
  public :: tess_pass, tess_forward_begin, tess_forward_end, tess_backward_begin, tess_backward_end
  public :: tess_step, tess_grad_norm, tess_grad_drop, tess_all_reduce, tess_barrier

  type, bind(c) :: options
    integer(c_int32_t) :: struct_size = 0, pointer_mem = 0
    type(c_ptr) :: comm = c_null_ptr, offload = c_null_ptr, precision = c_null_ptr, wrap = c_null_ptr
    type(c_ptr) :: strategy = c_null_ptr, device = c_null_ptr, optimizer = c_null_ptr
    real(c_float) :: momentum = 0
    integer(c_int32_t) :: accum = 0
    integer(c_int64_t) :: device_memory_bytes = 0, input_bytes = 0
    type(c_ptr) :: stream = c_null_ptr
    integer(c_int32_t) :: plan_only = 0, flags = 0, ranks = 0, own_states = 0
    type(c_ptr) :: activations = c_null_ptr, sync = c_null_ptr, prefetch = c_null_ptr, log = c_null_ptr
    integer(c_int64_t) :: host_memory_bytes = 0
    integer(c_int32_t) :: threads = 0, deterministic = 0, strict = 0, n_settings = 0
    type(c_ptr) :: settings = c_null_ptr
    type(c_funptr) :: plan_alternative = c_null_funptr
    type(c_ptr) :: plan_user = c_null_ptr
    integer(c_int32_t) :: checkpoint = 0, recover = 0, mirror = 0, microbatches = 0
    type(c_ptr) :: group = c_null_ptr
    type(c_ptr) :: audit = c_null_ptr, on_audit = c_null_ptr ! of blocks, which a program by hooks has none of
    type(c_funptr) :: audit_failed = c_null_funptr
    type(c_ptr) :: audit_user = c_null_ptr, common = c_null_ptr
    integer(c_int64_t) :: common_bytes = 0
  end type

  type, bind(c) :: param_options
    integer(c_int32_t) :: struct_size = 0, dtype = 0, flags = 0, compute_dtypes = 0
    type(c_ptr) :: name = c_null_ptr
    integer(c_int64_t) :: stack = 0
    type(c_ptr) :: shape = c_null_ptr
    integer(c_int32_t) :: ndim = 0, optimizer_group = 0
    integer(c_int64_t) :: tag = 0
  end type

  type, bind(c) :: optimizer_group
    real(c_float) :: weight_decay = 0, lr_scale = 0
  end type

  type, bind(c) :: optimizer_options
    integer(c_int32_t) :: struct_size = 0
    real(c_float) :: lr = 0, beta1 = 0, beta2 = 0, eps = 0, rho = 0, momentum = 0, grad_scale = 0, clip_norm = 0
    integer(c_int32_t) :: n_groups = 0
    type(c_ptr) :: groups = c_null_ptr
    integer(c_int64_t) :: step = 0
    type(c_ptr) :: group_lr = c_null_ptr
  end type

  interface
    function c_open(o, t) bind(c, name="tess_open") result(status)
      import :: c_ptr, c_int32_t, options
      type(options), intent(in) :: o
      type(c_ptr), intent(out) :: t
      integer(c_int32_t) :: status
    end function
    function c_last_error() bind(c, name="tess_last_error") result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function
    pure function c_strlen(text) bind(c, name="strlen") result(n)
      import :: c_ptr, c_size_t
      type(c_ptr), value, intent(in) :: text
      integer(c_size_t) :: n
    end function
    function c_scope_add(t, name, stack, first) bind(c, name="tess_scope_add") result(status)
      import :: c_ptr, c_char, c_int32_t, c_int64_t
      type(c_ptr), value :: t
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: stack
      integer(c_int32_t), intent(out) :: first
      integer(c_int32_t) :: status
    end function
    function c_param_add(t, o, first) bind(c, name="tess_param_add") result(status)
      import :: c_ptr, c_int32_t, param_options
      type(c_ptr), value :: t
      type(param_options), intent(in) :: o
      integer(c_int32_t), intent(out) :: first
      integer(c_int32_t) :: status
    end function
    function c_param_tie(t, alias, of) bind(c, name="tess_param_tie") result(status)
      import :: c_ptr, c_char, c_int32_t
      type(c_ptr), value :: t
      character(kind=c_char), intent(in) :: alias(*), of(*)
      integer(c_int32_t) :: status
    end function
    function c_shard(t, fill, user) bind(c, name="tess_shard") result(status)
      import :: c_ptr, c_funptr, c_int32_t
      type(c_ptr), value :: t, user
      type(c_funptr), value :: fill
      integer(c_int32_t) :: status
    end function
    function c_each_full(t, of, fn, user) bind(c, name="tess_each_full") result(status)
      import :: c_ptr, c_funptr, c_int32_t
      type(c_ptr), value :: t, user
      integer(c_int32_t), value :: of
      type(c_funptr), value :: fn
      integer(c_int32_t) :: status
    end function
    function c_forward_begin(t, scope, params, n) bind(c, name="tess_forward_begin") result(status)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: t
      integer(c_int32_t), value :: scope, n
      type(c_ptr), intent(out) :: params(*)
      integer(c_int32_t) :: status
    end function
    function c_backward_begin(t, scope, params, grads, n) bind(c, name="tess_backward_begin") result(status)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: t
      integer(c_int32_t), value :: scope, n
      type(c_ptr), intent(out) :: params(*), grads(*)
      integer(c_int32_t) :: status
    end function
    function c_step(t, o) bind(c, name="tess_step") result(status)
      import :: c_ptr, c_int32_t, optimizer_options
      type(c_ptr), value :: t
      type(optimizer_options), intent(in) :: o
      integer(c_int32_t) :: status
    end function
    function c_all_reduce(t, host, elems, dtype, op) bind(c, name="tess_all_reduce") result(status)
      import :: c_ptr, c_int32_t, c_int64_t
      type(c_ptr), value :: t, host
      integer(c_int64_t), value :: elems
      integer(c_int32_t), value :: dtype, op
      integer(c_int32_t) :: status
    end function

    ! These are C's as they are.
    function tess_close(t) bind(c) result(status)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: t
      integer(c_int32_t) :: status
    end function
    function tess_exit_code(failed) bind(c) result(code)
      import :: c_int, c_int32_t
      integer(c_int32_t), value :: failed
      integer(c_int) :: code
    end function
    function tess_rank(t) bind(c) result(rank)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: t
      integer(c_int32_t) :: rank
    end function
    function tess_ranks(t) bind(c) result(ranks)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: t
      integer(c_int32_t) :: ranks
    end function
    function tess_accum(t) bind(c) result(microbatches)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: t
      integer(c_int32_t) :: microbatches
    end function
    !> k counts from 0, and so does what comes back.
    function tess_microbatch(t, k) bind(c) result(global)
      import :: c_ptr, c_int64_t
      type(c_ptr), value :: t
      integer(c_int64_t), value :: k
      integer(c_int64_t) :: global
    end function
    function tess_pass(t, kind) bind(c) result(status)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: t
      integer(c_int32_t), value :: kind
      integer(c_int32_t) :: status
    end function
    function tess_forward_end(t, scope) bind(c) result(status)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: t
      integer(c_int32_t), value :: scope
      integer(c_int32_t) :: status
    end function
    function tess_backward_end(t, scope) bind(c) result(status)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: t
      integer(c_int32_t), value :: scope
      integer(c_int32_t) :: status
    end function
    function tess_grad_norm(t, norm) bind(c) result(status)
      import :: c_ptr, c_int32_t, c_float
      type(c_ptr), value :: t
      real(c_float), intent(out) :: norm
      integer(c_int32_t) :: status
    end function
    function tess_grad_drop(t) bind(c) result(status)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: t
      integer(c_int32_t) :: status
    end function
    function tess_barrier(t) bind(c) result(status)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: t
      integer(c_int32_t) :: status
    end function
  end interface

  !> Of one number or of several, on the host.
  interface tess_all_reduce
    module procedure all_reduce_real32, all_reduce_real64, all_reduce_real32s, all_reduce_real64s
  end interface

contains

  function tess_open(t, optimizer, accum, microbatches, momentum) result(status)
    type(c_ptr), intent(out) :: t
    character(*), intent(in), optional :: optimizer
    integer, intent(in), optional :: accum, microbatches
    real(c_float), intent(in), optional :: momentum
    integer(c_int32_t) :: status
    type(options) :: o
    character(kind=c_char), target :: text(80)
    o%struct_size = int(c_sizeof(o), c_int32_t)
    if (present(optimizer)) then
      text = c_null_char
      text(:min(len(optimizer), 79)) = transfer(optimizer, text, min(len(optimizer), 79))
      o%optimizer = c_loc(text)
    end if
    if (present(accum)) o%accum = accum
    if (present(microbatches)) o%microbatches = microbatches
    if (present(momentum)) o%momentum = momentum
    t = c_null_ptr
    status = c_open(o, t)
  end function

  function tess_last_error() result(text)
    character(:), allocatable :: text
    character(kind=c_char), pointer :: chars(:)
    type(c_ptr) :: at
    integer :: i
    at = c_last_error()
    call c_f_pointer(at, chars, [c_strlen(at)])
    allocate (character(size(chars)) :: text)
    do i = 1, size(chars)
      text(i:i) = chars(i)
    end do
  end function

  function tess_scope_add(t, name, first, stack) result(status)
    type(c_ptr), intent(in) :: t
    character(*), intent(in) :: name
    integer(c_int32_t), intent(out) :: first
    integer, intent(in), optional :: stack
    integer(c_int32_t) :: status
    integer(c_int64_t) :: slices
    slices = 0
    if (present(stack)) slices = stack
    status = c_scope_add(t, name // c_null_char, slices, first)
  end function

  !> shape is in C's order: the last one's elements are neighbours. Without dtype it is tess_f32.
  function tess_param_add(t, name, shape, stack, dtype, flags, group, first) result(status)
    type(c_ptr), intent(in) :: t
    character(*), intent(in) :: name
    integer, intent(in) :: shape(:)
    integer, intent(in), optional :: stack, dtype, flags, group
    integer(c_int32_t), intent(out), optional :: first
    integer(c_int32_t) :: status, handle
    type(param_options) :: o
    integer(c_int64_t), target :: sizes(size(shape))
    character(kind=c_char), target :: text(len(name) + 1)
    sizes = shape
    text = transfer(name // c_null_char, text)
    o%struct_size = int(c_sizeof(o), c_int32_t)
    o%dtype = tess_f32
    o%name = c_loc(text)
    o%shape = c_loc(sizes)
    o%ndim = size(shape)
    if (present(stack)) o%stack = stack
    if (present(dtype)) o%dtype = dtype
    if (present(flags)) o%flags = flags
    if (present(group)) o%optimizer_group = group
    status = c_param_add(t, o, handle)
    if (present(first) .and. status >= 0) first = handle
  end function

  function tess_param_tie(t, alias, of) result(status)
    type(c_ptr), intent(in) :: t
    character(*), intent(in) :: alias, of
    integer(c_int32_t) :: status
    status = c_param_tie(t, alias // c_null_char, of // c_null_char)
  end function

  function tess_shard(t, fill, user) result(status)
    type(c_ptr), intent(in) :: t
    procedure(tess_range_fn) :: fill
    type(c_ptr), intent(in), optional :: user
    integer(c_int32_t) :: status
    type(c_ptr) :: own
    own = c_null_ptr
    if (present(user)) own = user
    status = c_shard(t, c_funloc(fill), own)
  end function

  function tess_each_full(t, of, fn, user) result(status)
    type(c_ptr), intent(in) :: t
    integer(c_int32_t), intent(in) :: of
    procedure(tess_range_fn) :: fn
    type(c_ptr), intent(in), optional :: user
    integer(c_int32_t) :: status
    type(c_ptr) :: own
    own = c_null_ptr
    if (present(user)) own = user
    status = c_each_full(t, of, c_funloc(fn), own)
  end function

  function tess_forward_begin(t, scope, params) result(status)
    type(c_ptr), intent(in) :: t
    integer(c_int32_t), intent(in) :: scope
    type(c_ptr), intent(inout) :: params(:)
    integer(c_int32_t) :: status
    status = c_forward_begin(t, scope, params, size(params))
  end function

  function tess_backward_begin(t, scope, params, grads) result(status)
    type(c_ptr), intent(in) :: t
    integer(c_int32_t), intent(in) :: scope
    type(c_ptr), intent(inout) :: params(:), grads(:)
    integer(c_int32_t) :: status
    status = c_backward_begin(t, scope, params, grads, size(params))
  end function

  !> weight_decay is of all parameters of optimizer group 0.
  function tess_step(t, lr, beta1, beta2, eps, momentum, grad_scale, clip_norm, weight_decay) result(status)
    type(c_ptr), intent(in) :: t
    real(c_float), intent(in) :: lr
    real(c_float), intent(in), optional :: beta1, beta2, eps, momentum, grad_scale, clip_norm, weight_decay
    integer(c_int32_t) :: status
    type(optimizer_options) :: o
    type(optimizer_group), target :: group
    o%struct_size = int(c_sizeof(o), c_int32_t)
    o%lr = lr
    if (present(beta1)) o%beta1 = beta1
    if (present(beta2)) o%beta2 = beta2
    if (present(eps)) o%eps = eps
    if (present(momentum)) o%momentum = momentum
    if (present(grad_scale)) o%grad_scale = grad_scale
    if (present(clip_norm)) o%clip_norm = clip_norm
    if (present(weight_decay)) then
      group%weight_decay = weight_decay
      o%groups = c_loc(group)
      o%n_groups = 1
    end if
    status = c_step(t, o)
  end function

  function all_reduce_real32(t, value, op) result(status)
    type(c_ptr), intent(in) :: t
    real(c_float), intent(inout), target :: value
    integer(c_int32_t), intent(in) :: op
    integer(c_int32_t) :: status
    status = c_all_reduce(t, c_loc(value), 1_c_int64_t, tess_f32, op)
  end function

  function all_reduce_real64(t, value, op) result(status)
    type(c_ptr), intent(in) :: t
    real(c_double), intent(inout), target :: value
    integer(c_int32_t), intent(in) :: op
    integer(c_int32_t) :: status
    status = c_all_reduce(t, c_loc(value), 1_c_int64_t, tess_f64, op)
  end function

  function all_reduce_real32s(t, values, op) result(status)
    type(c_ptr), intent(in) :: t
    real(c_float), intent(inout), contiguous, target :: values(:)
    integer(c_int32_t), intent(in) :: op
    integer(c_int32_t) :: status
    status = c_all_reduce(t, c_loc(values), size(values, kind=c_int64_t), tess_f32, op)
  end function

  function all_reduce_real64s(t, values, op) result(status)
    type(c_ptr), intent(in) :: t
    real(c_double), intent(inout), contiguous, target :: values(:)
    integer(c_int32_t), intent(in) :: op
    integer(c_int32_t) :: status
    status = c_all_reduce(t, c_loc(values), size(values, kind=c_int64_t), tess_f64, op)
  end function
end module
