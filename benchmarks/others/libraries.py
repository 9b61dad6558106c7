"""The libraries behind the encoder protocol, each by its own call for plain text, without the template's tokens.

They are installed under `~/.cache/toktier`, pinned by version and digest, and imported from there; `.venv` never sees
them. On CPython 3.11 for Linux: tokie and iree-tokenizer have wheels for one Python each.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pinned import CACHE, digest
from toktier_tier.ports import Encoder, Ids

PINNED = Path(__file__).parent / "requirements.txt"
KITOKEN, MORPHEME, TOKIE, IREE = "kitoken", "morpheme", "tokie", "iree-tokenizer"
VERSIONS = dict(line.split()[0].split("==") for line in PINNED.read_text().splitlines() if "==" in line)


def install() -> Path:
    """The folder that holds them, installed on the first call."""
    folder = CACHE / f"others-{digest(PINNED)[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (CACHE / "others.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            pip: list[str | Path] = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
            ]
            options: list[str | Path] = ["--only-binary=:all:", "--require-hashes", "--upgrade", "--target", folder]
            subprocess.run([*pip, *options, "--requirement", PINNED], check=True)
            (folder / "installed").touch()
    return folder


class _Library:
    name = ""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.version = f"{self.name}=={VERSIONS[self.name]}"
        folder = str(install())
        if folder not in sys.path:
            sys.path.append(folder)
        self.encode: Callable[[str], Ids] = self.load(json.dumps(document, ensure_ascii=False))

    def load(self, text: str) -> Callable[[str], Ids]:
        raise NotImplementedError


class Kitoken(_Library):
    name = KITOKEN

    def load(self, text: str) -> Callable[[str], Ids]:
        import kitoken

        encode = kitoken.Kitoken.from_tokenizers(text.encode()).encode
        return lambda text: np.array(encode(text, True), dtype=np.uint32)


class Morpheme(_Library):
    name = MORPHEME

    def load(self, text: str) -> Callable[[str], Ids]:
        import morpheme

        encode = morpheme.Tokenizer.from_str(text).encode
        return lambda text: np.array(encode(text, add_special_tokens=False).ids, dtype=np.uint32)


class Tokie(_Library):
    name = TOKIE

    def load(self, text: str) -> Callable[[str], Ids]:
        import tokie

        descriptor = os.memfd_create("tokenizer.json")
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            encode = tokie.Tokenizer.from_json(f"/proc/self/fd/{descriptor}").encode
        return lambda text: np.array(encode(text, add_special_tokens=False).ids, dtype=np.uint32)


class Iree(_Library):
    name = IREE

    def load(self, text: str) -> Callable[[str], Ids]:
        from iree.tokenizer import Tokenizer

        encode = Tokenizer.from_str(text).encode_to_array
        return lambda text: np.asarray(encode(text, add_special_tokens=False)).astype(np.uint32)


LIBRARIES: Mapping[str, Callable[[Mapping[str, Any]], Encoder]] = {
    each.name: each for each in (Kitoken, Morpheme, Tokie, Iree)
}
