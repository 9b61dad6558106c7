"""Compile every kernel for every target without a GPU, and read from the machine code what it costs.

    python -m toktier_kernels.ahead [--targets 90 120]    # a JSON list of rows; exit status 1 if one is red

Guarantee: a row's figures are those of the very code that a GPU of that target would run: they're read from the cubin
by the disassembler that Triton ships, not from a second compilation. What a launcher runs and how is what the kernel
modules' `AHEAD` lists say; a module without one has no kernels.

Triton's interpreter has to be off: with `TRITON_INTERPRET` set, kernels are no longer there to be compiled.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import toktier_kernels

from .specs import AheadSpec

TARGETS = (80, 89, 90, 100, 120)
"""Compute capabilities: A100; L4, RTX 40; H100, H200; B200; RTX 50."""
WARP_THREADS = 32

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_LOCAL_ACCESS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(STL|LDL)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel for one target.

    registers     of a thread
    local_bytes   of a thread's local memory: its stack frame, and arrays that aren't in registers
    spills        instructions that store to local memory or load from it
    shared_bytes  of a block: what the launch asks for and what the code itself declares
    error         why it didn't compile; the figures are 0 then
    """

    kernel: str
    target: str
    hot: bool
    threads: int
    compiled: bool
    registers: int = 0
    local_bytes: int = 0
    spills: int = 0
    shared_bytes: int = 0
    error: str = ""

    @property
    def red(self) -> bool:
        return not self.compiled or (self.hot and (self.spills > 0 or self.local_bytes > 0))


@cache
def kernels() -> dict[str, AheadSpec]:
    """Every kernel of the package by its name, as its launcher runs it. Raises ValueError for two of one name."""
    found: dict[str, AheadSpec] = {}
    for module in pkgutil.iter_modules(toktier_kernels.__path__, "toktier_kernels."):
        for spec in getattr(importlib.import_module(module.name), "AHEAD", ()):
            if spec.name in found:
                raise ValueError(f"two kernels are listed as {spec.name}")
            found[spec.name] = spec
    return found


def compile_kernel(spec: AheadSpec, capability: int) -> Row:
    """Never raises for a kernel that doesn't compile: the row says so."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target, threads = f"sm_{capability}", spec.num_warps * WARP_THREADS
    source = ASTSource(
        spec.fn, signature=spec.full_signature, constexprs=dict(spec.constexprs), attrs=dict(spec.attributes)
    )
    try:
        compiled = triton.compile(
            source, target=GPUTarget("cuda", capability, WARP_THREADS), options={"num_warps": spec.num_warps}
        )
    except Exception as error:  # whatever Triton's front end, LLVM or ptxas raise
        reason = f"{type(error).__name__}: {error}"[:500]
        return Row(spec.name, target, spec.hot, threads, compiled=False, error=reason)
    registers, stack, static, local = _usage(compiled.asm["cubin"])
    # Without local memory nothing can be spilled; the disassembly takes most of the time here.
    assembly = _disassembled(compiled.asm["cubin"], "--dump-sass") if stack + local else ""
    return Row(
        spec.name,
        target,
        spec.hot,
        threads,
        compiled=True,
        registers=registers,
        local_bytes=stack + local,
        spills=len(_LOCAL_ACCESS.findall(assembly)),
        shared_bytes=int(compiled.metadata.shared) + static,
    )


def compile_all(targets: Sequence[int] = TARGETS, *, processes: int | None = None) -> list[Row]:
    """In order of kernels, then targets. The machine code is kept in Triton's cache: a second time takes seconds."""
    require_compiler()
    jobs = [(name, target) for name in kernels() for target in targets]
    workers = min(processes or os.cpu_count() or 1, len(jobs))
    if workers <= 1:
        return [_compile_named(job) for job in jobs]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(_compile_named, jobs))


def require_compiler() -> None:
    """Raises RuntimeError where kernels would be interpreted."""
    from triton import knobs

    if knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: nothing can be compiled")


def _compile_named(job: tuple[str, int]) -> Row:
    name, target = job
    return compile_kernel(kernels()[name], target)


def _usage(cubin: bytes) -> tuple[int, int, int, int]:
    """Registers, and bytes of stack, static shared and local memory, of the only function in `cubin`."""
    found = _USAGE.findall(_disassembled(cubin, "--dump-resource-usage"))
    if len(found) != 1:
        raise ValueError(f"{len(found)} functions in a cubin where one was expected")
    registers, stack, shared, local = map(int, found[0])
    return registers, stack, shared, local


def _disassembled(cubin: bytes, what: str) -> str:
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, what, str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def as_json(rows: Iterable[Row]) -> str:
    return json.dumps([{**asdict(row), "red": row.red} for row in rows], indent=1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m toktier_kernels.ahead")
    parser.add_argument("--targets", type=int, nargs="+", default=TARGETS, help="compute capabilities, as 90")
    rows = compile_all(parser.parse_args(arguments).targets)
    print(as_json(rows))
    return int(not rows or any(row.red for row in rows))


if __name__ == "__main__":
    sys.exit(main())
