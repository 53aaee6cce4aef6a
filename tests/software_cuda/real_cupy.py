"""Make an environment in which the real CuPy computes on a CPU, by the software CUDA.

    python tests/software_cuda/real_cupy.py .venv-cupy
    .venv-cupy/bin/python -c "import cupy; print(cupy.arange(5).sum())"

CuPy is the wheel from the index. One of its modules, which is linked with CUDA's runtime, is
compiled once more from CuPy's source distribution against the runtime of driver/; the others find
the libraries of driver/ where they look for CUDA's. It takes a minute of a core, g++, and 1.2 GB.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CUPY = "14.2.0"
CUDA = ("runtime", "crt", "profiler-api", "nvrtc")  # headers, and NVRTC
PACKAGES = [f"cupy-cuda13x=={CUPY}", *[f"nvidia-cuda-{name}<14" for name in CUDA]]
# As CuPy's own setup defines them for a wheel of CUDA 13.
DEFINED = {
    "CUPY_CUDA_VERSION": 13000,
    "CUPY_HIP_VERSION": 0,
    "CUPY_USE_CUDA_PYTHON": False,
    "CUPY_CUFFT_STATIC": False,
}
DRIVER = ("streams.cpp", "memory.cpp", "device.cpp", "kernels.cpp")
FLAGS = ("-O2", "-std=c++17", "-fPIC", "-shared", "-w", "-fvisibility=hidden")
RUNTIME = "cupy_backends/cuda/api/runtime"
NOT_SUPPORTED = {"cuda": 801, "cublas": 15}  # what a function that is not there returns


def main(folder: str) -> None:
    """Make the environment in this folder, or make it anew."""
    environment = Environment(Path(folder).resolve())
    environment.install()
    source = environment.source()
    environment.build_driver()
    environment.build_products()
    environment.build_runtime(source)
    environment.load_at_start()


class Environment:
    """A virtual environment, and the folder in it that has the software CUDA."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.own = folder / "software-cuda"
        self.own.mkdir(parents=True, exist_ok=True)

    def install(self) -> None:
        """Install shardkit, what its tests need, and CuPy."""
        if not self.python.exists():
            venv.create(self.folder, with_pip=True)
        self._pip("install", "-c", str(ROOT / "constraints.txt"), "-e", f"{ROOT}[mpich,test]")
        self._pip("install", "-c", str(ROOT / "constraints.txt"), *PACKAGES)

    def source(self) -> Path:
        """Return the folder of CuPy's source distribution, with the Cython that it wants."""
        folder = self.own / f"cupy-{CUPY}"
        if not folder.exists():
            wanted = ["--no-deps", "--no-binary=cupy", f"--dest={self.own}", f"cupy=={CUPY}"]
            self._pip("download", *wanted, CUPY_INSTALL_USE_STUB="1")
            with tarfile.open(next(self.own.glob("cupy-*.tar.gz"))) as archive:
                archive.extractall(self.own, filter="data")
        wanted = tomllib.loads((folder / "pyproject.toml").read_text())["build-system"]["requires"]
        self._pip("install", *[each for each in wanted if "cython" in each.lower()])
        return folder

    def build_driver(self) -> None:
        """Compile the driver and the runtime, one library."""
        sources = [str(HERE / "driver" / name) for name in DRIVER]
        self._compile("libcuda.so.1", *sources, "-I", str(self.headers), "-ldl")

    def build_products(self) -> None:
        """Compile cuBLAS; functions that CuPy's module names and nobody calls refuse."""
        module = next(self.site.glob("cupy_backends/cuda/libs/cublas.*.so"))
        source = str(HERE / "driver" / "products.cpp")
        libraries = [str(self.own / "libcuda.so.1")]
        self._compile("libcublas.so.13", source, *libraries)
        stubs = self._stubs("cublas", module, self.own / "libcublas.so.13")
        self._compile("libcublas.so.13", source, str(stubs), *libraries)
        nothing = ["-x", "c++", "/dev/null", "-x", "none"]
        self._compile("libcublasLt.so.13", *nothing, str(self.own / "libcublas.so.13"))

    def build_runtime(self, source: Path) -> None:
        """Put CuPy's module on CUDA's runtime, linked with ours, in the place of the wheel's."""
        target = next(self.site.glob(f"{RUNTIME}.*.so"))
        text = source / f"{RUNTIME}.cpp"
        defined = ",".join(f"{name}={value}" for name, value in DEFINED.items())
        command = ["-m", "cython", "-3", "--cplus", "-E", defined, f"{RUNTIME}.pyx"]
        _run(str(self.python), *command, "-o", str(text), cwd=source)
        made = self.own / target.name
        include = [self.headers, sysconfig.get_path("include"), source / "cupy_backends"]
        flags = [*FLAGS, *[f"-I{folder}" for folder in include], '-DCYTHON_EXTERN_C=extern "C"']
        driver = self.own / "libcuda.so.1"
        _run("g++", *flags, str(text), "-o", str(made))
        stubs = self._stubs("cuda", made, driver)
        rpath = f"-Wl,-rpath,{self.own}"
        _run("g++", *flags, str(text), str(stubs), str(driver), rpath, "-o", str(made))
        made.replace(target)

    def load_at_start(self) -> None:
        """Let each Python of the environment load the libraries before anything else."""
        start = f"runpy.run_path({str(HERE / 'start.py')!r})"
        line = f"import runpy, pathlib; {start}['load'](pathlib.Path({str(self.own)!r}))\n"
        (self.site / "software_cuda.pth").write_text(line)

    @property
    def site(self) -> Path:
        """The folder of packages."""
        return next(self.folder.glob("lib/python3*/site-packages"))

    @property
    def headers(self) -> Path:
        """CUDA's."""
        return next(self.site.glob("nvidia/**/cuda_runtime_api.h")).parent

    def _pip(self, *arguments, **variables):
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "-q"]
        _run(*pip, *arguments, env={**os.environ, **variables})

    def _compile(self, name, *arguments):
        _run("g++", *FLAGS, *arguments, f"-Wl,-soname,{name}", "-o", str(self.own / name))

    def _stubs(self, prefix, user, library):
        """Return C++ with the functions that a module names and a library has not."""
        missing = sorted(_symbols(user, prefix, "U") - _symbols(library, prefix, "T"))
        made = self.own / f"{prefix}_stubs.cpp"
        visible = 'extern "C" __attribute__((visibility("default")))'
        refused = NOT_SUPPORTED[prefix]
        lines = [f"{visible} int {name}() {{ return {refused}; }}\n" for name in missing]
        made.write_text("".join(lines))
        return made


def _symbols(library, prefix, kind):
    said = _run("nm", "-D", str(library))
    return set(re.findall(rf"{kind} ({prefix}\w+)", said))


def _run(*command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
