// What all kernels share: numbers as they are stored and as they are computed, loads of 16 bytes, sums along a row.
//
// STORED is the type in memory: float, double, half_number or bfloat_number; `real` is what is computed in: double for double,
// float for the rest. No header is needed, so that NVRTC compiles this on any machine. It is compiled without contraction of
// x y + z (--fmad=false): bits are those of the formula as it stands, and fused() says where one rounding is meant.

struct half_number { unsigned short bits; };
struct bfloat_number { unsigned short bits; };

template <class T> struct computed { typedef float type; };
template <> struct computed<double> { typedef double type; };
typedef computed<STORED>::type real;

constexpr int PACK = 16 / sizeof(STORED);                            // numbers in one load
constexpr unsigned ALL_LANES = 0xFFFFFFFFu;

// ---- from memory and back -----------------------------------------------------------------------------------------

__device__ __forceinline__ float bits_as_float(unsigned bits) {
    union { unsigned bits; float x; } both;
    both.bits = bits;
    return both.x;
}

__device__ __forceinline__ unsigned float_as_bits(float x) {
    union { unsigned bits; float x; } both;
    both.x = x;
    return both.bits;
}

__device__ __forceinline__ float widened(half_number x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    union { unsigned short bits; _Float16 x; } both;
    both.bits = x.bits;
    return (float)both.x;
#endif
}

__device__ __forceinline__ float widened(bfloat_number x) { return bits_as_float((unsigned)x.bits << 16); }
__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ double widened(double x) { return x; }

// Each of these rounds to the nearest, to even where two are as near.
template <class T> __device__ __forceinline__ T rounded(real x) { return x; }

__device__ __forceinline__ half_number to_half_number(float x) {
    half_number y;
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    union { unsigned short bits; _Float16 x; } both;
    both.x = (_Float16)x;
    y.bits = both.bits;
#endif
    return y;
}

// First to the float with an odd last bit on the way to x, so that rounding a second time makes no difference.
__device__ __forceinline__ half_number to_half_number(double x) {
    float near = (float)x;
    unsigned bits = float_as_bits(near);
    if ((double)near != x && x == x && bits % 2 == 0)
        bits += (near < 0 || (near == 0 && x < 0) ? -x : x) > (near < 0 ? -(double)near : (double)near) ? 1 : -1;
    return to_half_number(bits_as_float(bits));
}

template <> __device__ __forceinline__ half_number rounded<half_number>(real x) { return to_half_number(x); }

template <> __device__ __forceinline__ bfloat_number rounded<bfloat_number>(real x) {
    bfloat_number y;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"((float)x));
#else
    unsigned bits = float_as_bits((float)x);
    y.bits = x == x ? (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 : 0x7FC0;
#endif
    return y;
}

template <class T> struct alignas(16) Packed { T item[16 / sizeof(T)]; };

__device__ __forceinline__ bool is_aligned(const void* address) { return (unsigned long long)address % 16 == 0; }

struct alignas(16) Words { unsigned word[4]; };

// The pack at `from`, `bytes` behind a multiple of 16: out of the two loads that hold it. Each has a number of the pack in it, so
// neither leaves the 16 bytes of memory that somebody owns; the neighbor's load of the same ones comes from the cache.
__device__ __forceinline__ Packed<STORED> straddling(const STORED* from, int bytes) {
    const Words* at = (const Words*)((const char*)from - bytes);
    Words low = at[0], high = at[1];
    unsigned w[8] = {low.word[0], low.word[1], low.word[2], low.word[3], high.word[0], high.word[1], high.word[2], high.word[3]};
#pragma unroll
    for (int i = 0; i < 6; i++) w[i] = bytes & 8 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; i++) w[i] = bytes & 4 ? w[i + 1] : w[i];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = bytes & 2 ? w[i] >> 16 | w[i + 1] << 16 : w[i];
    union { Words words; Packed<STORED> pack; } both;
    both.words = {w[0], w[1], w[2], w[3]};
    return both.pack;
}

// `count` numbers, those of a whole pack by loads of 16 bytes; the rest is zero. Which thread has what depends on no address.
__device__ __forceinline__ void load(real (&x)[PACK], const STORED* from, long long count) {
    int bytes = (unsigned long long)from % 16;
    if (count >= PACK) {
        Packed<STORED> pack = bytes ? straddling(from, bytes) : *(const Packed<STORED>*)from;
#pragma unroll
        for (int i = 0; i < PACK; i++) x[i] = widened(pack.item[i]);
    } else {
#pragma unroll
        for (int i = 0; i < PACK; i++) x[i] = i < count ? widened(from[i]) : 0;
    }
}

// Store the first COUNT numbers of a pack, which lie aligned, and bring the others to the front.
template <int COUNT> __device__ __forceinline__ void put(STORED*& to, Packed<STORED>& pack) {
    struct alignas(COUNT * sizeof(STORED)) Piece { STORED item[COUNT]; } piece;
#pragma unroll
    for (int i = 0; i < COUNT; i++) piece.item[i] = pack.item[i];
#pragma unroll
    for (int i = 0; i < PACK - COUNT; i++) pack.item[i] = pack.item[i + COUNT];
    *(Piece*)to = piece;
    to += COUNT;
}

