! The functions of shardkit.h for Fortran; each returns 0, or a code that sk_last_error() explains.
!
!     mpif90 -o solver $(shardkit flags --fortran) solver.f90
!
! comm is an integer: MPI_COMM_WORLD of module mpi, comm%MPI_VAL of mpi_f08. An array u(nx, ny) of
! any kind of number is the field u [ny, nx] of the trainers. sk_put() reads it later, where it
! lies: give it the attribute target (or asynchronous), as for MPI_Isend.

module shardkit
  use, intrinsic :: iso_c_binding, only: c_char, c_double, c_f_pointer, c_int, c_null_char, &
                                         c_ptr, c_size_t
  use, intrinsic :: ieee_arithmetic, only: ieee_quiet_nan, ieee_value
  implicit none
  private
  public :: sk_start, sk_solvers, sk_field, sk_put, sk_predict, sk_steered, sk_is_training, &
            sk_finish, sk_close, sk_last_error

  interface
    integer(c_int) function sk_solvers(comm) bind(C, name="sk_solvers_f")
      import :: c_int
      integer(c_int), intent(out) :: comm
    end function
    integer(c_int) function sk_predict(x, y) bind(C, name="sk_predict_f")
      type(*), dimension(..), intent(in) :: x
      type(*), dimension(..), intent(inout) :: y
    end function
    integer(c_int) function sk_finish() bind(C)
      import :: c_int
    end function
    integer(c_int) function sk_close() bind(C)
      import :: c_int
    end function

    integer(c_int) function start(comm, trainers, options) bind(C, name="sk_start_f")
      import :: c_char, c_int
      integer(c_int), value :: comm, trainers
      character(kind=c_char), intent(in) :: options(*)
    end function
    integer(c_int) function field(name, values) bind(C, name="sk_field_f")
      import :: c_char, c_int
      character(kind=c_char), intent(in) :: name(*)
      type(*), dimension(..), intent(in), target :: values
    end function
    integer(c_int) function put(time, weight) bind(C, name="sk_put")
      import :: c_double, c_int
      real(c_double), value :: time, weight
    end function
    integer(c_int) function steered(name, values, room, count) bind(C, name="sk_steered")
      import :: c_char, c_double, c_int
      character(kind=c_char), intent(in) :: name(*)
      real(c_double), intent(inout) :: values(*)
      integer(c_int), value :: room
      integer(c_int), intent(out) :: count
    end function
    integer(c_int) function is_training(flag) bind(C, name="sk_is_training")
      import :: c_int
      integer(c_int), intent(out) :: flag
    end function
    type(c_ptr) function last_error() bind(C, name="sk_last_error")
      import :: c_ptr
    end function
    integer(c_size_t) function strlen(text) bind(C)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
    end function
  end interface

contains

  integer function sk_start(comm, trainers, options) result(code)
    integer, intent(in) :: comm, trainers
    character(*), intent(in), optional :: options
    if (present(options)) then
      code = start(comm, trainers, trim(options)//c_null_char)
    else
      code = start(comm, trainers, c_null_char)
    end if
  end function

  integer function sk_field(name, values) result(code)
    character(*), intent(in) :: name
    type(*), dimension(..), intent(in), target :: values
    code = field(trim(name)//c_null_char, values)
  end function

  integer function sk_put(time, weight) result(code)
    real(c_double), intent(in), optional :: time, weight
    real(c_double) :: stamp, chance
    stamp = ieee_value(stamp, ieee_quiet_nan) ! the number of the put
    chance = 1
    if (present(time)) stamp = time
    if (present(weight)) chance = weight
    code = put(stamp, chance)
  end function

  integer function sk_steered(name, values, count) result(code)
    character(*), intent(in) :: name
    real(c_double), contiguous, intent(inout) :: values(:)
    integer, intent(out) :: count
    code = steered(trim(name)//c_null_char, values, size(values), count)
  end function

  integer function sk_is_training(flag) result(code)
    logical, intent(out) :: flag
    integer(c_int) :: found
    code = is_training(found)
    flag = found /= 0
  end function

  function sk_last_error() result(text)
    character(:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: each
    call c_f_pointer(last_error(), letters, [strlen(last_error())])
    allocate (character(size(letters)) :: text)
    do each = 1, size(letters)
      text(each:each) = letters(each)
    end do
  end function

end module
