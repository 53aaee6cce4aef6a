/* What shardkit.f90 calls: handles of MPI are integers, and an array describes itself (ISO C
   binding of Fortran 2018). The dims of a Fortran array are reversed, its memory is as it lies. */

#include <ISO_Fortran_binding.h>

#include "shardkit.h"

static const struct {
    CFI_type_t kind;
    const char *dtype;
} dtypes[] = {
    {CFI_type_float, "float32"},           {CFI_type_double, "float64"},
    {CFI_type_float_Complex, "complex64"}, {CFI_type_double_Complex, "complex128"},
    {CFI_type_int8_t, "int8"},             {CFI_type_int16_t, "int16"},
    {CFI_type_int32_t, "int32"},           {CFI_type_int64_t, "int64"},
};

static sk_array as_it_lies(const CFI_cdesc_t *given) {
    sk_array array = {given->base_addr, "of another kind", given->rank, {0}, {0}};
    for (unsigned each = 0; each < sizeof dtypes / sizeof *dtypes; each++)
        if (given->type == dtypes[each].kind) array.dtype = dtypes[each].dtype;
    for (int dim = 0; dim < given->rank && dim < SK_MAX_DIMS; dim++) {
        int from = given->rank - 1 - dim;
        array.shape[dim] = given->dim[from].extent;
        array.strides[dim] = given->dim[from].sm;
    }
    return array;
}

int sk_start_f(int comm, int trainers, const char *options) {
    return sk_start(MPI_Comm_f2c((MPI_Fint)comm), trainers, options);
}

int sk_solvers_f(int *comm) {
    MPI_Comm solvers;
    int code = sk_solvers(&solvers);
    *comm = (int)MPI_Comm_c2f(solvers);
    return code;
}

int sk_field_f(const char *name, const CFI_cdesc_t *values) {
    sk_array array = as_it_lies(values);
    return sk_field(name, &array);
}

int sk_predict_f(const CFI_cdesc_t *x, const CFI_cdesc_t *y) {
    sk_array from = as_it_lies(x), into = as_it_lies(y);
    return sk_predict(&from, &into);
}
