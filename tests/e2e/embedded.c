/* In the place of shardkit.c: what the Fortran module passes on, a line of each call. */

#include <math.h>
#include <shardkit.h>
#include <stdio.h>
#include <string.h>

static double first(const sk_array *of) {
    if (!strcmp(of->dtype, "float32") || !strcmp(of->dtype, "complex64"))
        return *(const float *)of->values;
    if (!strncmp(of->dtype, "float", 5) || !strcmp(of->dtype, "complex128"))
        return *(const double *)of->values;
    if (!strcmp(of->dtype, "int8")) return *(const int8_t *)of->values;
    if (!strcmp(of->dtype, "int16")) return *(const int16_t *)of->values;
    if (!strcmp(of->dtype, "int32")) return *(const int32_t *)of->values;
    return strcmp(of->dtype, "int64") ? 0.0 : (double)*(const int64_t *)of->values;
}

static void dims(const int64_t *sizes, int num_dims) {
    printf(" [");
    for (int dim = 0; dim < num_dims; dim++) printf(dim ? ", %ld" : "%ld", (long)sizes[dim]);
    printf("]");
}

int sk_start(MPI_Comm comm, int trainers, const char *options) {
    (void)comm;
    return printf("start %d [%s]\n", trainers, options), SK_OK;
}

int sk_solvers(MPI_Comm *comm) { return *comm = MPI_COMM_NULL, SK_OK; }

int sk_field(const char *name, const sk_array *array) {
    printf("field %s %s", name, array->dtype);
    dims(array->shape, array->num_dims);
    dims(array->strides, array->num_dims);
    return printf(" %g\n", first(array)), SK_OK;
}

int sk_put(double time, double weight) {
    if (isnan(time)) return printf("put number %g\n", weight), SK_OK;
    return printf("put %g %g\n", time, weight), SK_OK;
}

int sk_predict(const sk_array *x, const sk_array *y) {
    printf("predict");
    dims(x->shape, x->num_dims);
    dims(y->shape, y->num_dims);
    return printf("\n"), SK_OK;
}

int sk_steered(const char *name, double *values, int room, int *count) {
    values[room - 1] = *count = 3;
    return printf("steered %s %d", name, room), SK_OK;
}

int sk_is_training(int *is_training) { return *is_training = 1, SK_OK; }
int sk_finish(void) { return SK_OK; }
int sk_close(void) { return SK_ERROR_OTHER; }
const char *sk_last_error(void) { return "as C has it"; }
