"""`shardkit flags`."""

from ..coupling.embedding import compiler_flags
from .arguments import option

_FLAGS = """print what a compiler is told for a solver that calls shardkit.h

Print the arguments with which the site's compiler builds a solver in C, C++ or Fortran that calls
shardkit.h or the module shardkit:
  mpicc -o solver solver.c $(shardkit flags)
  mpif90 -o solver $(shardkit flags --fortran) solver.f90
The options print a part of them."""

_PARTS = ("cflags", "sources", "ldflags")


def add_commands(add_command) -> None:
    """Add the parser of the command."""
    parser = add_command("flags", _flags, _FLAGS, allow_abbrev=False)
    option(parser, "--fortran", "for a program that uses the Fortran module shardkit")
    for part in _PARTS:
        option(parser, f"--{part}", f"print its {part} alone, or with other parts that are named")


def _flags(known, overrides) -> int:
    flags = compiler_flags(fortran=known.fortran)
    asked = [part for part in _PARTS if getattr(known, part)]
    print(" ".join(argument for part in asked or _PARTS for argument in flags[part]))
    return 0
