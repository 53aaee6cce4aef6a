// Sums over flat buffers in a fixed order, and magnitudes.

constexpr int MAX_BUFFERS = 8;

// The tree over up to 8 buffers: neighbors first, an odd one is carried up. out may be one of the buffers.
extern "C" __global__ void __launch_bounds__(256)
tree_sum(const STORED* b0, const STORED* b1, const STORED* b2, const STORED* b3, const STORED* b4, const STORED* b5,
         const STORED* b6, const STORED* b7, long long num_buffers, STORED* out, long long n) {
    const STORED* buffers[MAX_BUFFERS] = {b0, b1, b2, b3, b4, b5, b6, b7};
    for_all_packs(n, [&](long long i, long long count) {
        real x[MAX_BUFFERS][PACK];
#pragma unroll
        for (int b = 0; b < MAX_BUFFERS; b++)
            if (b < num_buffers) load(x[b], buffers[b] + i, count);
#pragma unroll
        for (int step = 1; step < MAX_BUFFERS; step *= 2)
#pragma unroll
            for (int b = 0; b + step < MAX_BUFFERS; b += 2 * step)
                for (int k = 0; b + step < num_buffers && k < PACK; k++) x[b][k] += x[b + step][k];
        store(out + i, x[0], count);
    });
}

// sums [ceil(n / block)]: a warp for each block, each lane every 32nd number in order, then lanes as a tree
extern "C" __global__ void __launch_bounds__(256)
block_squares(const STORED* x, double* sums, long long n, long long block) {
    long long number = row_number(), start = number * block;
    if (start >= n) return;
    double sum = 0;
#pragma unroll 8
    for (long long i = start + threadIdx.x; i < start + block; i += 32) {
        double value = i < n ? (double)widened(x[i]) : 0;
        sum += value * value;
    }
    sum = over_row(sum, Add());
    if (threadIdx.x == 0) sums[number] = sum;
}

// The magnitude as bits rises with it, and that of a NaN is above all others; a maximum has no order.
__device__ __forceinline__ unsigned magnitude_bits(float x) { return float_as_bits(x) & 0x7FFFFFFFu; }
__device__ __forceinline__ unsigned long long magnitude_bits(double x) {
    union { unsigned long long bits; double x; } both;
    both.x = x;
    return both.bits & 0x7FFFFFFFFFFFFFFFull;
}

// largest: the bits of a `real`, zero before the first launch
extern "C" __global__ void __launch_bounds__(256)
largest_magnitude(const STORED* x, decltype(magnitude_bits(real()))* largest, long long n) {
    decltype(magnitude_bits(real())) most = 0;
    for_all_packs(n, [&](long long i, long long count) {
        real a[PACK];
        load(a, x + i, count);
        for (int k = 0; k < PACK; k++) most = magnitude_bits(a[k]) > most ? magnitude_bits(a[k]) : most;
    });
    for (int pattern = 16; pattern; pattern /= 2) {
        auto other = crossed(most, pattern);
        most = other > most ? other : most;
    }
    if (threadIdx.x % 32 == 0) atomicMax(largest, most);
}
