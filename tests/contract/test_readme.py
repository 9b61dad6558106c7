"""The README's code runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_readmes_lines_run_and_end_in_a_repair(capsys: object) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    namespace: dict[str, object] = {}
    exec(compile(code, str(README), "exec"), namespace)
    assert namespace["patch"].route.value == "repair"  # type: ignore[attr-defined]


def test_every_make_target_the_readme_names_exists() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for target in set(re.findall(r"`make (\w+)`", README.read_text())):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target


def test_every_linked_file_exists_or_is_written_by_a_command() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README.read_text()):
        assert (README.parent / link).exists(), link
