"""How much the tier works on at once: requests of all and of each tenant, and the bytes of each tenant's requests.

Guarantee: what is entered is within all bounds, and is left by whoever entered it; beyond them a request is refused at
once (`Overloaded`), and nothing waits here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..core.errors import Overloaded

MAX_IDLE_TENANTS = 4_096


@dataclass(frozen=True, slots=True)
class Bounds:
    """requests at once, of all and of one tenant; bytes of one tenant's requests at once."""

    requests: int = 8_192
    tenant_requests: int = 4_096
    tenant_bytes: int = 1 << 30


class Load:
    """What one tenant has under way."""

    __slots__ = ("bytes_", "requests")

    def __init__(self) -> None:
        self.requests = self.bytes_ = 0


class Limits:
    """Belongs to one event loop. `refused` counts by code."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        bounds = bounds or Bounds()
        self._requests, self._tenant_requests = bounds.requests, bounds.tenant_requests
        self._tenant_bytes = bounds.tenant_bytes
        self._loads: dict[str, Load] = {}
        self.requests = 0
        self.refused: Counter[str] = Counter()

    def enter(self, tenant: str, size_bytes: int) -> Load:
        """A request of that size begins. Raises `Overloaded` (`limits.*`); what it returns is for `leave`."""
        load = self._loads.get(tenant)
        if load is None:
            load = self._fresh(tenant)
        requests, bytes_ = load.requests, load.bytes_ + size_bytes
        if self.requests >= self._requests:
            raise self._refusal("limits.requests", self._requests)
        if requests >= self._tenant_requests:
            raise self._refusal("limits.tenant_requests", self._tenant_requests)
        if bytes_ > self._tenant_bytes:
            raise self._refusal("limits.tenant_bytes", self._tenant_bytes)
        self.requests += 1
        load.requests, load.bytes_ = requests + 1, bytes_
        return load

    def grow(self, load: Load, size_bytes: int) -> None:
        """More of a request has come. Raises `Overloaded` (`limits.tenant_bytes`) and then adds nothing."""
        if load.bytes_ + size_bytes > self._tenant_bytes:
            raise self._refusal("limits.tenant_bytes", self._tenant_bytes)
        load.bytes_ += size_bytes

    def leave(self, load: Load, size_bytes: int) -> None:
        """The end of a request of that size, as entered and grown."""
        self.requests -= 1
        load.requests -= 1
        load.bytes_ -= size_bytes

    def _fresh(self, tenant: str) -> Load:
        if len(self._loads) >= MAX_IDLE_TENANTS:
            self._loads = {name: load for name, load in self._loads.items() if load.requests}
        load = self._loads[tenant] = Load()
        return load

    def _refusal(self, code: str, limit: int) -> Overloaded:
        self.refused[code] += 1
        return Overloaded(code, "more is under way than may be: try again later", limit=limit)
