! The functions of shardkit.h for Fortran 2018 (gfortran 12); each returns 0, or a code that
! sk_last_error() explains.
!
!     mpif90 -o solver $(shardkit flags --fortran) solver.f90
!
! comm is an integer: MPI_COMM_WORLD of module mpi, MPI_COMM_WORLD%MPI_VAL of mpi_f08. An array
! u(nx, ny) of numbers is the field u [ny, nx] of the trainers. sk_put() reads it later where it
! lies, so it is a target of the caller, not a temporary.

module shardkit
  use, intrinsic :: iso_c_binding, only: c_char, c_double, c_int
  implicit none
  private :: c_char, c_double, c_int

  interface
    integer(c_int) function sk_start(comm, trainers, options) bind(C, name="sk_start_f")
      import
      integer(c_int), value :: comm, trainers
      character(kind=c_char, len=*), intent(in), optional :: options
    end function
    integer(c_int) function sk_solvers(comm) bind(C, name="sk_solvers_f")
      import
      integer(c_int), intent(out) :: comm
    end function
    integer(c_int) function sk_field(name, values) bind(C, name="sk_field_f")
      import
      character(kind=c_char, len=*), intent(in) :: name
      type(*), dimension(..), intent(in), target :: values
    end function
    integer(c_int) function sk_put(time, weight) bind(C, name="sk_put_f")
      import
      real(c_double), intent(in), optional :: time, weight
    end function
    integer(c_int) function sk_predict(x, y) bind(C, name="sk_predict_f")
      import
      type(*), dimension(..), intent(in) :: x
      type(*), dimension(..), intent(inout) :: y
    end function
    integer(c_int) function sk_steered(name, values, room, count) bind(C, name="sk_steered_f")
      import
      character(kind=c_char, len=*), intent(in) :: name
      integer(c_int), value :: room
      real(c_double), intent(inout) :: values(room)
      integer(c_int), intent(out) :: count
    end function
    integer(c_int) function sk_is_training(flag) bind(C)
      import
      integer(c_int), intent(out) :: flag ! 0 or 1
    end function
    integer(c_int) function sk_finish() bind(C)
      import
    end function
    integer(c_int) function sk_close() bind(C)
      import
    end function
    subroutine sk_last_error(text) bind(C, name="sk_last_error_f")
      import
      character(kind=c_char, len=*), intent(out) :: text
    end subroutine
  end interface
end module
