"""What texts of one kind exercise, and whether that is all there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Texts for one kind of element.

    elements      how many the file has; `exercised` and `unreachable` add up to it if the group is complete
    unreachable   elements that no text can contain: spellings that are no part of any UTF-8 text
    apart         each text is to be encoded by itself: its end matters; otherwise texts may be joined by line feeds
    """

    name: str
    texts: Sequence[str]
    elements: int
    exercised: int
    unreachable: int = 0
    apart: bool = False

    @property
    def complete(self) -> bool:
        return self.exercised + self.unreachable == self.elements
