"""`status.rollout` of a TokTier: all that is needed to make the pods' template of before once more.

Guarantee: what `to_status` writes, `from_status` reads back equal. Something else than that (another version's, or made
by hand) is None: as if nothing had been rolled out yet.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from .structure import SpecError, read, write


class Stage(enum.StrEnum):
    STEADY = "Steady"
    CANARY = "Canary"
    ROLLING = "Rolling"
    REVERTING = "Reverting"


@dataclass(frozen=True, slots=True)
class Served:
    """One tokenizer of a template: how requests call it, and which admission it is served by.

    id            the admission's, `A-n`; sha256 and fingerprint: of its snapshot
    bundle        SHA-256 of the bundle; config_maps: of its chunks, in order
    accelerated   whether its fast paths may serve, or the reference alone
    template      whether a chat template lies beside the tokenizer.json; render: whether chats are rendered by it
    """

    name: str
    admission: str
    id: str
    bundle: str
    config_maps: tuple[str, ...]
    sha256: str = ""
    fingerprint: str = ""
    policy: str = ""
    accelerated: bool = True
    template: bool = False
    render: bool = True
    models: tuple[str, ...] = ()
    reasoning_parser: str = ""
    tool_call_parser: str = ""
    untrusted_roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Composition:
    """What a pod template is made of beside the spec."""

    image: str
    tokenizers: tuple[Served, ...]

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(each.id for each in self.tokenizers)

    def changes_ids_of(self, other: Composition) -> bool:
        """Whether an admission that both have is served by another id here."""
        theirs = {each.admission: each.id for each in other.tokenizers}
        return any(theirs.get(each.admission, each.id) != each.id for each in self.tokenizers)


@dataclass(frozen=True, slots=True)
class Rollout:
    stage: Stage
    stable: Composition
    target: Composition

    @property
    def ids(self) -> frozenset[str]:
        """That pods may have now."""
        return self.stable.ids | self.target.ids

    @property
    def config_maps(self) -> frozenset[str]:
        """Of bundles that pods may need, now or after a step back: not to be deleted."""
        both = self.stable.tokenizers + self.target.tokenizers
        return frozenset(name for each in both for name in each.config_maps)

    def to_status(self) -> dict[str, Any]:
        """`target` is left out where it is `stable`."""
        status = {"stage": self.stage.value, "stable": write(self.stable)}
        if self.target != self.stable:
            status["target"] = write(self.target)
        return status

    @classmethod
    def from_status(cls, status: object) -> Rollout | None:
        if not isinstance(status, dict):
            return None
        try:
            stable = read(Composition, status.get("stable"), "status.rollout.stable")
            written = status.get("target")
            target = stable if written is None else read(Composition, written, "status.rollout.target")
            return cls(Stage(status.get("stage", "")), stable, target)
        except (SpecError, ValueError):
            return None
