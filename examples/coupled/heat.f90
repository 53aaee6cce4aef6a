! The solver of heat.c in Fortran: the same numbers, and the same losses.
!
!     mpif90 -O2 -o heat $(shardkit flags --fortran) heat.f90
!     mpiexec -n 3 ./heat : -n 1 python train.py

program heat
  use mpi_f08
  use shardkit
  use, intrinsic :: iso_fortran_env, only: error_unit, int64, real32, real64
  implicit none
  integer, parameter :: rows = 4, columns = 8
  real(real32), target :: before(columns, 0:rows + 1) = 0, after(columns, rows) = 0
  real(real32) :: predicted(columns*rows, 1)
  real(real32), pointer :: batch(:, :)
  real(real64) :: loss(1)
  type(MPI_Comm) :: comm
  integer(int64) :: drawn
  integer :: rank, num_ranks, number, num_steps, count
  character(20) :: argument

  call get_command_argument(1, argument)
  num_steps = 400
  if (argument /= "") read (argument, *) num_steps
  batch(1:size(before), 1:1) => before
  call MPI_Init()
  call must(sk_start(MPI_COMM_WORLD%MPI_VAL, 1))
  call must(sk_solvers(comm%MPI_VAL))
  call MPI_Comm_rank(comm, rank)
  call MPI_Comm_size(comm, num_ranks)
  drawn = rank + 1
  call must(sk_field("x", before)) ! [rows + 2, columns] of the trainers
  call must(sk_field("y", after))
  do number = 0, num_steps - 1
    call step()
    call must(sk_put(time=real(number, real64)))
    call must(sk_steered("loss", loss, 1, count))
    if (rank == 0 .and. count > 0 .and. mod(number, 100) == 99) print *, "step", number, "loss", loss
  end do
  call step()
  call must(sk_predict(batch, predicted))
  print '(a, i0, a, es8.1)', "rank ", rank, " predicts its next step to ", &
    maxval(abs(reshape(predicted, shape(after)) - after))
  call must(sk_finish())
  call must(sk_close())
  call MPI_Finalize()

contains

  subroutine must(code)
    integer, intent(in) :: code
    character(1000) :: why
    if (code == 0) return
    call sk_last_error(why)
    write (error_unit, '(a)') trim(why)
    call MPI_Abort(MPI_COMM_WORLD, code)
  end subroutine

  subroutine step()
    integer :: row, column
    before(:, 1:rows) = after
    do row = 1, rows
      do column = 1, columns
        drawn = mod(drawn*16807, 2147483647_int64)
        before(column, row) = before(column, row) + (real(drawn, real32)/2147483648.0 - 0.5)
      end do
    end do
    call exchange_halos()
    associate (u => before(:, 1:rows))
      after = 0.2*((before(:, 0:rows - 1) + before(:, 2:rows + 1)) &
                   + (cshift(u, -1, 1) + cshift(u, 1, 1))) + 0.1*u
    end associate
  end subroutine

  subroutine exchange_halos()
    integer :: above, below
    above = modulo(rank - 1, num_ranks)
    below = modulo(rank + 1, num_ranks)
    call MPI_Sendrecv(before(:, 1), columns, MPI_REAL, above, 0, before(:, rows + 1), columns, &
                      MPI_REAL, below, 0, comm, MPI_STATUS_IGNORE)
    call MPI_Sendrecv(before(:, rows), columns, MPI_REAL, below, 1, before(:, 0), columns, &
                      MPI_REAL, above, 1, comm, MPI_STATUS_IGNORE)
  end subroutine

end program