// In the largest pieces that lie aligned: at most four of a pack of eight.
__device__ __forceinline__ void store(STORED* to, const real (&x)[PACK], long long count) {
    int behind = (unsigned long long)to % 16 / sizeof(STORED), before = PACK - behind;
    Packed<STORED> pack;
#pragma unroll
    for (int i = 0; i < PACK; i++) pack.item[i] = rounded<STORED>(x[i]);
    if (count < PACK) {
#pragma unroll
        for (int i = 0; i < PACK; i++)
            if (i < count) to[i] = pack.item[i];
    } else if (behind == 0) {
        *(Packed<STORED>*)to = pack;
    } else {
        if (before & 1) put<1>(to, pack);
        if constexpr (PACK > 2) if (before & 2) put<2>(to, pack);
        if constexpr (PACK > 4) if (before & 4) put<4>(to, pack);
        if constexpr (PACK > 4) if (behind & 4) put<4>(to, pack);
        if constexpr (PACK > 2) if (behind & 2) put<2>(to, pack);
        if (behind & 1) put<1>(to, pack);
    }
}

// ---- numbers ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float fused(float x, float y, float z) { return fmaf(x, y, z); }        // rounded once
__device__ __forceinline__ double fused(double x, double y, double z) { return fma(x, y, z); }
__device__ __forceinline__ float exp_of(float x) { return expf(x); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }
__device__ __forceinline__ float log_of(float x) { return logf(x); }
__device__ __forceinline__ double log_of(double x) { return log(x); }
__device__ __forceinline__ float root_of(float x) { return sqrtf(x); }
__device__ __forceinline__ double root_of(double x) { return sqrt(x); }
__device__ __forceinline__ float larger(float x, float y) { return fmaxf(x, y); }                  // a NaN is passed over
__device__ __forceinline__ double larger(double x, double y) { return fmax(x, y); }

// One instruction each, whose relative error is at most 2^-22: PTX ISA, ex2.approx and rcp.approx. Denormal results are zero. Tests
// on CPUs provide functions of these names.
#ifdef __CUDACC__
__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float one_over(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

__device__ __forceinline__ real infinity() { return (real)bits_as_float(0x7F800000u); }

// ---- a row --------------------------------------------------------------------------------------------------------

// The threads of a row are threadIdx.x: a warp with several rows in a block, or all of a block with one row (rows.py).

struct Add {
    template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};

template <class T> __device__ __forceinline__ T crossed(T x, int pattern) { return __shfl_xor_sync(ALL_LANES, x, pattern); }

// One value for all threads of the row: lanes as a tree, then warps in order. join(a, b) has to have the bits of join(b, a).
template <class T, class Join> __device__ __forceinline__ T over_row(T x, Join join) {
    for (int pattern = 16; pattern; pattern /= 2) x = join(x, crossed(x, pattern));
    if (blockDim.x == 32) return x;
    __shared__ T parts[32];
    __syncthreads();                                                 // until what was there before has been read
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
    for (int warp = 1; warp < blockDim.x / 32; warp++) x = join(x, parts[warp]);
    return x;
}

__device__ __forceinline__ real sum_over_row(real x) { return over_row(x, Add()); }

__device__ __forceinline__ long long row_number() { return blockIdx.x * (long long)blockDim.y + threadIdx.y; }

// each(first column, number of columns) for the packs of this thread
template <class Each> __device__ __forceinline__ void for_packs(long long width, Each each) {
    for (long long j = (long long)threadIdx.x * PACK; j < width; j += (long long)blockDim.x * PACK)
        each(j, width - j < PACK ? width - j : (long long)PACK);
}

// ---- element by element -------------------------------------------------------------------------------------------

// each(first element, number of elements) for the packs of this thread, over all n
template <class Each> __device__ __forceinline__ void for_all_packs(long long n, Each each) {
    long long step = (long long)gridDim.x * blockDim.x * PACK;
    for (long long i = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * PACK; i < n; i += step)
        each(i, n - i < PACK ? n - i : (long long)PACK);
}

// out = rule(x), or rule(x, y), of each of n elements
template <class Rule> __device__ __forceinline__ void map(const STORED* x, STORED* out, long long n, Rule rule) {
    for_all_packs(n, [&](long long i, long long count) {
        real a[PACK];
        load(a, x + i, count);
        for (int j = 0; j < PACK; j++) a[j] = rule(a[j]);
        store(out + i, a, count);
    });
}

template <class Rule>
__device__ __forceinline__ void map(const STORED* x, const STORED* y, STORED* out, long long n, Rule rule) {
    for_all_packs(n, [&](long long i, long long count) {
        real a[PACK], b[PACK];
        load(a, x + i, count);
        load(b, y + i, count);
        for (int j = 0; j < PACK; j++) a[j] = rule(a[j], b[j]);
        store(out + i, a, count);
    });
}
