// What shardkit/gpu/kernels/tensor_cores.cuh has instructions for, by the pages of the PTX ISA on mma, ldmatrix, cp.async and cvt.
//
// The lanes of a warp meet, and the last one computes for all. What the pages leave open is taken as is least convenient:
//
//   mma        sums are exact, and what does not fit into a float is cut off (tensor cores do not round to the nearest)
//   tf32       13 bits that must not count are cut off
//   cp.async   copies are made at await_copies, where threads run forward; at once, where they run backward; else by lot
#pragma once
#include "machine.h"

struct half_number;                                                  // of the kernels (common.cuh)
struct bfloat_number;

namespace emulator {

// ---- a warp meets -------------------------------------------------------------------------------------------------

// act(the arguments of all lanes), once, when they have come
template <class Arguments, class Act> void together(Arguments* mine, int line, Act act) {
    Machine& m = *machine;
    unsigned first = m.running / WARP * WARP, lanes[WARP];
    Thread& thread = m.threads[m.running];
    thread.state = AT_EXCHANGE, thread.line = line, thread.mask = 0xFFFFFFFFu, thread.value = (uint64_t)mine;
    if (first + WARP > m.threads.size()) report("a warp of %zu lanes, at line %d", m.threads.size() - first, line);
    else if (lanes_present(first, thread.mask, line, lanes) == WARP) {
        Arguments* all[WARP];
        for (unsigned lane = 0; lane < WARP; lane++) all[lane] = (Arguments*)m.threads[first + lane].value;
        act(all);
        make_ready(lanes, WARP);
    }
    back_to_scheduler();
}

// ---- numbers ------------------------------------------------------------------------------------------------------

enum Kind { BFLOAT, HALF, TF32 };

template <class T> constexpr Kind kind_of = TF32;
template <> constexpr Kind kind_of<half_number> = HALF;
template <> constexpr Kind kind_of<bfloat_number> = BFLOAT;

inline float float_of(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
inline unsigned bits_of(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }

inline float half_of(unsigned short bits) { _Float16 x; memcpy(&x, &bits, 2); return x; }

// number i of those that a word holds
inline float number_in(Kind kind, unsigned word, int i) {
    if (kind == TF32) return float_of(word & 0xFFFFE000u);
    unsigned short bits = word >> 16 * i;
    return kind == HALF ? half_of(bits) : float_of((unsigned)bits << 16);
}

inline float cut_off(double x) {
    float near = (float)x;
    return std::fabs((double)near) > std::fabs(x) && std::isfinite(x) ? std::nextafterf(near, 0.0f) : near;
}

inline unsigned short rounded_to_bfloat(float x) {
    unsigned bits = bits_of(x);
    return x != x ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

inline unsigned short rounded_to_half(float x) {
    _Float16 y = (_Float16)x;
    unsigned short bits;
    memcpy(&bits, &y, 2);
    return bits;
}

template <Kind KIND> unsigned pair(float low, float high) {
    return KIND == HALF ? rounded_to_half(low) | (unsigned)rounded_to_half(high) << 16
                        : rounded_to_bfloat(low) | (unsigned)rounded_to_bfloat(high) << 16;
}

// ---- mma.sync.aligned.m16n8k16 (halves) and m16n8k8 (tf32), .row.col, sums in float ----------------------------------

struct Product { float* c; const unsigned *a, *b; };

template <Kind KIND> void multiply_warp(Product** lanes) {
    constexpr int IN_WORD = KIND == TF32 ? 1 : 2, K = 8 * IN_WORD;
    float a[16][K], b[K][8];
    for (int lane = 0; lane < 32; lane++) {
        int group = lane >> 2, in_group = lane % 4;
        for (int x = 0; x < 4; x++)
            for (int i = 0; i < IN_WORD; i++)                        // a0, a2: row group; a1, a3: 8 below; a2, a3: later columns
                a[group + x % 2 * 8][in_group * IN_WORD + i + x / 2 * 4 * IN_WORD] = number_in(KIND, lanes[lane]->a[x], i);
        for (int x = 0; x < 2; x++)
            for (int i = 0; i < IN_WORD; i++)
                b[in_group * IN_WORD + i + x * 4 * IN_WORD][group] = number_in(KIND, lanes[lane]->b[x], i);
    }
    for (int lane = 0; lane < 32; lane++)
        for (int x = 0; x < 4; x++) {
            int row = (lane >> 2) + x / 2 * 8, column = lane % 4 * 2 + x % 2;
            double sum = lanes[lane]->c[x];
            for (int k = 0; k < K; k++) sum += (double)a[row][k] * b[k][column];
            lanes[lane]->c[x] = cut_off(sum);
        }
}

template <Kind KIND> __attribute__((noinline)) void multiply(float* c, const unsigned* a, const unsigned* b, int line) {
    Product mine{c, a, b};
    together(&mine, line, multiply_warp<KIND>);
}

// ---- ldmatrix.sync.aligned.m8n8.x4[.trans].shared.b16 ------------------------------------------------------------------

struct Matrices { unsigned* x; const char* row; };

template <bool IS_TURNED> void load_warp(Matrices** lanes) {
    for (int number = 0; number < 4; number++)
        for (int lane = 0; lane < 32; lane++) {
            unsigned short halves[2];
            for (int i = 0; i < 2; i++) {
                int along = lane % 4 * 2 + i, row = IS_TURNED ? along : lane / 4, column = IS_TURNED ? lane / 4 : along;
                memcpy(&halves[i], lanes[number * 8 + row]->row + 2 * column, 2);
            }
            lanes[lane]->x[number] = halves[0] | (unsigned)halves[1] << 16;
        }
}

template <bool IS_TURNED> __attribute__((noinline)) void load(unsigned* x, unsigned row, int line) {
    Matrices mine{x, place_in_shared(row, 16, line)};
    together(&mine, line, load_warp<IS_TURNED>);
}

// ---- cp.async.{ca,cg}.shared.global, cp.async.wait_all -----------------------------------------------------------------

inline void finish(const Copy& copy) {
    memcpy(copy.to, copy.from, copy.bytes);
    memset(copy.to + copy.bytes, 0, copy.whole - copy.bytes);
}

inline void start_copy(unsigned to, const void* from, unsigned bytes, unsigned whole, int line) {
    Machine& m = *machine;
    if (bytes > whole) report("a copy of %u bytes into %u, at line %d", bytes, whole, line), give_up();
    if (bytes && (uint64_t)from % whole) report("misaligned access to %p", from), give_up();
    Copy copy{place_in_shared(to, whole, line), (const char*)from, bytes, whole};
    if (m.order == 1 || (m.order > 1 && shuffled_bits() % 2)) finish(copy);
    else m.threads[m.running].copies.push_back(copy);
}

inline void finish_copies() {
    std::vector<Copy>& copies = machine->threads[machine->running].copies;
    for (const Copy& copy : copies) finish(copy);
    copies.clear();
}

}  // namespace emulator

// ---- the functions ------------------------------------------------------------------------------------------------

#define address_of(place) ((unsigned)((const char*)(place) - emulator::machine->shared))
#define mma(type, c, a, b) emulator::multiply<emulator::kind_of<decltype(type)>>(c, a, b, __LINE__)
#define load_matrices(x, row) emulator::load<false>(x, row, __LINE__)
#define load_turned_matrices(x, row) emulator::load<true>(x, row, __LINE__)
#define copy_pack(to, from, bytes) emulator::start_copy(to, from, bytes, 16, __LINE__)
#define copy_word(to, from, bytes) emulator::start_copy(to, from, bytes, 4, __LINE__)
#define await_copies() emulator::finish_copies()
#define pair_of(type, low, high) emulator::pair<emulator::kind_of<decltype(type)>>(low, high)

inline unsigned as_tf32(float x) { return x == x ? (emulator::bits_of(x) + 0x1000) & 0xFFFFE000u : 0x7FFFFFFFu; }

// What the GPU may get wrong by 2^-22 is wrong by 2^-23 here, and denormal results are zero.
inline float approximate(float y) {
    return std::fabs(y) < 1.17549435e-38f ? 0 : emulator::bits_as<float>(emulator::bits_as<unsigned>(y) & ~1u);
}
inline float power_of_2(float x) { return approximate(exp2f(x)); }
inline float one_over(float x) { return approximate(1 / x); }
