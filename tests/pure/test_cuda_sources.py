"""The CUDA sources as NVIDIA's compiler sees them, and as they are packed."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from nvrtc import OPTIONS_OF_CUPY, compiled, library, version
from stand_in.emulator.module import KERNEL

from shardkit.testing.gpu import FOLDER, STORED, cuda_launch, options, source, tensor_attention

FILES = sorted(path.name for path in FOLDER.glob("*.cu"))
ON_TENSOR_CORES = [f"{name}.cu" for name in tensor_attention.TILES]  # compiled for their tiles
PLAIN_FILES = [file for file in FILES if file not in ON_TENSOR_CORES]
ARCHITECTURES = ("80", "90")
TILES = [(64, 64), (128, 32), (256, 16)]  # head dim, tile
MOST_PACKS = {"float32": 4, "float64": 4, "float16": 2, "bfloat16": 2}
CASTS = {"HALF": STORED["bfloat16"]}
# nvcc has NVRTC's front end and assembler: by default it is asked where there is no NVRTC.
of_nvcc = pytest.mark.sweep if library() is not None else pytest.mark.thorough
CASES = [
    pytest.param("float32", *TILES[0], marks=of_nvcc),
    *[pytest.param(dtype, *tile, marks=pytest.mark.sweep) for dtype in STORED for tile in TILES],
]
# dtype, products of one, head dims
HEADS = [
    pytest.param("bfloat16", 1, [128], marks=of_nvcc),
    pytest.param("float32", 3, [128], marks=of_nvcc),
    *[
        pytest.param(*case, marks=pytest.mark.sweep)
        for case in [
            ("bfloat16", 1, range(16, 257, 16)),
            ("float16", 1, [64, 128]),
            ("float32", 1, range(16, 193, 16)),
            ("float32", 3, range(16, 193, 16)),
        ]
    ],
]
# Of a thread; a stack is in memory, and so are numbers that are spilled.
MOST_SPILLED_BYTES, MOST_STACK_BYTES, MOST_REGISTERS = 16, 32, 255


def all_sources():
    """Every source in a namespace of its own, for one run of the compiler."""
    return "\n".join(
        f"namespace in_{file.removesuffix('.cu')} {{\n{source(file)}\n}}" for file in PLAIN_FILES
    )


def said_by_nvcc(folder, text, *flags):
    """Return what the compiler says of this source, registers of each kernel among it."""
    (folder / "all.cu").write_text(text)
    code = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in ARCHITECTURES]
    flags = ["-fatbin", "--threads", "2", *code, "-Xptxas=-v", *flags, *OPTIONS_OF_CUPY]
    done = subprocess.run(
        ["nvcc", *flags, "all.cu", "-o", "all.bin"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    return done.stderr


def tensor_source(name, dim, tiles, count, number):
    """The source of a kernel for these tiles, with its macros, in a namespace of its own."""
    macros = tensor_attention.macros(name, dim, tiles, count)
    text = source(f"{name}.cu").replace(f"{name}(", f"{name}_{number}(")
    text = re.sub(r'(?<!")\bmemory\b(?!")', f"memory_{number}", text)  # of all kernels one, else
    defined = "\n".join(f"#undef {key}\n#define {key} {value}" for key, value in macros.items())
    return f"{defined}\nnamespace in_{number} {{\n{text}\n}}"


@pytest.mark.skipif(
    shutil.which("nvcc") is None, reason="compiling for GPUs needs nvcc, which was not found"
)
@pytest.mark.parametrize("dtype, dim, tile", CASES)
@pytest.mark.thorough
def test_every_source_compiles_for_gpus_and_keeps_its_numbers_in_registers(
    tmp_path, dtype, dim, tile
):
    macros = options(dtype, DIM=dim, TILE=tile, PACKS=MOST_PACKS[dtype], **CASTS)
    said = said_by_nvcc(tmp_path, all_sources(), *macros)
    kernels = set(re.findall(r"Compiling entry function '(\w+)' for 'sm_90'", said))
    assert len(kernels) == sum(source(file).count('extern "C" __global__') for file in PLAIN_FILES)
    for what, most in (
        (r"(\d+) bytes spill stores", MOST_SPILLED_BYTES),
        (r"(\d+) bytes stack frame", MOST_STACK_BYTES),
    ):
        assert max(map(int, re.findall(what, said))) <= most


@pytest.mark.skipif(
    shutil.which("nvcc") is None, reason="compiling for GPUs needs nvcc, which was not found"
)
@pytest.mark.parametrize("dtype, count, dims", HEADS)
@pytest.mark.thorough
def test_attention_on_tensor_cores_has_no_stack_with_any_of_its_tiles(tmp_path, dtype, count, dims):
    itemsize = 4 if dtype == "float32" else 2
    for dim in dims:
        cases = [
            (name, tiles)
            for name in tensor_attention.TILES
            for tiles in tensor_attention.candidates(name, itemsize, dim)
        ]
        text = "\n".join(
            tensor_source(name, dim, tiles, count, number)
            for number, (name, tiles) in enumerate(cases)
        )
        said = said_by_nvcc(tmp_path, text, *options(dtype))
        stacks = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", said)
        assert stacks == [("0", "0")] * 2 * len(cases), dim


@pytest.mark.skipif(library() is None, reason="NVRTC was not found (pip install nvidia-cuda-nvrtc)")
@pytest.mark.parametrize(
    "dtype, arch",
    [
        ("float32", "90"),
        ("bfloat16", "80"),
        *[
            pytest.param(dtype, arch, marks=pytest.mark.sweep)
            for dtype in STORED
            for arch in ARCHITECTURES
        ],
    ],
)
@pytest.mark.thorough
def test_nvrtc_takes_every_source_as_cupy_gives_it(dtype, arch):
    dim, tile = TILES[0]
    for file in PLAIN_FILES:
        macros = options(dtype, DIM=dim, TILE=tile, PACKS=MOST_PACKS[dtype], **CASTS)
        kernels = compiled(source(file), macros, arch)
        assert set(kernels) == set(KERNEL.findall(source(file))), file
        for name, taken in kernels.items():
            limits = (MOST_REGISTERS, MOST_STACK_BYTES, MOST_SPILLED_BYTES)
            assert all(one <= most for one, most in zip(taken, limits)), (name, taken)


@pytest.mark.skipif(version() < (13, 5), reason="NVRTC 13.5 was not found; 13.0 spills one number")
@pytest.mark.parametrize("dtype, count, first", [("bfloat16", 1, 1), ("float32", 3, 0)])
@pytest.mark.parametrize("name", tensor_attention.TILES)
@pytest.mark.thorough
def test_nvrtc_takes_attention_on_tensor_cores_and_has_no_stack(name, dtype, count, first):
    """With each of its tiles, for one architecture or the other in turn."""
    itemsize = 4 if dtype == "float32" else 2
    for turn, tiles in enumerate(tensor_attention.candidates(name, itemsize, 128), first):
        macros = options(dtype, **tensor_attention.macros(name, 128, tiles, count))
        (taken,) = compiled(source(f"{name}.cu"), macros, ARCHITECTURES[turn % 2]).values()
        assert (taken.stack_bytes, taken.spilled_bytes) == (0, 0), tiles


@pytest.mark.skipif(library() is None, reason="NVRTC was not found")
def test_nvrtc_has_no_headers_and_says_so():
    with pytest.raises(RuntimeError, match="INFINITY"):
        text = 'extern "C" __global__ void f(float* x) { x[0] = INFINITY; }'
        compiled(text, options("float32"), "90")


def test_sources_need_no_header():
    assert FILES and not any("#include" in source(file) for file in FILES)


def test_no_number_of_floating_point_is_added_by_an_atomic():
    """Only the largest bits of magnitudes are, whose order does not matter."""
    assert [call for file in FILES for call in re.findall(r"atomic\w+\(.*", source(file))] == [
        "atomicMax(largest, most);"
    ]


def test_sources_are_packed():
    project = Path(__file__).parents[2] / "pyproject.toml"
    patterns = tomllib.loads(project.read_text())["tool"]["setuptools"]["package-data"][
        cuda_launch.__package__
    ]
    packed = {path for pattern in patterns for path in FOLDER.glob(pattern)}
    assert packed == {path for path in FOLDER.iterdir() if path.suffix in (".cu", ".cuh")}
