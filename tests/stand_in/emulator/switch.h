// Leaving one stack for another: by hand where we know the registers that a call must keep, through ucontext elsewhere.
//
//   first_top(stack, bytes, start)     what switch_stack needs to begin start() on a fresh stack
//   switch_stack(&mine, other)         write down where we are in `mine`, go on where `other` was written down
#pragma once
#include <cstddef>
#include <cstdint>

namespace emulator {

#if defined(__x86_64__) && !defined(SWITCH_BY_UCONTEXT)

extern "C" __attribute__((visibility("hidden"))) void emulator_switch_stack(void** mine, void* other);

asm(R"(
.text
.hidden emulator_switch_stack
.type emulator_switch_stack, @function
emulator_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulator_switch_stack, .-emulator_switch_stack
)");

inline void switch_stack(void** mine, void* other) { emulator_switch_stack(mine, other); }

inline void* first_top(char* stack, size_t bytes, void (*start)()) {
    void** top = (void**)(stack + bytes) - 1;                        // so that the stack is aligned as after a call
    *--top = (void*)start;
    for (int i = 0; i < 6; i++) *--top = nullptr;                    // the registers
    return top;
}

#else

}  // namespace emulator
#include <ucontext.h>
namespace emulator {

inline void switch_stack(void** mine, void* other) {
    ucontext_t here;
    *mine = &here;                                                   // lies on this stack, which sleeps until we are back
    swapcontext(&here, (ucontext_t*)other);
}

inline void* first_top(char* stack, size_t bytes, void (*start)()) {
    ucontext_t* top = (ucontext_t*)(stack + bytes) - 1;
    getcontext(top);
    top->uc_stack.ss_sp = stack;
    top->uc_stack.ss_size = bytes - sizeof(ucontext_t) - 64;
    top->uc_link = nullptr;
    makecontext(top, start, 0);
    return top;
}

#endif

}  // namespace emulator
