// The gradient of an embedding: row v of out [num_rows, width] is the sum of the rows of gradient [n, width] whose id is v, in
// the order they came: those at order[starts[v]] .. order[starts[v + 1] - 1] (sorting.cu). More than `few` are added in double.

template <class number>
__device__ __forceinline__ void
sum_rows(const STORED* gradient, const long long* order, long long start, long long stop, real* out, long long width) {
    for_packs(width, [&](long long j, long long count) {
        number sum[PACK] = {};
        real a[PACK];
#pragma unroll 4
        for (long long i = start; i < stop; i++) {
            load(a, gradient + order[i] * width + j, count);
            for (int k = 0; k < PACK; k++) sum[k] = i == start ? (number)a[k] : sum[k] + a[k];
        }
        for (int k = 0; k < PACK; k++)
            if (k < count) out[j + k] = (real)sum[k];
    });
}

extern "C" __global__ void __launch_bounds__(256)
embedding_backward(
    const STORED* gradient, const long long* order, const long long* starts, real* out, long long width, long long few) {
    long long id = blockIdx.x, start = starts[id], stop = starts[id + 1];
    if (stop - start > few)
        sum_rows<double>(gradient, order, start, stop, out + id * width, width);
    else
        sum_rows<real>(gradient, order, start, stop, out + id * width, width);
}

// The maximum of the rows of each segment, -inf without rows; arguments as above. NaN wins.
extern "C" __global__ void __launch_bounds__(256)
segment_max(const STORED* x, const long long* order, const long long* starts, STORED* out, long long width) {
    long long id = blockIdx.x, start = starts[id], stop = starts[id + 1];
    for_packs(width, [&](long long j, long long count) {
        real top[PACK], a[PACK];
        for (int k = 0; k < PACK; k++) top[k] = -infinity();
        for (long long i = start; i < stop; i++) {
            load(a, x + order[i] * width + j, count);
            for (int k = 0; k < PACK; k++) top[k] = a[k] > top[k] || a[k] != a[k] ? a[k] : top[k];
        }
        store(out + id * width + j, top, count);
    });
}
