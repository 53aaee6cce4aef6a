// Layer norm and RMS norm over rows [num_rows, width], with the addition before them and with their gradients.
//
// branch, if it is not null, is added to x first and the sum written to total; a row is normalized as it is stored there. A thread
// keeps its first packs of the row as they are stored; those behind them are read again.

constexpr int KEPT = 4;

struct Row {
    const STORED* from;
    int width;
    Packed<STORED> kept[KEPT];

    // each(pack, first column, number of columns), in the order of columns
    template <class Each> __device__ __forceinline__ void packs(Each each) {
        int step = blockDim.x * PACK;
#pragma unroll
        for (int p = 0; p < KEPT; p++) {
            int j = threadIdx.x * PACK + p * step;
            if (j >= width) return;
            real a[PACK];
#pragma unroll
            for (int k = 0; k < PACK; k++) a[k] = widened(kept[p].item[k]);
            each(a, j, width - j < PACK ? width - j : PACK);
        }
        for (int j = threadIdx.x * PACK + KEPT * step; j < width; j += step) {
            real a[PACK];
            load(a, from + j, width - j);
            each(a, j, width - j < PACK ? width - j : PACK);
        }
    }
};

__device__ __forceinline__ Row row_of(const STORED* x, const STORED* branch, STORED* total, long long at, int width) {
    Row row = {branch ? total + at : x + at, width};
    int step = blockDim.x * PACK, p = 0;
#pragma unroll
    for (; p < KEPT; p++) {
        int j = threadIdx.x * PACK + p * step;
        real a[PACK] = {}, b[PACK];
        if (j < width) load(a, x + at + j, width - j);
        if (branch && j < width) {
            load(b, branch + at + j, width - j);
            for (int k = 0; k < PACK; k++) a[k] += b[k];
            store(total + at + j, a, width - j);
        }
#pragma unroll
        for (int k = 0; k < PACK; k++) row.kept[p].item[k] = rounded<STORED>(a[k]);
    }
    for (int j = threadIdx.x * PACK + KEPT * step; branch && j < width; j += step) {
        real a[PACK], b[PACK];
        load(a, x + at + j, width - j);
        load(b, branch + at + j, width - j);
        for (int k = 0; k < PACK; k++) a[k] += b[k];
        store(total + at + j, a, width - j);
    }
    return row;
}

extern "C" __global__ void __launch_bounds__(1024)
layer_norm(const STORED* x, const STORED* branch, STORED* total, const STORED* weight, const STORED* bias, double eps, STORED* y,
           real* mean, real* inverse, long long num_rows, long long width) {
    long long row = row_number(), at = row * width;
    if (row >= num_rows) return;
    Row numbers = row_of(x, branch, total, at, width);
    real sum = 0, squares = 0;
    numbers.packs([&](real (&a)[PACK], int j, int count) {
        for (int k = 0; k < PACK; k++) sum += a[k];
    });
    real middle = sum_over_row(sum) / (real)width;
    numbers.packs([&](real (&a)[PACK], int j, int count) {
        for (int k = 0; k < PACK; k++)
            if (k < count) squares = fused(a[k] - middle, a[k] - middle, squares);
    });
    real scale = 1 / root_of(sum_over_row(squares) / (real)width + (real)eps);
    numbers.packs([&](real (&a)[PACK], int j, int count) {
        real w[PACK], b[PACK];
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
    Row numbers = row_of(x, branch, total, at, width);
    real squares = 0;
    numbers.packs([&](real (&a)[PACK], int j, int count) {
        for (int k = 0; k < PACK; k++) squares = fused(a[k], a[k], squares);
    });
    real scale = 1 / root_of(sum_over_row(squares) / (real)width + (real)eps);
    numbers.packs([&](real (&a)[PACK], int j, int count) {
        real w[PACK];
        load(w, weight + j, count);
        for (int k = 0; k < PACK; k++) a[k] = a[k] * scale * w[k];
        store(y + at + j, a, count);
    });
    if (threadIdx.x == 0) inverse[row] = scale;
}
