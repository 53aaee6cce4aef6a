"""The PTX that NVRTC makes of the kernels, run on the CPU: what a driver compiles for its GPU. The
`asm` of tensor cores runs too, for which the emulator of CUDA C++ has functions.

    from software_cuda.module import running_ptx

    with running_ptx("90"):                 # CuPy's stand-in: its kernels are PTX of sm_90
        cupy.RawModule(code=text).get_function("twice")(grid, block, arguments)

    PTX of NVRTC --program.py--> statements --instructions.py--> C++ --g++--> functions

Threads are fibers of the emulator (tests/stand_in/emulator), so barriers, exchanges and shared
memory are watched as there. Each access to memory is checked beyond that: its alignment, and that
it is in an array that the kernel was given, or of shared memory. It needs g++ and NVRTC.
"""
