// Casts of flat buffers to half floats and back. HALF is their type: half_number or bfloat_number.

__device__ __forceinline__ void cast(half_number& half, real x) { half = to_half_number(x); }
__device__ __forceinline__ void cast(bfloat_number& half, real x) { half = rounded<bfloat_number>(x); }

extern "C" __global__ void __launch_bounds__(256) to_half(const STORED* x, double scale, HALF* out, long long n) {
    bool out_aligned = is_aligned(out);
    for_all_packs(n, [&](long long i, long long count) {
        real a[PACK];
        load(a, x + i, count);
        struct alignas(2 * PACK) Halves { HALF item[PACK]; } pack;
        for (int k = 0; k < PACK; k++) cast(pack.item[k], a[k] * (real)scale);
        if (out_aligned && count == PACK) *(Halves*)(out + i) = pack;
        else
            for (int k = 0; k < count; k++) out[i + k] = pack.item[k];
    });
}

// STORED is the type of out
extern "C" __global__ void __launch_bounds__(256) from_half(const HALF* x, STORED* out, long long n) {
    bool x_aligned = is_aligned(x);
    for_all_packs(n, [&](long long i, long long count) {
        struct alignas(2 * PACK) Halves { HALF item[PACK]; } pack;
        if (x_aligned && count == PACK) pack = *(const Halves*)(x + i);
        else
            for (int k = 0; k < count; k++) pack.item[k] = x[i + k];
        real a[PACK];
        for (int k = 0; k < PACK; k++) a[k] = k < count ? widened(pack.item[k]) : 0;
        store(out + i, a, count);
    });
}
