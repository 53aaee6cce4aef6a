"""GPUs: all that is for them alone, in one place. A run on CPUs imports none of it.

    products, step, kernels, ...  --stand on-->  parallel, comm, nn, array, ...
    array, comm, nn, parallel     --ask for-->   on_gpu.gpu_part("kernels.rules")

    library       CuPy with a working GPU, or words about what is missing
    memory        arrays in GPU memory, and page-locked ones of the host
    copies        copies to and from the host, on a stream of their own
    kernels/      CUDA C++, and who launches it: twins of array/reference
    products/     cuBLAS and cuBLASLt
    joint         products of one array with several weights, made at once
    graphs        CUDA graphs of what a thread computes, and the memory that they keep
    transports/   GPU arrays between ranks: NCCL, CUDA IPC, GPU-aware MPI, staged; which one
    step/         CUDA graphs of a training step: model.compile()

What CPUs need too stands in the other rooms: the registry of kernels and the table of products,
waits of the host (array/waits.py), what code tells a capture (array/capture.py), the contract of a
transport (comm/transport.py) and the names in settings (comm/settings.py), parts of a joint product
(nn/ops/joint_parts.py), and whether steps are captured (parallel/step/compilation.py).
doctor/gpus.py reports what it finds with this room. docs/gpu.md says what has run on which GPU.
"""
