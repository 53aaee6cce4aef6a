"""Spack recipe of shardkit: copy this folder to packages/py-shardkit of a repository of yours."""

from spack.package import *


class PyShardkit(PythonPackage):
    """Train sharded models as ordinary MPI jobs, on NumPy or CuPy arrays, with HDF5 checkpoints
    that open under any layout.
    """

    # Without a public address yet: `spack dev-build py-shardkit@0.1.0` in the unpacked archive.
    license("Apache-2.0")

    version("0.1.0")

    variant("cuda", default=False, description="Compute on GPUs with CuPy")
    variant("bfloat16", default=False, description="Half floats in bfloat16 on CPUs")
    variant("tables", default=False, description="Read tables: CSV, Parquet, Arrow")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77.0.1:", type="build")
    depends_on("mpi", type="run")
    depends_on("py-mpi4py@4.1:", type=("build", "run"))
    depends_on("py-numpy@2.0.2:", type=("build", "run"))
    depends_on("py-scipy@1.13.1:", type=("build", "run"))
    depends_on("py-numba@0.62:", type=("build", "run"))
    depends_on("py-llvmlite@0.45:", type=("build", "run"))
    depends_on("py-h5py@3.12.1:", type=("build", "run"))
    depends_on("py-xxhash@3.2:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-threadpoolctl@3:", type=("build", "run"))
    depends_on("py-cupy@13:", when="+cuda", type=("build", "run"))
    depends_on("py-ml-dtypes@0.5:", when="+bfloat16", type=("build", "run"))
    depends_on("py-pyarrow@17:", when="+tables", type=("build", "run"))
