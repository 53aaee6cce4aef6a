/* The solver's side of sk.coupled in C and C++; docs/coupled.md has the whole of it.

       mpicc -o solver solver.c $(shardkit flags)
       mpiexec -n 3 ./solver : -n 1 python train.py

   Each function returns SK_OK, or a code that sk_last_error() explains; none ends the program. */

#ifndef SHARDKIT_H
#define SHARDKIT_H

#include <mpi.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SK_OK,
    SK_ERROR_ORDER,    /* a call in the wrong order, or one that trainers refuse */
    SK_ERROR_ARGUMENT, /* a wrong argument, array or option */
    SK_ERROR_MPI,      /* MPI is not running, or not for this thread */
    SK_ERROR_PYTHON,   /* no interpreter, or none with shardkit */
    SK_ERROR_LOST,     /* another rank is lost */
    SK_ERROR_OTHER     /* what else Python has raised */
};

#define SK_MAX_DIMS 8

/* An array of the caller. dtype: its name in NumPy. strides: bytes; all 0: C order. */
typedef struct {
    const void *values;
    const char *dtype;
    int num_dims;
    int64_t shape[SK_MAX_DIMS];
    int64_t strides[SK_MAX_DIMS];
} sk_array;

/* Collective over comm: the last so many ranks are the trainers, in Python. options: those of
   sk.coupled for solver ranks, as "in_flight=8 on_loss=go_on"; NULL: none. */
int sk_start(MPI_Comm comm, int trainers, const char *options);
/* The communicator of the solver ranks, until sk_close(). */
int sk_solvers(MPI_Comm *comm);
/* An array that each sk_put() reads from now on, where it lies. */
int sk_field(const char *name, const sk_array *array);
/* A sample. time: its stamp; NaN: the number of the put. weight: above 0. */
int sk_put(double time, double weight);
/* The newest model's output for x, written into y, whose shape and dtype it must have. */
int sk_predict(const sk_array *x, const sk_array *y);
/* Numbers that trainers have sent by steer(name=...). count: how many; 0: none yet. */
int sk_steered(const char *name, double *values, int room, int *count);
/* 0 once the trainers have finished, or are lost. */
int sk_is_training(int *is_training);
/* No more puts from this rank. */
int sk_finish(void);
/* Collective over comm; before MPI_Finalize(). sk_start() may follow. */
int sk_close(void);
/* What the last call of this thread refused, or "". */
const char *sk_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
