"""Further releases of Hugging Face's `tokenizers` in this process, beside the one that is the reference.

All releases have the same import name, so none of them is imported: the shared object of one is loaded from a folder of
its own under a name of its own. It brings its own statics, types and threads, and shares nothing with the reference.

A release is there if `.ci/releases` put it into `share/toktier/tokenizers/VERSION` under Python's prefix, or into
the folder that `TOKTIER_TOKENIZERS` names. What is loaded is the pinned release or nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import metadata
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..ports import Ids

FOLDER_VARIABLE = "TOKTIER_TOKENIZERS"
PINNED = Path(__file__).parent / "releases"
"""A requirements file with digests for each release, called by its version."""


def releases_folder() -> Path:
    """Where the releases are, each in a folder called by its version."""
    return Path(os.environ.get(FOLDER_VARIABLE) or Path(sys.prefix) / "share" / "toktier" / "tokenizers")


def pinned_releases() -> tuple[str, ...]:
    """The versions that `.ci/releases` installs."""
    return tuple(sorted(path.stem for path in PINNED.glob("*.txt")))


def installed_version(version: str) -> str:
    """`version` if that release is there, else ''."""
    folder = releases_folder() / version
    found = {each.version for each in metadata.distributions(name="tokenizers", path=[str(folder)])}
    return version if found == {version} and version in pinned_releases() else ""


def load_release(version: str) -> ModuleType:
    """The compiled module of a release; raises `ImportError` if it isn't there or isn't that release."""
    return _load(version, releases_folder())


@lru_cache(maxsize=8)
def _load(version: str, folder: Path) -> ModuleType:
    if not installed_version(version):
        raise ImportError(f"tokenizers {version} isn't in {folder}: run .ci/releases")
    objects = sorted((folder / version / "tokenizers").glob("tokenizers.*.so"))
    if len(objects) != 1:
        raise ImportError(f"{folder / version} holds {len(objects)} shared objects, not one: run .ci/releases again")
    name = f"tokenizers_{''.join(c if c.isalnum() else '_' for c in version)}.tokenizers"
    loader = ExtensionFileLoader(name, str(objects[0]))
    spec = spec_from_file_location(name, objects[0], loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    told = str(module.__version__).replace("-", "").replace("rc.", "rc")
    if told != version:
        raise ImportError(f"the shared object in {folder / version} is of tokenizers {told}")
    return module


def release_encode(version: str, document: Mapping[str, Any] | str) -> Callable[[str], Ids]:
    """`encode` of a tokenizer.json by a release, without the template's tokens; what the release raises is raised.

    Raises `ImportError` if the release isn't there.
    """
    tokenizer_class = load_release(version).Tokenizer
    text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    if hasattr(tokenizer_class, "from_str"):
        tokenizer = tokenizer_class.from_str(text)
        return lambda text: np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint32)
    encode = _from_memory(tokenizer_class, text).encode
    return lambda text: encode(text, add_special_tokens=False, padding=None, truncation=None).ids_array


def _from_memory(tokenizer_class: Any, text: str) -> Any:
    """1.0 reads files only, so the text becomes one that lies in memory."""
    descriptor = os.memfd_create("tokenizer.json")
    with os.fdopen(descriptor, "wb") as file:
        file.write(text.encode())
        file.flush()
        return tokenizer_class.from_file(f"/proc/self/fd/{descriptor}")
