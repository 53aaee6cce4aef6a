// The machine that runs a grid: the threads of a block as fibers, the order they run in, what went wrong.
#pragma once
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <sys/mman.h>
#include <utility>
#include <vector>
#include "switch.h"

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };

namespace emulator {

constexpr size_t STACK_BYTES = 128 << 10;
constexpr size_t PAGE_BYTES = 4096;
constexpr size_t MAX_SHARED_BYTES = 227 << 10;
constexpr size_t GUARD_BYTES = 64;
constexpr unsigned char POISON = 0xFF;                               // NaN in every floating-point type
constexpr unsigned WARP = 32;

enum State { UNSTARTED, READY, AT_BARRIER, AT_EXCHANGE, DONE };

struct Fiber { char* stack; void* top; };

struct Copy { char* to; const char* from; unsigned bytes, whole; };  // to shared memory, under way

struct Thread {
    State state;
    int line;                                                        // where it waits
    unsigned mask;                                                   // of the exchange: the lanes that take part
    unsigned source;                                                 // the lane whose value it wants
    uint64_t value;                                                  // what it gives, then what it gets
    Fiber* fiber;
    std::vector<Copy> copies;                                        // that it started and has not waited for
};

struct Array { const void* key; size_t offset, bytes; };             // of static shared memory

struct Machine {
    uint3 thread, block;                                             // threadIdx and blockIdx of the fiber that runs
    dim3 block_size, grid_size;
    std::vector<Thread> threads;
    std::vector<Fiber*> fibers, idle;
    std::vector<unsigned> queue;                                     // numbers of threads that can run, from head on
    size_t head = 0, num_done = 0, num_at_barrier = 0;
    unsigned chosen = 0;                                             // the one to run next
    unsigned running = 0;
    void* scheduler = nullptr;                                       // top of the stack that launched the grid
    void (*body)(void*) = nullptr;
    void* arguments = nullptr;
    int order = 0;                                                   // 0 forward, 1 backward, else the seed of a shuffle
    uint64_t shuffle_state = 0;
    size_t shared_bytes = 0, shared_used = 0, shared_limit = 0;      // asked for so far, with gaps, what is allowed
    std::vector<Array> arrays;                                       // of shared memory; the first is the dynamic one
    char* shared = nullptr;
    char* error = nullptr;                                           // [512]
};

inline thread_local Machine* machine = nullptr;

// ---- errors -------------------------------------------------------------------------------------------------------

inline bool failed() { return machine->error[0] != 0; }

__attribute__((format(printf, 1, 2))) inline void report(const char* format, ...) {
    if (failed()) return;
    va_list parts;
    va_start(parts, format);
    int used = vsnprintf(machine->error, 400, format, parts);
    va_end(parts);
    uint3 b = machine->block, t = machine->thread;
    snprintf(machine->error + used, 512 - used, "; block (%u, %u, %u), thread (%u, %u, %u)", b.x, b.y, b.z, t.x, t.y, t.z);
}

inline void back_to_scheduler() {
    Fiber* mine = machine->threads[machine->running].fiber;
    switch_stack(&mine->top, machine->scheduler);
}

[[noreturn]] inline void give_up() {                                 // the grid is abandoned, this stack with it
    for (;;) back_to_scheduler();
}

// ---- order --------------------------------------------------------------------------------------------------------

// Forward: who could run first runs first. Backward: who could run last, so that a warp may be far ahead of the others.
// Shuffled: any. Blocks likewise.

inline uint64_t shuffled_bits() {                                    // xorshift
    uint64_t& s = machine->shuffle_state;
    s ^= s << 13, s ^= s >> 7, s ^= s << 17;
    return s;
}

inline bool choose() {                                               // takes one out of the queue
    Machine& m = *machine;
    size_t count = m.queue.size() - m.head;
    if (count == 0) return false;
    if (m.order > 1) std::swap(m.queue[m.head], m.queue[m.head + shuffled_bits() % count]);
    m.chosen = m.order == 1 ? m.queue.back() : m.queue[m.head];
    if (m.order == 1) m.queue.pop_back();
    else m.head++;
    return true;
}

inline void give_back() {                                            // what choose() took
    if (machine->order == 1) machine->queue.push_back(machine->chosen);
    else machine->head--;
}

inline size_t block_number(size_t turn, size_t num_blocks) {        // shuffled: from the middle on
    return machine->order == 1 ? num_blocks - 1 - turn : machine->order ? (turn + num_blocks / 2) % num_blocks : turn;
}

// ---- fibers -------------------------------------------------------------------------------------------------------

inline void enter(unsigned number) {
    Machine& m = *machine;
    m.running = number;
    dim3 size = m.block_size;
    m.thread = {number % size.x, number / size.x % size.y, number / (size.x * size.y)};
}

inline void fiber_main() {                                           // thread after thread, as long as none of them waits
    for (;;) {
        Machine& m = *machine;
        Thread& mine = m.threads[m.running];
        m.body(m.arguments);
        mine.state = DONE;
        m.num_done++;
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

inline Fiber* new_fiber() {
    char* stack = (char*)mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(stack, PAGE_BYTES, PROT_NONE);                          // too deep is a crash, not other memory
    machine->fibers.push_back(new Fiber{stack, first_top(stack, STACK_BYTES, fiber_main)});
    return machine->fibers.back();
}

inline Fiber* idle_fiber() {
    if (machine->idle.empty()) return new_fiber();
    Fiber* fiber = machine->idle.back();
    machine->idle.pop_back();
    return fiber;
}

inline void reset_fibers() {                                         // after an error some have stopped in the middle
    machine->idle = machine->fibers;
    for (Fiber* fiber : machine->idle) fiber->top = first_top(fiber->stack, STACK_BYTES, fiber_main);
}

inline void resume(unsigned number) {
    Thread& thread = machine->threads[number];
    if (thread.state == UNSTARTED) thread.fiber = idle_fiber();
    thread.state = READY;
    enter(number);
    switch_stack(&machine->scheduler, thread.fiber->top);
}

}  // namespace emulator
