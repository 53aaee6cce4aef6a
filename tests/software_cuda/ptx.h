// What the C++ of a PTX program calls (instructions.py). Barriers, exchanges, shared memory and tensor cores are the emulator's.
#pragma once
#include "cuda_on_host.h"
#include <algorithm>
#include <cfenv>
#include <limits>
#include <type_traits>

namespace emulator {

// ---- registers ----------------------------------------------------------------------------------------------------

template <class T> T value_of(uint64_t word) {
    if constexpr (std::is_same_v<T, bool>) return word != 0;
    else {
        T x;
        memcpy(&x, &word, sizeof x);
        return x;
    }
}

template <class T> uint64_t bits(T x) {                              // negative numbers fill all of them with their sign
    if constexpr (std::is_integral_v<T>) return (uint64_t)x;
    else {
        uint64_t word = 0;
        memcpy(&word, &x, sizeof x);
        return word;
    }
}

template <class T> T load(const char* place) {
    T x;
    memcpy(&x, place, sizeof x);
    return x;
}
template <class T> void store(char* place, uint64_t word) { memcpy(place, &word, sizeof(T)); }

// ---- numbers ------------------------------------------------------------------------------------------------------

template <class T> struct Wide { using type = T; };
template <> struct Wide<int16_t> { using type = int32_t; };
template <> struct Wide<uint16_t> { using type = uint32_t; };
template <> struct Wide<int32_t> { using type = int64_t; };
template <> struct Wide<uint32_t> { using type = uint64_t; };
template <> struct Wide<int64_t> { using type = __int128; };
template <> struct Wide<uint64_t> { using type = unsigned __int128; };
template <class T> using wide = typename Wide<T>::type;

template <class T> T flushed(T x) {                                  // -ftz=true, of float32 alone
    if constexpr (std::is_same_v<T, float>)
        return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
    return x;
}
template <class T> bool is_negative(T x) { return std::is_floating_point_v<T> && std::signbit((double)x); }
template <class T> T limited(T x) { return x >= 1 ? 1 : x > 0 ? x : 0; }             // NaN: 0

constexpr uint64_t OPEN = 0xDEADDEADDEADDEAD;                        // what a GPU leaves open is easily seen

template <class T> T quotient(T x, T y) {
    if constexpr (std::is_floating_point_v<T>) return x / y;
    else if (y == 0) return (T)OPEN;
    else return std::is_signed_v<T> && y == (T)-1 ? (T)-x : (T)(x / y);
}
template <class T> T remainder(T x, T y) {
    if (y == 0) return (T)OPEN;
    return std::is_signed_v<T> && y == (T)-1 ? 0 : x % y;
}

template <class T> T least(T x, T y) {
    if constexpr (std::is_floating_point_v<T>) return x != x ? y : y != y ? x : x == y ? (std::signbit(x) ? x : y) : x < y ? x : y;
    else return x < y ? x : y;
}
template <class T> T largest(T x, T y) {
    if constexpr (std::is_floating_point_v<T>) return x != x ? y : y != y ? x : x == y ? (std::signbit(x) ? y : x) : x > y ? x : y;
    else return x > y ? x : y;
}

// the upper half of a double, as rcp.approx.ftz.f64 has it
inline double upper_half(double x) { return value_of<double>(bits(x) & 0xFFFFFFFF00000000ull); }

template <class T> void settled(T& x) { asm volatile("" : "+m"(x)); }          // not computed earlier or later than here

template <class F, class... T> auto rounded(int mode, F value, T&... operands) {
    int before = fegetround();
    fesetround(mode);
    (settled(operands), ...);
    auto result = value();
    settled(result);
    fesetround(before);
    return result;
}

template <class T> T whole(double x) {                               // cvt: NaN is 0, and what is too large the largest
    double low = (double)std::numeric_limits<T>::min(), high = (double)std::numeric_limits<T>::max();
    return x != x ? 0 : x <= low ? std::numeric_limits<T>::min() : x >= high ? std::numeric_limits<T>::max() : (T)x;
}

inline uint32_t rounded_to_tf32(uint32_t word) {                     // cvt.rna: half way, away from zero
    float x = value_of<float>(word);
    return x != x ? 0x7FFFFFFF : std::isinf(x) ? word : (word + 0x1000) & 0xFFFFE000u;
}

// ---- bits ---------------------------------------------------------------------------------------------------------

template <class T> T shifted_left(uint64_t x, uint32_t count) { return count < 8 * sizeof(T) ? (T)(value_of<T>(x) << count) : 0; }
template <class T> T shifted_right(uint64_t x, uint32_t count) {
    constexpr uint32_t WIDTH = 8 * sizeof(T);
    T value = value_of<T>(x);
    return count < WIDTH ? (T)(value >> count) : value < 0 ? (T)-1 : 0;
}
template <class T> T low_ones(uint32_t count) { return count < 8 * sizeof(T) ? (T)(((uint64_t)1 << count) - 1) : (T)-1; }
template <class T> T bits_from(uint64_t word, uint32_t start, uint32_t count) {      // bfe
    constexpr uint32_t WIDTH = 8 * sizeof(T);
    start &= 255, count &= 255;
    if (count == 0) return 0;
    T low = start < WIDTH ? (T)(word >> start) & low_ones<T>(count) : 0;
    bool is_negative = std::is_signed_v<T> && word >> std::min(start + count - 1, WIDTH - 1) & 1;
    return is_negative ? (T)(low | ~low_ones<T>(std::min(count, start < WIDTH ? WIDTH - start : 0))) : low;
}
template <class T> T bits_into(uint64_t x, uint64_t into, uint32_t start, uint32_t count) {        // bfi
    start &= 255, count &= 255;
    T mask = start < 8 * sizeof(T) ? (T)(low_ones<T>(count) << start) : 0;
    return start < 8 * sizeof(T) ? (T)(((T)x << start & mask) | ((T)into & ~mask)) : (T)into;
}
template <class T> uint32_t leading_zeros(uint64_t word) {
    uint64_t x = (T)word;
    return x ? __builtin_clzll(x) - (64 - 8 * sizeof(T)) : 8 * sizeof(T);
}
inline uint32_t looked_up(uint32_t x, uint32_t y, uint32_t z, uint32_t table) {      // lop3
    uint32_t result = 0;
    for (int row = 0; row < 8; row++)
        if (table >> row & 1) result |= (row & 4 ? x : ~x) & (row & 2 ? y : ~y) & (row & 1 ? z : ~z);
    return result;
}
inline uint32_t permuted(uint32_t x, uint32_t y, uint32_t chosen) {                  // prmt
    uint64_t both = (uint64_t)y << 32 | x;
    uint32_t result = 0;
    for (int byte = 0; byte < 4; byte++) {
        uint32_t which = chosen >> 4 * byte, value = both >> 8 * (which & 7) & 255;
        result |= (which & 8 ? (value & 128 ? 255u : 0u) : value) << 8 * byte;
    }
    return result;
}

// ---- memory -------------------------------------------------------------------------------------------------------

struct Known { uint64_t begin, end; };                               // an array that a kernel may touch
inline thread_local const Known* known = nullptr;                    // those that it was given
inline thread_local unsigned num_known = 0;                          // 0: nobody said
inline const Known* own_arrays = nullptr;                            // those that the program itself has
inline unsigned num_own = 0;
inline Known (*find_array)(uint64_t address) = nullptr;              // a driver knows them all; {0, 0}: in none
inline thread_local Known found_arrays[8];                           // during a launch
inline thread_local unsigned num_found = 0;

// A load may touch all of the packs of 16 bytes in which an array begins and ends: a GPU's allocations are whole ones.
constexpr uint64_t PACK_BYTES = 16;

inline bool is_within(const Known* arrays, unsigned count, uint64_t address, unsigned bytes, bool is_store) {
    for (unsigned i = 0; i < count; i++) {
        uint64_t begin = arrays[i].begin, end = arrays[i].end;
        if (!is_store) begin -= begin % PACK_BYTES, end = (end + PACK_BYTES - 1) / PACK_BYTES * PACK_BYTES;
        if (address >= begin && address + bytes <= end) return true;
    }
    return false;
}

inline bool is_found(uint64_t address, unsigned bytes, bool is_store) {
    constexpr unsigned MOST = sizeof found_arrays / sizeof *found_arrays;
    if (is_within(found_arrays, std::min(num_found, MOST), address, bytes, is_store)) return true;
    Known& found = found_arrays[num_found++ % MOST] = find_array(address);
    return is_within(&found, 1, address, bytes, is_store);
}

inline char* in_memory(uint64_t address, unsigned bytes, bool is_store, int line) {
    bool is_known = is_within(own_arrays, num_own, address, bytes, is_store) ||
                    (find_array ? is_found(address, bytes, is_store) : !num_known || is_within(known, num_known, address, bytes, is_store));
    if (is_known) return (char*)address;
    report("%s of %u bytes at %p, outside of the arrays of the kernel, at statement %d", is_store ? "a store" : "a load", bytes, (void*)address, line);
    give_up();
}

inline char* place_in_memory(uint64_t address, unsigned bytes, bool is_store, int line) {
    if (address % bytes) report("misaligned access to %p, at statement %d", (void*)address, line), give_up();
    return in_memory(address, bytes, is_store, line);
}

inline char* place_anywhere(uint64_t address, unsigned bytes, bool is_store, int line) {
    constexpr uint64_t STACK_BYTES = 128 << 10;                      // of machine.cpp
    uint64_t in_shared = address - (uint64_t)machine->shared, in_stack = address - (uint64_t)machine->threads[machine->running].fiber->stack;
    if (in_shared < machine->shared_used) return place_in_shared(in_shared, bytes, line);
    return in_stack < STACK_BYTES ? (char*)address : place_in_memory(address, bytes, is_store, line);
}

// ---- warps --------------------------------------------------------------------------------------------------------

enum Shuffle { CROSSED, INDEXED, DOWN, UP };

// By the pseudocode of shfl.sync: `limits` are the lane that ends a segment, and the mask of segments eight bits higher.
inline unsigned shuffled(Shuffle how, uint32_t value, uint32_t by, uint32_t limits, uint32_t mask, int line, bool& is_inside) {
    int lane = lane_number(), step = by & 31, clamp = limits & 31, segment = limits >> 8 & 31;
    int first = lane & segment, last = first | (clamp & ~segment), source;
    if (how == UP) source = lane - step, is_inside = source >= last;
    else {
        source = how == DOWN ? lane + step : how == CROSSED ? lane ^ step : first | (step & ~segment);
        is_inside = source <= last;
    }
    return (uint32_t)exchange(mask, value, is_inside ? source : lane, line);
}

// ---- a launch -----------------------------------------------------------------------------------------------------

struct Parameter { unsigned offset, bytes; };
struct Facts { unsigned num_parameters; const Parameter* parameters; unsigned shared_bytes, most_threads; };

inline void launch_ptx(void (*body)(void*), const Facts& facts, void** values, const unsigned* bytes, unsigned num_values,
                       const unsigned* sizes, unsigned shared, unsigned limit, int order, char* error) {
    alignas(16) static thread_local char parameters[4096];           // as many as a kernel may have
    machine = &machine_of_this_thread();
    machine->error = error;
    machine->waits_for_ended = !find_array;                          // CuPy's kernels are written for GPUs alone
    num_found = 0;
    if (num_values != facts.num_parameters) return report("%u arguments; the kernel takes %u", num_values, facts.num_parameters);
    for (unsigned i = 0; i < num_values; i++) {
        const Parameter& wanted = facts.parameters[i];
        if (bytes[i] != wanted.bytes) return report("argument %u has %u bytes; the kernel takes %u", i, bytes[i], wanted.bytes);
        memcpy(parameters + wanted.offset, values[i], bytes[i]);
    }
    machine->body = body, machine->arguments = parameters;
    run_grid(sizes, shared, limit, order);
}

}  // namespace emulator

extern "C" __attribute__((visibility("default"))) void arrays_of_the_next_launch(const emulator::Known* arrays, unsigned count) {
    emulator::known = arrays, emulator::num_known = count;
}
extern "C" __attribute__((visibility("default"))) void arrays_are_found_by(emulator::Known (*find)(uint64_t)) { emulator::find_array = find; }
