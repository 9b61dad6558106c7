"""What the StatefulSet controller of Kubernetes does with partitions and revisions, one step at a time."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime


@dataclass
class Pod:
    made_of: Hashable
    since: datetime
    ready: bool = False


@dataclass
class FakeSet:
    """spec and status of a StatefulSet with parallel pod management, and its pods."""

    replicas: int
    template: Hashable
    partition: int
    generation: int = 1
    observed: int = 0
    current: Hashable | None = None
    update: Hashable | None = None
    counts: tuple[int, int, int] = (0, 0, 0)
    pods: dict[int, Pod] = field(default_factory=dict)

    def apply(self, template: Hashable, replicas: int, partition: int) -> None:
        if (template, replicas, partition) != (self.template, self.replicas, self.partition):
            self.template, self.replicas, self.partition = template, replicas, partition
            self.generation += 1

    def step(self, now: datetime) -> None:
        self.observed, self.update = self.generation, self.template
        if self.current is None:
            self.current = self.update
        self._pods(now)
        ready = sum(pod.ready for pod in self.pods.values())
        updated = sum(pod.made_of == self.update for pod in self.pods.values())
        self.counts = (len(self.pods), updated, ready)
        if self.counts == (self.replicas,) * 3:
            self.current = self.update

    def _pods(self, now: datetime) -> None:
        assert self.current is not None
        assert self.update is not None
        for ordinal in [each for each in self.pods if each >= self.replicas]:
            del self.pods[ordinal]
        missing = [ordinal for ordinal in range(self.replicas) if ordinal not in self.pods]
        for ordinal in missing:
            self.pods[ordinal] = Pod(self.current if ordinal < self.partition else self.update, now)
        if missing:
            return
        for ordinal in range(self.replicas - 1, self.partition - 1, -1):
            if self.pods[ordinal].made_of != self.update:
                del self.pods[ordinal]
                return
            if not self.pods[ordinal].ready:
                return
