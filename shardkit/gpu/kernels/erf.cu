// The error function, and the GELU that is made of it, with its gradient: one pass, 16 bytes at a time.

__device__ __forceinline__ float erf_of(float x) { return erff(x); }
__device__ __forceinline__ double erf_of(double x) { return erf(x); }

constexpr real ROOT_HALF = 0.7071067811865476, SLOPE_AT_0 = 0.3989422804014327;         // sqrt(1/2), 1/sqrt(2 pi)

extern "C" __global__ void __launch_bounds__(256) erf_of_all(const STORED* x, STORED* out, long long n) {
    map(x, out, n, [](real x) { return erf_of(x); });
}

extern "C" __global__ void __launch_bounds__(256) erf_gelu(const STORED* x, STORED* out, long long n) {
    map(x, out, n, [](real x) { return (real)0.5 * x * (1 + erf_of(x * ROOT_HALF)); });
}

extern "C" __global__ void __launch_bounds__(256)
erf_gelu_backward(const STORED* gradient, const STORED* x, STORED* out, long long n) {
    for_all_packs(n, [&](long long i, long long count) {
        real g[PACK], a[PACK];
        load(g, gradient + i, count);
        load(a, x + i, count);
        for (int j = 0; j < PACK; j++) {
            real density = SLOPE_AT_0 * exp_of((real)-0.5 * a[j] * a[j]);
            a[j] = g[j] * ((real)0.5 * (1 + erf_of(a[j] * ROOT_HALF)) + a[j] * density);
        }
        store(out + i, a, count);
    });
}
