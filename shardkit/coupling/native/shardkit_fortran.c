/* What shardkit.f90 declares: handles of MPI are integers, texts and arrays describe themselves
   (Fortran 2018). The dims of a Fortran array are reversed, its memory is read as it lies. */

#include <ISO_Fortran_binding.h>
#include <math.h>
#include <string.h>

#include "shardkit.h"

typedef const CFI_cdesc_t *described; /* NULL: an optional argument that is absent */
enum { LETTERS = 1000 };

static const struct {
    CFI_type_t kind;
    const char *dtype;
} dtypes[] = {
    {CFI_type_float, "float32"},           {CFI_type_double, "float64"},
    {CFI_type_float_Complex, "complex64"}, {CFI_type_double_Complex, "complex128"},
    {CFI_type_int8_t, "int8"},             {CFI_type_int16_t, "int16"},
    {CFI_type_int32_t, "int32"},           {CFI_type_int64_t, "int64"},
};

static sk_array as_it_lies(described given) {
    sk_array array = {given->base_addr, "no number of C", given->rank, {0}, {0}};
    for (unsigned each = 0; each < sizeof dtypes / sizeof *dtypes; each++)
        if (given->type == dtypes[each].kind) array.dtype = dtypes[each].dtype;
    for (int dim = 0; dim < given->rank && dim < SK_MAX_DIMS; dim++) {
        int from = given->rank - 1 - dim;
        array.shape[dim] = given->dim[from].extent;
        array.strides[dim] = given->dim[from].sm;
    }
    return array;
}

static const char *text_of(described given, char *letters) {
    size_t used = given == NULL ? 0 : given->elem_len;
    while (used > 0 && ((const char *)given->base_addr)[used - 1] == ' ') used--;
    if (used >= LETTERS) used = LETTERS - 1;
    if (used > 0) memcpy(letters, given->base_addr, used);
    letters[used] = 0;
    return letters;
}

int sk_start_f(int comm, int trainers, described options) {
    char letters[LETTERS];
    return sk_start(MPI_Comm_f2c((MPI_Fint)comm), trainers, text_of(options, letters));
}

int sk_solvers_f(int *comm) {
    MPI_Comm solvers;
    int code = sk_solvers(&solvers);
    *comm = (int)MPI_Comm_c2f(solvers);
    return code;
}

int sk_field_f(described name, described values) {
    char letters[LETTERS];
    sk_array array = as_it_lies(values);
    return sk_field(text_of(name, letters), &array);
}

int sk_put_f(const double *time, const double *weight) {
    return sk_put(time ? *time : NAN, weight ? *weight : 1.0);
}

int sk_predict_f(described x, described y) {
    sk_array from = as_it_lies(x), into = as_it_lies(y);
    return sk_predict(&from, &into);
}

int sk_steered_f(described name, double *values, int room, int *count) {
    char letters[LETTERS];
    return sk_steered(text_of(name, letters), values, room, count);
}

void sk_last_error_f(described text) {
    size_t used = strlen(sk_last_error()), room = text->elem_len;
    memset(text->base_addr, ' ', room);
    memcpy(text->base_addr, sk_last_error(), used < room ? used : room);
}
