"""The tokenizers of one tier by name, model and fingerprint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..core.errors import InvalidRequest, SnapshotNotFound, TierError
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
    """Immutable; raises `InvalidRequest` (`registry.duplicate`) if two tokenizers claim one name or model.

    refused  why tokenizers that should be served aren't, by their names and models
    """

    def __init__(self, served: Sequence[Served], refused: Mapping[str, TierError] | None = None) -> None:
        self._served = tuple(served)
        self._refused = dict(refused or {})
        self._by_name: dict[str, Served] = {}
        for each in served:
            for key in dict.fromkeys((each.name, each.tokenizer.fingerprint, *each.models)):
                other = self._by_name.get(key)
                if other is not None and key == each.tokenizer.fingerprint and other.tokenizer is each.tokenizer:
                    continue  # one snapshot under several names: its fingerprint means the first
                if other is not None:
                    raise InvalidRequest("registry.duplicate", f"two tokenizers are called {key!r}")
                self._by_name[key] = each
        for name in self._refused.keys() & self._by_name.keys():
            raise InvalidRequest("registry.duplicate", f"two tokenizers are called {name!r}")

    def find(self, name: str = "") -> Served:
        """By model name, tokenizer name or fingerprint; without a name, the only one there is.

        Raises `SnapshotNotFound` (`snapshot.not_found`, `snapshot.refused`, `snapshot.name_required`).
        """
        found = self._by_name.get(name)
        if found is not None:
            return found
        if (why := self._refused.get(name)) is not None:
            raise SnapshotNotFound("snapshot.refused", f"the tokenizer of {name[:200]!r} isn't served: {why}"[:600])
        if name:
            raise SnapshotNotFound("snapshot.not_found", f"no tokenizer serves {name[:200]!r}")
        if len(self._served) != 1 or self._refused:
            raise SnapshotNotFound("snapshot.name_required", "several tokenizers are served: name one")
        return self._served[0]

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served)

    def __len__(self) -> int:
        return len(self._served)
