"""CuPy with a working GPU, or words about what is missing."""

from ..errors import DeviceError


def cupy_with_gpu():
    """Return CuPy with a working GPU. Errors: DeviceError that says what is missing."""
    try:
        import cupy
    except ModuleNotFoundError:
        raise DeviceError(
            'device "cuda" needs CuPy, which is not installed; install "shardkit[cuda12]" or '
            '"shardkit[cuda13]", or use device "cpu"'
        ) from None
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise DeviceError(
            f'device "cuda" needs CuPy, which is installed but cannot be loaded: {reason}; install '
            'the one for this CUDA, "shardkit[cuda12]" or "shardkit[cuda13]", or use device "cpu"'
        ) from None
    if cupy.cuda.runtime.is_hip:
        raise DeviceError(
            'device "cuda" needs CuPy for CUDA and a GPU of NVIDIA, but this CuPy is for ROCm, for '
            "which the kernels would have to be ported (NVRTC's options, inline PTX, warps of 64 "
            'threads, hipBLASLt); use a node with CUDA, or device "cpu"'
        )
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(
            f'device "cuda" needs a GPU and its driver, but CUDA reports "{error}"; run on a node '
            'with a GPU or use device "cpu"'
        ) from None
    if found == 0:
        raise DeviceError(
            'device "cuda" needs a GPU, but none is visible; check CUDA_VISIBLE_DEVICES or use '
            'device "cpu"'
        )
    _check_libraries(cupy)
    return cupy


def _check_libraries(cupy):
    """Raise DeviceError unless CuPy finds NVRTC and cuBLAS, which its wheel does not contain."""
    try:
        cupy.cuda.nvrtc.getVersion()
        cupy.cuda.cublas.getVersion
    except (ImportError, OSError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise DeviceError(
            'device "cuda" needs the CUDA libraries NVRTC and cuBLAS, but CuPy reports '
            f'"{reason}"; load the CUDA module of this machine, or run pip install '
            '"cupy-cuda12x[ctk]" (cuda13x for CUDA 13), as "shardkit[cuda12]" and '
            '"shardkit[cuda13]" do'
        ) from None
