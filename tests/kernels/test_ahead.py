"""Machine code without a GPU: every kernel on every target; and what a row says is true of code known to spill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from toktier_kernels import ahead

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in a process whose Triton compiles: here it interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT / "kernels")
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)


def compiled(program: str, tmp_path: Path) -> Any:
    """What `program` prints as JSON."""
    source = tmp_path / "program.py"
    source.write_text(textwrap.dedent(program), encoding="utf-8")
    done = run(str(source))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


KNOWN = """
    import json
    from dataclasses import asdict
    import triton
    import triton.language as tl
    from toktier_kernels.ahead import compile_kernel
    from toktier_kernels.specs import AheadSpec

    @triton.jit
    def copies(source, target, size, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(target + at, tl.load(source + at, mask=at < size, other=0), mask=at < size)

    @triton.jit
    def sums(source, target, size, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(target + at, tl.cumsum(tl.load(source + at, mask=at < size, other=0), 0))

    @triton.jit
    def fails(source, target, size, BLOCK: tl.constexpr):
        tl.store(target + tl.arange(0, 3), size)

    types = {"source": "*i32", "target": "*i32", "size": "i32"}
    specs = [
        AheadSpec(copies, types, {"BLOCK": 256}, 4, name="light"),
        AheadSpec(copies, types, {"BLOCK": 8192}, 1, name="crowded"),
        AheadSpec(copies, types, {"BLOCK": 8192}, 1, name="crowded_cold", hot=False),
        AheadSpec(sums, types, {"BLOCK": 1024}, 4, name="shares"),
        AheadSpec(fails, types, {"BLOCK": 1}, 1, name="fails"),
    ]
    rows = [compile_kernel(spec, target) for spec in specs for target in (80, 100)]
    print(json.dumps([{**asdict(row), "red": row.red} for row in rows]))
"""


def test_a_row_tells_registers_spills_and_shared_memory(tmp_path: Path) -> None:
    rows = {(row["kernel"], row["target"]): row for row in compiled(KNOWN, tmp_path)}
    for target in ("sm_80", "sm_100"):
        light, crowded, cold, shares, fails = (
            rows[name, target] for name in ("light", "crowded", "crowded_cold", "shares", "fails")
        )
        assert light["compiled"]
        assert light["threads"] == 128
        assert 8 <= light["registers"] < 64
        assert light["spills"] == light["local_bytes"] == light["shared_bytes"] == 0
        assert not light["red"]
        assert crowded["spills"] > 0
        assert crowded["local_bytes"] > 0
        assert crowded["red"]
        assert cold["spills"] == crowded["spills"]
        assert not cold["red"]
        assert shares["shared_bytes"] >= 16
        assert not fails["compiled"]
        assert fails["red"]
        assert "power of 2" in fails["error"]


@pytest.mark.timeout(900)
def test_every_kernel_compiles_for_a_hopper_and_no_hot_one_spills() -> None:
    """By the command that the report runs; its machine code is in Triton's cache from the second time on."""
    done = run("-m", "toktier_kernels.ahead", "--targets", "90")
    rows = json.loads(done.stdout)
    assert [row for row in rows if row["red"]] == []
    assert done.returncode == 0, done.stderr
    assert {row["target"] for row in rows} == {"sm_90"}
    assert {row["kernel"] for row in rows} == set(ahead.kernels())


def test_every_kernel_of_the_package_is_listed() -> None:
    """Every `@triton.jit` function that a launcher starts with a grid is in `AHEAD`."""
    launched: set[str] = set()
    for path in (ROOT / "kernels" / "toktier_kernels").glob("*.py"):
        source = path.read_text(encoding="utf-8")
        launched.update(name for name in jitted(source) if f"{name}[" in source)
    listed = {spec.fn.__name__ for spec in ahead.kernels().values()}
    assert launched
    assert launched <= listed


def jitted(source: str) -> list[str]:
    lines = source.splitlines()
    return [
        lines[at + 1].removeprefix("def ").partition("(")[0] for at, line in enumerate(lines) if line == "@triton.jit"
    ]


def test_nothing_is_compiled_where_kernels_are_interpreted() -> None:
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET"):
        ahead.compile_all()
