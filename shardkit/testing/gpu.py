"""gpu: kernels, products, graphs and transports of GPUs."""

from . import open_door

ROOM = "shardkit.gpu"
NAMES = {
    "kernels.arrays": "real_dtype",
    "kernels.launch": "FOLDER STORED options source",
    "kernels.sorting": "sorted_by_row",
    "kernels.tensor_attention": "Limits",
    "products.cublas": "_PROTOTYPES library_of",
    "transports.choice": "RankPlace choose choose_planned",
    "transports.ipc": "open_gpu_ipc",
    "transports.levels": "NodeSwaps",
    "transports.mpi": "MPITransport open_gpu_mpi",
    "transports.nccl": "open_nccl",
    "transports.opening": "choose_here",
    "transports.probe": "SIZE_CLASSES VERBS Verdict _session_members _try_all agreed_verdict probe",
}
MODULES = {
    "cublas": "products.cublas",
    "cublaslt": "products.cublaslt",
    "cuda_attention": "kernels.attention",
    "cuda_launch": "kernels.launch",
    "cuda_work": "step.work",
    "gpu_calls": "transports.calls",
    "gpu_ipc": "transports.ipc",
    "gpu_levels": "transports.levels",
    "gpu_mpi": "transports.mpi",
    "gpu_nccl": "transports.nccl",
    "gpu_probe": "transports.probe",
    "gpu_transports": "transports.opening",
    "joint": "joint",
    "tensor_attention": "kernels.tensor_attention",
}

open_door(__name__)
