// The machine that runs a grid: the threads of a block as fibers, the order they run in, what went wrong.
//
// What is here is read for every kernel: small functions, and the names of those in machine.cpp.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };

#pragma GCC visibility push(hidden)                                 // each library has a machine of its own

namespace emulator {

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
    bool waits_for_ended = true;                                     // at a barrier; a GPU from Volta on does not
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

extern __thread Machine* machine;

__attribute__((format(printf, 1, 2))) void report(const char* format, ...);
void back_to_scheduler();
[[noreturn]] void give_up();                                         // the grid is abandoned, this stack with it
uint64_t shuffled_bits();
void make_ready(const unsigned* numbers, size_t count);
void barrier(int line);
void release_if_complete();                                          // those that wait at a barrier
// The lanes that take part, if all of them have come, else none.
unsigned lanes_present(unsigned first, unsigned mask, int line, unsigned* lanes);
// Give a value and take that of the source lane, together with all lanes of the mask.
uint64_t exchange(unsigned mask, uint64_t value, unsigned source, int line);
char* take_shared(const void* key, size_t bytes);
char* place_in_shared(unsigned address, unsigned bytes, int line);   // from the start of shared memory, within one array
Machine& machine_of_this_thread();                                   // of the operating system
void run_grid(const unsigned* sizes, unsigned shared_bytes, unsigned shared_limit, int order);

inline bool failed() { return machine->error[0] != 0; }
inline unsigned lane_number() { return machine->running % WARP; }

}  // namespace emulator

#pragma GCC visibility pop
