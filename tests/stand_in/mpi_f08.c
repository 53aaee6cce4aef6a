/* What mpi_f08.f90 calls. */

#include <mpi.h>
#include <stddef.h>

static MPI_Comm comm_of(int handle) { return MPI_Comm_f2c((MPI_Fint)handle); }

int stand_in_start(void) {
    MPI_Init(NULL, NULL);
    return (int)MPI_Comm_c2f(MPI_COMM_WORLD);
}

void stand_in_finalize(void) { MPI_Finalize(); }

void stand_in_abort(int comm, int code) { MPI_Abort(comm_of(comm), code); }

void stand_in_rank(int comm, int *rank) { MPI_Comm_rank(comm_of(comm), rank); }

void stand_in_size(int comm, int *size) { MPI_Comm_size(comm_of(comm), size); }

void stand_in_exchange(const void *sent, int count, int to, int tag, void *received, int source,
                       int comm) {
    MPI_Sendrecv(sent, count, MPI_FLOAT, to, tag, received, count, MPI_FLOAT, source, tag,
                 comm_of(comm), MPI_STATUS_IGNORE);
}
