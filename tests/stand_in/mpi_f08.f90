! Of the module mpi_f08 what examples/coupled/heat.f90 uses, for an MPI without Fortran (the wheels).

module mpi_f08
  use, intrinsic :: iso_c_binding, only: c_int
  implicit none
  type, bind(C) :: MPI_Comm
    integer(c_int) :: MPI_VAL
  end type
  type :: MPI_Status
  end type
  type :: MPI_Datatype
  end type
  type(MPI_Comm), protected :: MPI_COMM_WORLD
  type(MPI_Status), parameter :: MPI_STATUS_IGNORE = MPI_Status()
  type(MPI_Datatype), parameter :: MPI_REAL = MPI_Datatype()

  interface
    integer(c_int) function start() bind(C, name="stand_in_start")
      import :: c_int
    end function
    subroutine MPI_Finalize() bind(C, name="stand_in_finalize")
    end subroutine
    subroutine MPI_Abort(comm, code) bind(C, name="stand_in_abort")
      import :: c_int, MPI_Comm
      type(MPI_Comm), value :: comm
      integer(c_int), value :: code
    end subroutine
    subroutine MPI_Comm_rank(comm, rank) bind(C, name="stand_in_rank")
      import :: c_int, MPI_Comm
      type(MPI_Comm), value :: comm
      integer(c_int) :: rank
    end subroutine
    subroutine MPI_Comm_size(comm, size) bind(C, name="stand_in_size")
      import :: c_int, MPI_Comm
      type(MPI_Comm), value :: comm
      integer(c_int) :: size
    end subroutine
    subroutine exchange(sent, count, to, tag, received, source, comm) bind(C, name="stand_in_exchange")
      import :: c_int, MPI_Comm
      real, intent(in) :: sent(*)
      real :: received(*)
      integer(c_int), value :: count, to, tag, source
      type(MPI_Comm), value :: comm
    end subroutine
  end interface

contains

  subroutine MPI_Init()
    MPI_COMM_WORLD = MPI_Comm(start())
  end subroutine

  subroutine MPI_Sendrecv(sent, count, kind, to, tag, received, room, its_kind, source, its_tag, &
                          comm, status)
    real, intent(in) :: sent(*)
    real :: received(*)
    integer, intent(in) :: count, to, tag, room, source, its_tag
    type(MPI_Datatype), intent(in) :: kind, its_kind
    type(MPI_Comm), intent(in) :: comm
    type(MPI_Status), intent(in) :: status
    call exchange(sent, count, to, tag, received, source, comm)
  end subroutine

end module
