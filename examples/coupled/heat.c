/* A solver of the heat equation in C that puts its steps to train.py, and predicts the next one.

       mpicc -O2 -o heat heat.c $(shardkit flags)
       mpiexec -n 3 ./heat : -n 1 python train.py

   Each rank holds a slab of rows and exchanges halos. heat.f90 and heat.py solve the same, to the
   last bit if the compiler fuses no products with sums (-ffp-contract=off). */

#include <math.h>
#include <shardkit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 4, COLUMNS = 8 };
static float before[ROWS + 2][COLUMNS], after[ROWS][COLUMNS], predicted[ROWS][COLUMNS];
static int64_t drawn;

static void must(int code) {
    if (code == SK_OK) return;
    fprintf(stderr, "%s\n", sk_last_error());
    MPI_Abort(MPI_COMM_WORLD, code);
}

static void heat(void) {
    for (int row = 1; row <= ROWS; row++)
        for (int column = 0; column < COLUMNS; column++) {
            drawn = drawn * 16807 % 2147483647;
            before[row][column] += (float)drawn / 2147483648.0f - 0.5f;
        }
}

static void exchange_halos(MPI_Comm comm) {
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int above = (rank + size - 1) % size, below = (rank + 1) % size;
    MPI_Sendrecv(before[1], COLUMNS, MPI_FLOAT, above, 0, before[ROWS + 1], COLUMNS, MPI_FLOAT,
                 below, 0, comm, MPI_STATUS_IGNORE);
    MPI_Sendrecv(before[ROWS], COLUMNS, MPI_FLOAT, below, 1, before[0], COLUMNS, MPI_FLOAT, above,
                 1, comm, MPI_STATUS_IGNORE);
}

static void step(MPI_Comm comm) {
    memcpy(before[1], after, sizeof after);
    heat();
    exchange_halos(comm);
    for (int row = 1; row <= ROWS; row++)
        for (int column = 0; column < COLUMNS; column++) {
            float left = before[row][(column + COLUMNS - 1) % COLUMNS];
            float right = before[row][(column + 1) % COLUMNS];
            float near = (before[row - 1][column] + before[row + 1][column]) + (left + right);
            after[row - 1][column] = 0.2f * near + 0.1f * before[row][column]; /* and it cools */
        }
}

static float worst_error(void) {
    float worst = 0;
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++)
            worst = fmaxf(worst, fabsf(predicted[row][column] - after[row][column]));
    return worst;
}

int main(int argc, char **argv) {
    int rank, count, num_steps = argc > 1 ? atoi(argv[1]) : 400;
    double loss;
    MPI_Comm comm;
    sk_array x = {before, "float32", 2, {ROWS + 2, COLUMNS}}, y = {after, "float32", 2, {ROWS, COLUMNS}};
    sk_array batch = {before, "float32", 2, {1, (ROWS + 2) * COLUMNS}};
    sk_array output = {predicted, "float32", 2, {1, ROWS * COLUMNS}};
    MPI_Init(&argc, &argv);
    must(sk_start(MPI_COMM_WORLD, 1, NULL));
    must(sk_solvers(&comm));
    MPI_Comm_rank(comm, &rank);
    drawn = rank + 1;
    must(sk_field("x", &x));
    must(sk_field("y", &y));
    for (int number = 0; number < num_steps; number++) {
        step(comm);
        must(sk_put(number, 1.0));
        must(sk_steered("loss", &loss, 1, &count));
        if (rank == 0 && count && number % 100 == 99) printf("step %d: loss %g\n", number, loss);
    }
    step(comm);
    must(sk_predict(&batch, &output));
    printf("rank %d predicts its next step to %.2g\n", rank, worst_error());
    must(sk_finish());
    must(sk_close());
    MPI_Finalize();
    return 0;
}
