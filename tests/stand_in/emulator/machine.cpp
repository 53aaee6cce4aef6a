// The functions of machine.h. They are compiled once, and every library of kernels is linked with them.
#include "machine.h"

#include <cstdarg>
#include <cstdio>
#include <new>
#include <sys/mman.h>
#include "switch.h"

namespace emulator {

constexpr size_t STACK_BYTES = 128 << 10;
constexpr size_t PAGE_BYTES = 4096;
constexpr size_t MAX_SHARED_BYTES = 227 << 10;
constexpr size_t GUARD_BYTES = 64;
constexpr unsigned char POISON = 0xFF;                               // NaN in every floating-point type

__thread Machine* machine = nullptr;

// ---- errors -------------------------------------------------------------------------------------------------------

void report(const char* format, ...) {
    if (failed()) return;
    va_list parts;
    va_start(parts, format);
    int used = vsnprintf(machine->error, 400, format, parts);
    va_end(parts);
    uint3 b = machine->block, t = machine->thread;
    snprintf(machine->error + used, 512 - used, "; block (%u, %u, %u), thread (%u, %u, %u)", b.x, b.y, b.z, t.x, t.y, t.z);
}

void back_to_scheduler() {
    Fiber* mine = machine->threads[machine->running].fiber;
    switch_stack(&mine->top, machine->scheduler);
}

[[noreturn]] void give_up() {
    for (;;) back_to_scheduler();
}

// ---- order --------------------------------------------------------------------------------------------------------

// Forward: who could run first runs first. Backward: who could run last, so that a warp may be far ahead of the others.
// Shuffled: any. Blocks likewise.

uint64_t shuffled_bits() {                                    // xorshift
    uint64_t& s = machine->shuffle_state;
    s ^= s << 13, s ^= s >> 7, s ^= s << 17;
    return s;
}

bool choose() {                                               // takes one out of the queue
    Machine& m = *machine;
    size_t count = m.queue.size() - m.head;
    if (count == 0) return false;
    if (m.order > 1) std::swap(m.queue[m.head], m.queue[m.head + shuffled_bits() % count]);
    m.chosen = m.order == 1 ? m.queue.back() : m.queue[m.head];
    if (m.order == 1) m.queue.pop_back();
    else m.head++;
    return true;
}

void give_back() {                                            // what choose() took
    if (machine->order == 1) machine->queue.push_back(machine->chosen);
    else machine->head--;
}

size_t block_number(size_t turn, size_t num_blocks) {        // shuffled: from the middle on
    return machine->order == 1 ? num_blocks - 1 - turn : machine->order ? (turn + num_blocks / 2) % num_blocks : turn;
}

// ---- fibers -------------------------------------------------------------------------------------------------------

void enter(unsigned number) {
    Machine& m = *machine;
    m.running = number;
    dim3 size = m.block_size;
    m.thread = {number % size.x, number / size.x % size.y, number / (size.x * size.y)};
}

void fiber_main() {                                           // thread after thread, as long as none of them waits
    for (;;) {
        Machine& m = *machine;
        Thread& mine = m.threads[m.running];
        m.body(m.arguments);
        mine.state = DONE;
        m.num_done++;
        release_if_complete();
        bool goes_on = choose();
        if (goes_on && !failed() && m.threads[m.chosen].state == UNSTARTED) {
            m.threads[m.chosen].fiber = mine.fiber;
            m.threads[m.chosen].state = READY;
            enter(m.chosen);
        } else {
            if (goes_on) give_back();
            m.idle.push_back(mine.fiber);
            back_to_scheduler();
        }
    }
}

Fiber* new_fiber() {
    char* stack = (char*)mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(stack, PAGE_BYTES, PROT_NONE);                          // too deep is a crash, not other memory
    machine->fibers.push_back(new Fiber{stack, first_top(stack, STACK_BYTES, fiber_main)});
    return machine->fibers.back();
}

Fiber* idle_fiber() {
    if (machine->idle.empty()) return new_fiber();
    Fiber* fiber = machine->idle.back();
    machine->idle.pop_back();
    return fiber;
}

void reset_fibers() {                                         // after an error some have stopped in the middle
    machine->idle = machine->fibers;
    for (Fiber* fiber : machine->idle) fiber->top = first_top(fiber->stack, STACK_BYTES, fiber_main);
}

void resume(unsigned number) {
    Thread& thread = machine->threads[number];
    if (thread.state == UNSTARTED) thread.fiber = idle_fiber();
    thread.state = READY;
    enter(number);
    switch_stack(&machine->scheduler, thread.fiber->top);
}

// ---- barriers and exchanges ---------------------------------------------------------------------------------------

void make_ready(const unsigned* numbers, size_t count) {
    machine->queue.insert(machine->queue.end(), numbers, numbers + count);
    for (size_t i = 0; i < count; i++) machine->threads[numbers[i]].state = READY;
}

void release_block() {
    Machine& m = *machine;
    unsigned all[1024], count = 0;
    for (unsigned i = 0; i < m.threads.size(); i++) {
        if (m.threads[i].state != AT_BARRIER) continue;
        all[count++] = i;
        if (m.threads[i].line != m.threads[all[0]].line)
            report("threads of a block wait at different barriers: lines %d and %d", m.threads[i].line, m.threads[all[0]].line);
    }
    m.num_at_barrier = 0;
    make_ready(all, count);
}

void release_if_complete() {
    Machine& m = *machine;
    size_t arrived = m.num_at_barrier + (m.waits_for_ended ? 0 : m.num_done);
    if (m.num_at_barrier && arrived == m.threads.size()) release_block();
}

void barrier(int line) {
    Machine& m = *machine;
    m.threads[m.running].state = AT_BARRIER;
    m.threads[m.running].line = line;
    m.num_at_barrier++;
    release_if_complete();
    back_to_scheduler();
}

unsigned lanes_present(unsigned first, unsigned mask, int line, unsigned* lanes) {
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

void hand_over(unsigned first, unsigned mask, const unsigned* lanes, unsigned count, int line) {
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

uint64_t exchange(unsigned mask, uint64_t value, unsigned source, int line) {
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

// ---- shared memory ------------------------------------------------------------------------------------------------

char* take_shared(const void* key, size_t bytes) {
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

char* place_in_shared(unsigned address, unsigned bytes, int line) {
    if (address % bytes) report("shared address %u is no multiple of %u, at line %d", address, bytes, line), give_up();
    for (const Array& array : machine->arrays)
        if (address >= array.offset && address + bytes <= array.offset + array.bytes) return machine->shared + address;
    report("shared address %u lies outside all arrays, at line %d", address, line);
    give_up();
}

void check_guards() {
    for (Array& array : machine->arrays) {
        const unsigned char* end = (unsigned char*)machine->shared + array.offset + array.bytes;
        for (size_t i = 0; i < GUARD_BYTES; i++)
            if (end[i] != POISON) return report("a write %zu bytes past the end of %zu bytes of shared memory", i, array.bytes);
    }
}

// ---- a grid -------------------------------------------------------------------------------------------------------

void describe_wait() {
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

void run_block() {
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

Machine& machine_of_this_thread() {
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

void run_grid(const unsigned* sizes, unsigned shared_bytes, unsigned shared_limit, int order) {
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
