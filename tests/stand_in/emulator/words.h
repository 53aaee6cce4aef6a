// The words of CUDA C++ that kernels use on top of C++.
#pragma once

#define threadIdx (emulator::machine->thread)
#define blockIdx (emulator::machine->block)
#define blockDim (emulator::machine->block_size)
#define gridDim (emulator::machine->grid_size)
#define warpSize 32

// ---- barriers and exchanges; each knows its line -------------------------------------------------------------------

#define __syncthreads() emulator::barrier(__LINE__)
#define __syncwarp(...) ((void)emulator::exchange(emulator::mask_or_all(__VA_ARGS__), 0, emulator::lane_number(), __LINE__))
#define __shfl_sync(mask, value, ...) emulator::read_lane(mask, value, __LINE__, __VA_ARGS__)
#define __shfl_xor_sync(mask, value, ...) emulator::read_crossed(mask, value, __LINE__, __VA_ARGS__)
#define __shfl_down_sync(mask, value, ...) emulator::read_below(mask, value, __LINE__, __VA_ARGS__)
#define __shfl_up_sync(mask, value, ...) emulator::read_above(mask, value, __LINE__, __VA_ARGS__)
#define __ballot_sync(mask, is_set) emulator::ballot(mask, is_set, __LINE__)
#define __any_sync(mask, is_set) (emulator::ballot(mask, is_set, __LINE__) != 0)
#define __all_sync(mask, is_set) (emulator::ballot(mask, !(is_set), __LINE__) == 0)

namespace emulator {

inline unsigned mask_or_all(unsigned mask = 0xFFFFFFFFu) { return mask; }

template <class T> T read_lane(unsigned mask, T value, int line, int source, int width = 32) {
    return shuffle(mask, value, lane_number() / width * width + source % width, line);
}
template <class T> T read_crossed(unsigned mask, T value, int line, int pattern, int width = 32) {
    return shuffle(mask, value, inside(lane_number() ^ pattern, width), line);
}
template <class T> T read_below(unsigned mask, T value, int line, int distance, int width = 32) {
    return shuffle(mask, value, inside(lane_number() + distance, width), line);
}
template <class T> T read_above(unsigned mask, T value, int line, int distance, int width = 32) {
    return shuffle(mask, value, inside((int)lane_number() - distance, width), line);
}

}  // namespace emulator

// ---- atomics: fibers never interrupt each other ---------------------------------------------------------------------

namespace emulator {
template <class T> T replaced(T* address, T value) { T old = *address; *address = value; return old; }
template <class T> struct same { using type = T; };
template <class T> using as = typename same<T>::type;
}

template <class T> T atomicAdd(T* address, emulator::as<T> value) { return emulator::replaced<T>(address, *address + value); }
template <class T> T atomicSub(T* address, emulator::as<T> value) { return emulator::replaced<T>(address, *address - value); }
template <class T> T atomicMax(T* address, emulator::as<T> value) { return emulator::replaced<T>(address, value > *address ? value : *address); }
template <class T> T atomicMin(T* address, emulator::as<T> value) { return emulator::replaced<T>(address, value < *address ? value : *address); }
template <class T> T atomicOr(T* address, emulator::as<T> value) { return emulator::replaced<T>(address, *address | value); }
template <class T> T atomicAnd(T* address, emulator::as<T> value) { return emulator::replaced<T>(address, *address & value); }
template <class T> T atomicExch(T* address, emulator::as<T> value) { return emulator::replaced<T>(address, value); }
template <class T> T atomicCAS(T* address, emulator::as<T> expected, emulator::as<T> value) {
    return emulator::replaced<T>(address, *address == expected ? value : *address);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// ---- vectors -------------------------------------------------------------------------------------------------------

#define EMULATED_VECTORS(T, name)                                                                                              \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                                                         \
    struct name##3 { T x, y, z; };                                                                                             \
    struct alignas(sizeof(T) > 4 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };                                              \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                                                 \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                                         \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define EMULATED_VECTORS_BUT_3(T, name)                                                                                        \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                                                         \
    struct alignas(sizeof(T) > 4 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };                                              \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                                                 \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATED_VECTORS(float, float)
EMULATED_VECTORS(double, double)
EMULATED_VECTORS(int, int)
EMULATED_VECTORS(unsigned short, ushort)
EMULATED_VECTORS(unsigned char, uchar)
EMULATED_VECTORS(long long, longlong)
EMULATED_VECTORS_BUT_3(unsigned, uint)

// ---- arithmetic ----------------------------------------------------------------------------------------------------

template <class T> T __ldg(const T* address) { return *address; }
template <class T> T __ldcs(const T* address) { return *address; }
template <class T> void __stcs(T* address, emulator::as<T> value) { *address = value; }

inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long long min(long long a, long long b) { return b < a ? b : a; }
inline long long max(long long a, long long b) { return a < b ? b : a; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline unsigned __umulhi(unsigned x, unsigned y) { return (uint64_t)x * y >> 32; }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

namespace emulator {
template <class To, class From> To bits_as(From x) { static_assert(sizeof(To) == sizeof(From)); To y; memcpy(&y, &x, sizeof x); return y; }
}
inline int __float_as_int(float x) { return emulator::bits_as<int>(x); }
inline unsigned __float_as_uint(float x) { return emulator::bits_as<unsigned>(x); }
inline float __int_as_float(int x) { return emulator::bits_as<float>(x); }
inline float __uint_as_float(unsigned x) { return emulator::bits_as<float>(x); }
inline long long __double_as_longlong(double x) { return emulator::bits_as<long long>(x); }
inline double __longlong_as_double(long long x) { return emulator::bits_as<double>(x); }
