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

// ---- barriers and exchanges ---------------------------------------------------------------------------------------

inline void make_ready(const unsigned* numbers, size_t count) {
    machine->queue.insert(machine->queue.end(), numbers, numbers + count);
    for (size_t i = 0; i < count; i++) machine->threads[numbers[i]].state = READY;
}

inline void release_block(int line) {
    Machine& m = *machine;
    unsigned all[1024], count = m.threads.size();
    for (unsigned i = 0; i < count; i++) {
        all[i] = i;
        if (m.threads[i].line != line)
            report("threads of a block wait at different barriers: lines %d and %d", m.threads[i].line, line);
    }
    m.num_at_barrier = 0;
    make_ready(all, count);
}

inline void barrier(int line) {
    Machine& m = *machine;
    m.threads[m.running].state = AT_BARRIER;
    m.threads[m.running].line = line;
    if (++m.num_at_barrier == m.threads.size()) release_block(line);
    back_to_scheduler();
}

// The lanes that take part, if all of them have come, else none.
inline unsigned lanes_present(unsigned first, unsigned mask, int line, unsigned* lanes) {
    Machine& m = *machine;
    unsigned count = 0;
    for (unsigned lane = 0; lane < WARP && first + lane < m.threads.size(); lane++) {
        if (!(mask >> lane & 1)) continue;
        Thread& other = m.threads[first + lane];
        if (other.state == DONE) report("lane %u has ended, but an exchange at line %d waits for it", lane, line);
        if (other.state != AT_EXCHANGE) return 0;
        if (other.mask != mask || other.line != line)
            report("lanes of a warp exchange at lines %d and %d with masks %x and %x", other.line, line, other.mask, mask);
        lanes[count++] = first + lane;
    }
    return count;
}

inline void hand_over(unsigned first, unsigned mask, const unsigned* lanes, unsigned count, int line) {
    Machine& m = *machine;
    uint64_t given[WARP];
    for (unsigned i = 0; i < count; i++) given[lanes[i] - first] = m.threads[lanes[i]].value;
    for (unsigned i = 0; i < count; i++) {
        Thread& thread = m.threads[lanes[i]];
        if (!(mask >> thread.source & 1) || first + thread.source >= m.threads.size())
            report("lane %u reads lane %u, which is not in mask %x, at line %d", lanes[i] - first, thread.source, mask, line);
        else thread.value = given[thread.source];
    }
    make_ready(lanes, count);
}

// Give a value and take that of the source lane, together with all lanes of the mask.
inline uint64_t exchange(unsigned mask, uint64_t value, unsigned source, int line) {
    Machine& m = *machine;
    unsigned first = m.running / WARP * WARP, lane = m.running - first, lanes[WARP];
    Thread& mine = m.threads[m.running];
    mine.state = AT_EXCHANGE, mine.line = line, mine.mask = mask, mine.value = value, mine.source = source;
    if (!(mask >> lane & 1)) report("lane %u is not in the mask %x of its own exchange at line %d", lane, mask, line);
    unsigned count = lanes_present(first, mask, line, lanes);
    if (count) hand_over(first, mask, lanes, count, line);
    back_to_scheduler();
    return mine.value;
}

inline unsigned lane_number() { return machine->running % WARP; }

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

inline char* take_shared(const void* key, size_t bytes) {
    Machine& m = *machine;
    for (Array& array : m.arrays)
        if (array.key == key) return m.shared + array.offset;
    size_t offset = (m.shared_used + GUARD_BYTES + 127) / 128 * 128;
    m.shared_bytes += bytes, m.shared_used = offset + bytes;
    if (m.shared_bytes > m.shared_limit) {
        report("%zu bytes of shared memory; the limit is %zu", m.shared_bytes, m.shared_limit);
        give_up();
    }
    m.arrays.push_back({key, offset, bytes});
    memset(m.shared + offset, POISON, bytes + GUARD_BYTES);
    return m.shared + offset;
}

