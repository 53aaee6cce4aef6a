// CUDA C++ kernels compiled by g++ and run on host memory: the words of the language, and the machine that runs a grid.
//
// Every CUDA thread of a block is a fiber, a stack of its own. A fiber runs until it meets a barrier or an exchange within its
// warp; there it waits, and the next one runs. One that ends without waiting leaves its stack to the next thread, so kernels
// without barriers run as plain loops. Blocks run one after the other. What would hang or be undefined on a GPU is an error:
//
//   - a barrier that some threads of the block do not reach, or where they wait at different lines
//   - a warp exchange whose lanes are not all there, or at different lines
//   - reads and writes at misaligned addresses, or outside arrays of known size; writes past the end of shared memory
//   - shared memory that is read before it is written holds NaN
#pragma once
#include "machine.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

namespace emulator {

template <class T> T shuffle(unsigned mask, T value, unsigned source, int line) {
    static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = exchange(mask, bits, source, line);
    memcpy(&value, &bits, sizeof(T));
    return value;
}

// The lane to read: within its segment of `width` lanes, its own where the wanted one lies outside.
inline unsigned inside(int wanted, int width) {
    int own = lane_number(), start = own / width * width;
    return wanted < start || wanted >= start + width ? own : wanted;
}

inline unsigned ballot(unsigned mask, bool is_set, int line) {
    unsigned votes = 0, own = lane_number();
    for (unsigned lane = 0; lane < WARP; lane++)
        if (mask >> lane & 1 && machine->running - own + lane < machine->threads.size())
            votes |= (unsigned)shuffle<int>(mask, is_set, lane, line) << lane;
    return votes;
}

// ---- shared memory ------------------------------------------------------------------------------------------------

template <class T> T& shared_array() {                               // T is unique for each declaration
    static const char key = 0;
    return *(T*)take_shared(&key, sizeof(T));
}

inline void* dynamic_shared() { return machine->shared + machine->arrays[0].offset; }

// ---- a grid -------------------------------------------------------------------------------------------------------

template <class... A> struct Call {
    void (*kernel)(A...);
    void** values;
    template <size_t... I> void run(std::index_sequence<I...>) { kernel(*(A*)values[I]...); }
    static void body(void* self) { ((Call*)self)->run(std::index_sequence_for<A...>()); }
};

// Run a kernel. sizes: grid and block, three numbers each. Returns through `error`, which stays empty if all went well.
template <class... A>
void launch(void (*kernel)(A...), void** values, const unsigned* value_bytes, unsigned num_values, const unsigned* sizes,
            unsigned shared_bytes, unsigned shared_limit, int order, char* error) {
    machine = &machine_of_this_thread();
    machine->error = error;
    const size_t wanted[] = {sizeof(A)..., 0};
    if (num_values != sizeof...(A)) return report("%u arguments; the kernel takes %zu", num_values, sizeof...(A));
    for (unsigned i = 0; i < num_values; i++)
        if (value_bytes[i] != wanted[i])
            return report("argument %u has %u bytes; the kernel takes %zu", i, value_bytes[i], wanted[i]);
    Call<A...> call{kernel, values};
    machine->body = Call<A...>::body, machine->arguments = &call;
    run_grid(sizes, shared_bytes, shared_limit, order);
}

}  // namespace emulator

#include "words.h"
#include "tensor_cores.h"
