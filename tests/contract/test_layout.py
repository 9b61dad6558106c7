"""The layout on which packaging, typing and the tests depend (docs: one wheel, its packages, no test packages)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "tier" / "toktier_tier" / "core"


@pytest.mark.parametrize("folder", ["operator", "tier", "kernels", "benchmarks", "tests"])
def test_the_folders_that_stand_on_the_path_are_no_packages(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_folder_of_tests_is_a_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
    assert not (ROOT / "tests" / "operator").exists()  # would shadow the standard library's


@pytest.mark.parametrize(
    "package", ["tier/toktier_tier", "tier/toktier_sglang", "operator/toktier_operator", "kernels/toktier_kernels"]
)
def test_the_wheels_packages_are_there(package: str) -> None:
    assert (ROOT / package / "__init__.py").is_file()
    assert f'"{package}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(CORE.glob("*.py")), ids=lambda path: path.stem)
def test_a_module_of_the_core_opens_with_what_it_guarantees(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    if source.strip():
        assert ast.get_docstring(ast.parse(source))


FORBIDDEN_IN_CORE = {
    "asyncio",
    "logging",
    "os",
    "pathlib",
    "random",
    "socket",
    "subprocess",
    "threading",
    "time",
    "tokenizers",
}


@pytest.mark.parametrize("path", sorted(CORE.glob("*.py")), ids=lambda path: path.stem)
def test_the_core_knows_no_clock_thread_file_or_reference(path: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level < 2, "the core imports from itself only"
            imported.add((node.module or "").partition(".")[0] if node.level == 0 else "")
    assert not imported & FORBIDDEN_IN_CORE


def test_the_command_line_imports_no_accelerator_library() -> None:
    program = "import sys, toktier_tier.cli; print(*sorted({'torch', 'triton', 'sglang', 'gguf'} & set(sys.modules)))"
    path = ":".join(str(ROOT / folder) for folder in ("tier", "operator", "kernels", "benchmarks"))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