template <class T> T& shared_array() {                               // T is unique for each declaration
    static const char key = 0;
    return *(T*)take_shared(&key, sizeof(T));
}

inline void* dynamic_shared() { return machine->shared + machine->arrays[0].offset; }

inline void check_guards() {
    for (Array& array : machine->arrays) {
        const unsigned char* end = (unsigned char*)machine->shared + array.offset + array.bytes;
        for (size_t i = 0; i < GUARD_BYTES; i++)
            if (end[i] != POISON) return report("a write %zu bytes past the end of %zu bytes of shared memory", i, array.bytes);
    }
}

// ---- a grid -------------------------------------------------------------------------------------------------------

inline void describe_wait() {
    Machine& m = *machine;
    size_t waiting = 0;
    int line = 0;
    for (Thread& thread : m.threads)
        if (thread.state == AT_BARRIER) waiting++, line = thread.line;
    for (Thread& thread : m.threads)
        if (thread.state == AT_EXCHANGE && !waiting) line = thread.line;
    if (waiting)
        report("%zu of %zu threads wait at the barrier of line %d, %zu have ended, the rest wait elsewhere: it would hang",
               waiting, m.threads.size(), line, m.num_done);
    else report("lanes wait in the exchange of line %d for others that never come", line);
}

inline void run_block() {
    Machine& m = *machine;
    size_t count = m.threads.size();
    m.queue.resize(count), m.head = m.num_done = m.num_at_barrier = 0;
    for (unsigned i = 0; i < count; i++) m.queue[i] = i, m.threads[i].state = UNSTARTED, m.threads[i].copies.clear();
    memset(m.shared, POISON, m.shared_used + GUARD_BYTES);
    while (m.num_done < count && !failed()) {
        if (!choose()) return describe_wait();
        resume(m.chosen);
    }
    if (!failed()) check_guards();
}

inline Machine& machine_of_this_thread() {                           // of the operating system
    struct Owned {
        Machine m;
        Owned() { m.shared = (char*)operator new[](MAX_SHARED_BYTES + (16 << 10), std::align_val_t(128)); }
        ~Owned() {
            for (Fiber* fiber : m.fibers) munmap(fiber->stack, STACK_BYTES), delete fiber;
            operator delete[](m.shared, std::align_val_t(128));
        }
    };
    static thread_local Owned owned;
    return owned.m;
}

inline void run_grid(const unsigned* sizes, unsigned shared_bytes, unsigned shared_limit, int order) {
    Machine& m = *machine;
    m.grid_size = {sizes[0], sizes[1], sizes[2]}, m.block_size = {sizes[3], sizes[4], sizes[5]};
    m.threads.resize((size_t)sizes[3] * sizes[4] * sizes[5]);
    m.order = order, m.shuffle_state = order * 0x9E3779B97F4A7C15u + 1;
    m.shared_bytes = m.shared_used = 0, m.shared_limit = shared_limit;
    m.arrays.clear();
    take_shared(nullptr, shared_bytes);
    size_t num_blocks = (size_t)sizes[0] * sizes[1] * sizes[2];
    for (size_t turn = 0; turn < num_blocks; turn++) {
        unsigned number = block_number(turn, num_blocks);
        m.block = {number % sizes[0], number / sizes[0] % sizes[1], number / sizes[0] / sizes[1]};
        run_block();
        if (failed()) return reset_fibers();
    }
}

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

// g++ calls these where -fsanitize=alignment,bounds finds a mistake
extern "C" __attribute__((used, visibility("hidden"))) void __ubsan_handle_type_mismatch_v1_abort(void*, void* address) {
    emulator::report("misaligned access to %p", address);
    emulator::give_up();
}
extern "C" __attribute__((used, visibility("hidden"))) void __ubsan_handle_out_of_bounds_abort(void*, void* index) {
    emulator::report("index %td lies outside its array", (ptrdiff_t)index);
    emulator::give_up();
}

#include "words.h"
#include "tensor_cores.h"
