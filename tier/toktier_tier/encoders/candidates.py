"""Candidate encoders: faster libraries behind the encoder protocol. Each serves only where admission found it exact.

What they get is the core tokenizer of a snapshot (see `reference.core_document`), so what they'd do with added
tokens, normalizers or templates never matters.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import numpy as np

from ..core.errors import EncoderUnavailable
from ..ports import Encoder, Ids
from . import tokenizers_one
from .documents import candidate_document
from .tokenizers_one import TokenizersOne

GPU_NAME = "toktier-kernels"
"""The candidate that needs a device. It encodes long texts around another one: see `gpu` and `admission.gpu`."""
_FIRST_ENCODE = threading.Lock()


class Gigatoken:
    """The `gigatoken` library. Its cache of pieces grows without bound: see `guarded`."""

    name = "gigatoken"

    def __init__(self, document: Mapping[str, Any]) -> None:
        import gigatoken

        self.version = f"gigatoken=={metadata.version('gigatoken')}"
        self.encode: Callable[[str], Ids] = gigatoken.Tokenizer.from_json(
            json.dumps(document, ensure_ascii=False)
        ).backend.encode
        with _FIRST_ENCODE:
            self.encode("first")  # 0.10.0 refuses concurrent calls ("Already borrowed") until one has returned


class Fastokens:
    """The `fastokens` library, by its flat call: IDs come as one buffer of little-endian uint32."""

    name = "fastokens"

    def __init__(self, document: Mapping[str, Any]) -> None:
        import fastokens

        self.version = f"fastokens=={metadata.version('fastokens')}"
        self._encode = fastokens.Tokenizer.from_json_str(json.dumps(document, ensure_ascii=False)).encode_batch_flat

    def encode(self, text: str) -> Ids:
        return np.frombuffer(self._encode([text])[0], dtype=np.uint32)


CANDIDATES: Mapping[str, Callable[[Mapping[str, Any]], Encoder]] = {
    "gigatoken": Gigatoken,
    "fastokens": Fastokens,
    tokenizers_one.NAME: TokenizersOne,
}
"""In order of preference where several are exact."""
WHERE_NO_OTHER = (tokenizers_one.NAME,)
"""Candidates that a campaign tries only where none of the others is exact: its time is spent where it can be won."""


SPARSE_FACTOR, SPARSE_SPARE = 4, 65_536
"""Candidates have tables up to the largest ID, which may be so many times the number of entries, and so many more."""


def build_candidate(name: str, document: Mapping[str, Any]) -> Encoder:
    """Raises `EncoderUnavailable` if the library isn't installed, refuses the tokenizer, or would take memory for IDs
    that aren't there (`encoder.sparse_ids`: an ID of 2**32 - 2 makes gigatoken end the process), and what
    `candidate_document` raises."""
    check_dense(document)
    document = candidate_document(document)
    try:
        return CANDIDATES[name](document)
    except KeyError:
        raise EncoderUnavailable("encoder.unknown", f"no encoder is called {name!r}") from None
    except EncoderUnavailable:
        raise
    except ImportError as error:
        raise EncoderUnavailable("encoder.not_installed", f"{name} isn't installed: {error}") from error
    except BaseException as error:  # Rust panics aren't Exceptions
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise EncoderUnavailable("encoder.refuses", f"{name} refuses the tokenizer: {error}"[:400]) from None


def check_dense(document: Mapping[str, Any]) -> None:
    """Raises `EncoderUnavailable` (`encoder.sparse_ids`) if the largest ID is far above the number of entries."""
    vocab, added = document["model"]["vocab"], document["added_tokens"]
    ids = [token["id"] for token in added] + (list(vocab.values()) if isinstance(vocab, Mapping) else [])
    entries = len(vocab) + len(added)
    if max(ids, default=0) > SPARSE_FACTOR * entries + SPARSE_SPARE:
        why = f"the largest ID is {max(ids)}, with {entries} entries: no candidate gets tables of that size"
        raise EncoderUnavailable("encoder.sparse_ids", why)


def encoder_version(name: str) -> str:
    if name == tokenizers_one.NAME:
        return f"{name}=={found}" if (found := tokenizers_one.installed()) else f"{name} (not installed)"
    try:
        return f"{name}=={metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return f"{name} (not installed)"
