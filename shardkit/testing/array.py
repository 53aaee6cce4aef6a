"""array: buffers, kernels and their twins, libraries of products, machine code."""

from . import open_door

ROOM = "shardkit.array"
NAMES = {
    "adjacent": "joined stacked",
    "arena": "ALIGNMENT_BYTES Arena HUGE_PAGE_BYTES SMALL_BYTES empty",
    "backend": "is_device_array numbers_of to_host xp_of",
    "blas": "LIBRARIES library_named",
    "blas.cblas": "CblasLibrary",
    "blas.own": "numpys_own",
    "blas.primitives": "Interface",
    "blas.probe": "has_same_bits",
    "copies": "Done",
    "cpu.compiled": "CodeFiles candidate_folders inlined",
    "cpu.panel_tiles": "HAS_PAIRS",
    "cpu.scalar": "exp exp2 larger like logistic plus",
    "cublas": "_PROTOTYPES library_of",
    "cuda.arrays": "real_dtype",
    "cuda.launch": "FOLDER STORED options source",
    "cuda.sorting": "sorted_by_row",
    "cuda.tensor_attention": "Limits",
    "device": "BufferPool Device OwnBuffers",
    "dtypes": "dtype_named is_floating is_half wide",
    "halves": "rounded widened",
    "lines": "adaptive pooling",
    "machine_code": "MACHINE_CODE MachineCode",
    "random": "key_of",
    "reference.chunks": "CHUNK_ELEMENTS",
    "registry": "ACTIVATIONS KERNELS",
    "scatter": "add_at",
    "window": "ConvolutionWindow",
}
MODULES = {
    "arena": "arena",
    "blas": "blas",
    "compiled": "cpu.compiled",
    "cpu_activation": "cpu.activation",
    "cublas": "cublas",
    "cublaslt": "cublaslt",
    "cuda_attention": "cuda.attention",
    "cuda_launch": "cuda.launch",
    "fresh": "fresh",
    "halves": "halves",
    "kernels": "kernels",
    "machine_code": "machine_code",
    "mkl": "blas.mkl",
    "onednn": "blas.onednn",
    "products": "products",
    "random": "random",
    "reference_activation": "reference.activation",
    "reference_attention": "reference.attention",
    "registry": "registry",
    "tensor_attention": "cuda.tensor_attention",
}

open_door(__name__)
