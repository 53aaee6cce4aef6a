// The gradient of an embedding: row v of out [num_rows, width] is the sum of the rows of gradient [n, width] whose id is v, in
// the order they came. sorted_ids [n] rise; order [n] says where each came from, and rises among equal ids.

__device__ __forceinline__ long long first_at_least(const long long* sorted_ids, long long n, long long id) {
    long long low = 0;
    for (long long high = n; low < high;) {
        long long middle = (low + high) / 2;
        if (sorted_ids[middle] < id) low = middle + 1;
        else high = middle;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(256)
embedding_backward(const STORED* gradient, const long long* sorted_ids, const long long* order, real* out, long long n,
                   long long width) {
    long long id = blockIdx.x;
    bool aligned = is_aligned(gradient) && width % PACK == 0;
    long long start = first_at_least(sorted_ids, n, id), stop = first_at_least(sorted_ids, n, id + 1);
    for_packs(width, [&](long long j, long long count) {
        real sum[PACK] = {}, a[PACK];
#pragma unroll 4
        for (long long i = start; i < stop; i++) {
            load(a, gradient + order[i] * width + j, count, aligned);
            for (int k = 0; k < PACK; k++) sum[k] = i == start ? a[k] : sum[k] + a[k];
        }
        for (int k = 0; k < PACK; k++)
            if (k < count) out[id * width + j + k] = sum[k];
    });
}

// The maximum of the rows of each segment, -inf without rows; arguments as above. NaN wins.
extern "C" __global__ void __launch_bounds__(256)
segment_max(const STORED* x, const long long* sorted_ids, const long long* order, STORED* out, long long n, long long width) {
    long long id = blockIdx.x;
    bool aligned = is_aligned(x) && is_aligned(out) && width % PACK == 0;
    long long start = first_at_least(sorted_ids, n, id), stop = first_at_least(sorted_ids, n, id + 1);
    for_packs(width, [&](long long j, long long count) {
        real top[PACK], a[PACK];
        for (int k = 0; k < PACK; k++) top[k] = -infinity();
        for (long long i = start; i < stop; i++) {
            load(a, x + order[i] * width + j, count, aligned);
            for (int k = 0; k < PACK; k++) top[k] = a[k] > top[k] || a[k] != a[k] ? a[k] : top[k];
        }
        store(out + id * width + j, top, count, aligned);
    });
}
