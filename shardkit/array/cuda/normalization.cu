// Layer norm and RMS norm over rows [num_rows, width], with the addition before them and with their gradients.
//
// branch, if it is not null, is added to x first and the sum written to total; a row is normalized as it is stored there.

__device__ __forceinline__ const STORED*
added(const STORED* x, const STORED* branch, STORED* total, long long width) {
    if (!branch) return x;
    for_packs(width, [&](long long j, long long count) {
        real a[PACK], b[PACK];
        load(a, x + j, count);
        load(b, branch + j, count);
        for (int k = 0; k < PACK; k++) a[k] += b[k];
        store(total + j, a, count);
    });
    return total;
}

extern "C" __global__ void __launch_bounds__(1024)
layer_norm(const STORED* x, const STORED* branch, STORED* total, const STORED* weight, const STORED* bias, double eps, STORED* y,
           real* mean, real* inverse, long long num_rows, long long width) {
    long long row = row_number(), at = row * width;
    if (row >= num_rows) return;
    x = added(x + at, branch ? branch + at : branch, total + at, width);
    real a[PACK], sum = 0, squares = 0;
    for_packs(width, [&](long long j, long long count) {
        load(a, x + j, count);
        for (int k = 0; k < PACK; k++) sum += a[k];
    });
    real middle = sum_over_row(sum) / (real)width;
    for_packs(width, [&](long long j, long long count) {
        load(a, x + j, count);
        for (int k = 0; k < PACK; k++)
            if (k < count) squares = fused(a[k] - middle, a[k] - middle, squares);
    });
    real scale = 1 / root_of(sum_over_row(squares) / (real)width + (real)eps);
    for_packs(width, [&](long long j, long long count) {
        real w[PACK], b[PACK];
        load(a, x + j, count);
        load(w, weight + j, count);
        load(b, bias + j, count);
        for (int k = 0; k < PACK; k++) a[k] = fused((a[k] - middle) * scale, w[k], b[k]);
        store(y + at + j, a, count);
    });
    if (threadIdx.x == 0) mean[row] = middle, inverse[row] = scale;
}

extern "C" __global__ void __launch_bounds__(1024)
rms_norm(const STORED* x, const STORED* branch, STORED* total, const STORED* weight, double eps, STORED* y, real* inverse,
         long long num_rows, long long width) {
    long long row = row_number(), at = row * width;
    if (row >= num_rows) return;
    x = added(x + at, branch ? branch + at : branch, total + at, width);
    real a[PACK], squares = 0;
    for_packs(width, [&](long long j, long long count) {
        load(a, x + j, count);
        for (int k = 0; k < PACK; k++) squares = fused(a[k], a[k], squares);
    });
    real scale = 1 / root_of(sum_over_row(squares) / (real)width + (real)eps);
    for_packs(width, [&](long long j, long long count) {
        real w[PACK];
        load(a, x + j, count);
        load(w, weight + j, count);
        for (int k = 0; k < PACK; k++) a[k] = a[k] * scale * w[k];
        store(y + at + j, a, count);
    });
    if (threadIdx.x == 0) inverse[row] = scale;
}
