"""The tokenizers of one tier by name, model and fingerprint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..core.errors import InvalidRequest, SnapshotNotFound
from ..tokenizer import TierTokenizer
from .service import SessionService


@dataclass(frozen=True, slots=True)
class Served:
    """One tokenizer in service.

    name       what the configuration calls it
    models     the model names that requests know it by
    admission  the id of the admission that it is from, or empty
    """

    name: str
    models: tuple[str, ...]
    tokenizer: TierTokenizer
    sessions: SessionService
    admission: str = ""


class Registry:
    """Immutable; raises `InvalidRequest` (`registry.duplicate`) if two tokenizers claim one name or model."""

    def __init__(self, served: Sequence[Served]) -> None:
        self._served = tuple(served)
        self._by_name: dict[str, Served] = {}
        for each in served:
            for key in dict.fromkeys((each.name, each.tokenizer.fingerprint, *each.models)):
                other = self._by_name.get(key)
                if other is not None and key == each.tokenizer.fingerprint and other.tokenizer is each.tokenizer:
                    continue  # one snapshot under several names: its fingerprint means the first
                if other is not None:
                    raise InvalidRequest("registry.duplicate", f"two tokenizers are called {key!r}")
                self._by_name[key] = each

    def find(self, name: str = "") -> Served:
        """By model name, tokenizer name or fingerprint; without a name, the only one there is.

        Raises `SnapshotNotFound` (`snapshot.not_found`, `snapshot.name_required`).
        """
        found = self._by_name.get(name)
        if found is not None:
            return found
        if name:
            raise SnapshotNotFound("snapshot.not_found", f"no tokenizer serves {name[:200]!r}")
        if len(self._served) != 1:
            raise SnapshotNotFound("snapshot.name_required", "several tokenizers are served: name one")
        return self._served[0]

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served)

    def __len__(self) -> int:
        return len(self._served)
