"""The table of sessions against a plain list: least recently used out first, by bytes, and by age."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.ports import Clock
from toktier_tier.sessions.table import SessionKey, SessionTable
from workshop import examples

TTL_S = 10.0


def key(name: str) -> SessionKey:
    """`b/x` is x of tenant b."""
    tenant, _, session = name.rpartition("/")
    return SessionKey(tenant or "tenant", "fingerprint", session)


def table_of(
    budget_bytes: int,
    clock: Clock = lambda: 0.0,
    removed: list[int] | None = None,
    tenant_budget_bytes: int | None = None,
) -> SessionTable[int]:
    tell = [].append if removed is None else removed.append
    return SessionTable(
        budget_bytes=budget_bytes,
        ttl_s=TTL_S,
        clock=clock,
        on_removal=tell,
        tenant_budget_bytes=tenant_budget_bytes,
    )


class PlainTable:
    """The slow twin: (key, value, size, last use), the least recently used first."""

    def __init__(self, budget_bytes: int, tenant_budget_bytes: int) -> None:
        self.budget_bytes, self.tenant_budget_bytes = budget_bytes, tenant_budget_bytes
        self.entries = list[tuple[SessionKey, int, int, float]]()
        self.evicted = {"bytes": 0, "tenant_bytes": 0, "ttl": 0}

    def expire(self, now_s: float) -> None:
        kept = [entry for entry in self.entries if entry[3] > now_s - TTL_S]
        self.evicted["ttl"] += len(self.entries) - len(kept)
        self.entries = kept

    def pop(self, name: SessionKey) -> int | None:
        found = [entry for entry in self.entries if entry[0] == name]
        self.entries = [entry for entry in self.entries if entry[0] != name]
        return found[0][1] if found else None

    def get(self, name: SessionKey, now_s: float) -> int | None:
        self.expire(now_s)
        for entry in self.entries:
            if entry[0] == name:
                self.pop(name)
                self.entries.append((*entry[:3], now_s))
                return entry[1]
        return None

    def put(self, name: SessionKey, value: int, size: int, now_s: float) -> None:
        self.pop(name)
        self.expire(now_s)
        self.entries.append((name, value, size, now_s))
        self.resize(name, size)

    def of(self, tenant: str) -> list[tuple[SessionKey, int, int, float]]:
        return [entry for entry in self.entries if entry[0].tenant == tenant]

    def held(self, tenant: str) -> int:
        return sum(entry[2] for entry in self.of(tenant))

    def resize(self, name: SessionKey, size: int) -> None:
        self.entries = [(*entry[:2], size, entry[3]) if entry[0] == name else entry for entry in self.entries]
        while self.held(name.tenant) > self.tenant_budget_bytes and len(self.of(name.tenant)) > 1:
            self.entries.remove(self.of(name.tenant)[0])
            self.evicted["tenant_bytes"] += 1
        while sum(entry[2] for entry in self.entries) > self.budget_bytes and len(self.entries) > 1:
            tenants = {entry[0].tenant for entry in self.entries}
            largest = min(tenants, key=lambda tenant: (-self.held(tenant), tenant))
            self.entries.remove(self.of(largest)[0])
            self.evicted["bytes"] += 1


call = st.tuples(
    st.sampled_from(["get", "put", "put", "resize", "pop", "wait"]),
    st.sampled_from(["s/a", "s/b", "s/c", "t/a", "t/b", "u/a", "v/a"]),
    st.integers(0, 60),
    st.floats(0, 12),
)


@settings(max_examples=examples(300))
@given(st.lists(call, max_size=60), st.sampled_from([100, 70, 10]))
def test_every_history_equals_that_of_a_plain_list(
    calls: list[tuple[str, str, int, float]], tenant_budget: int
) -> None:
    now_s, removed = [100.0], list[int]()
    table, plain = table_of(100, lambda: now_s[0], removed, tenant_budget), PlainTable(100, tenant_budget)
    put: list[int] = []
    for number, (what, name, size, seconds) in enumerate(calls):
        if what == "wait":
            now_s[0] += seconds
            continue
        assert table.get(key("nobody")) is None  # any look drops what is over
        plain.expire(now_s[0])
        if what == "get":
            assert table.get(key(name)) == plain.get(key(name), now_s[0])
        elif what == "put":
            table.put(key(name), number, size)
            plain.put(key(name), number, size, now_s[0])
            put.append(number)
        elif what == "pop":
            assert table.pop(key(name)) == plain.pop(key(name))
        elif key(name) in list(table):
            table.resize(key(name), size)
            plain.resize(key(name), size)
        assert table.evicted == plain.evicted
        assert list(table) == [entry[0] for entry in plain.entries]
        assert table.bytes_ == sum(entry[2] for entry in plain.entries)
        assert len(table) == len(plain.entries)
        assert [table.share_bytes(tenant) for tenant in "stuv"] == [plain.held(tenant) for tenant in "stuv"]
        assert sorted([*removed, *(entry[1] for entry in plain.entries)]) == put  # each is told of once


def test_an_entry_larger_than_the_budget_is_kept_alone() -> None:
    table = table_of(10)
    table.put(key("small"), 1, 5)
    table.put(key("large"), 2, 50)
    assert list(table) == [key("large")]
    assert table.get(key("large")) == 2
    table.put(key("other"), 3, 1)
    assert list(table) == [key("other")]
    assert table.bytes_ == 1


def test_an_entry_whose_time_is_over_is_never_returned() -> None:
    # Found here: `pop` returned it; `close` then said that there was a session which no other call would have found.
    now_s = [0.0]
    table = table_of(10, lambda: now_s[0])
    table.put(key("a"), 1, 5)
    now_s[0] = TTL_S
    assert table.pop(key("a")) is None


def test_the_same_name_of_another_tenant_or_tokenizer_is_another_entry() -> None:
    table = table_of(100)
    keys = [SessionKey("t", "f", "s"), SessionKey("u", "f", "s"), SessionKey("t", "g", "s")]
    for number, name in enumerate(keys):
        table.put(name, number, 1)
    assert [table.get(name) for name in keys] == [0, 1, 2]
    assert table.pop(keys[0]) == 0
    assert [table.get(name) for name in keys] == [None, 1, 2]


def test_a_tenant_cannot_push_out_one_that_holds_less() -> None:
    table = table_of(100)
    for number in range(4):
        table.put(key(f"small/{number}"), number, 10)
    for number in range(1_000):
        table.put(key(f"large/{number}"), number, 10)
    assert table.share_bytes("small") == 40
    assert table.share_bytes("large") == 60
    assert table.evicted == {"bytes": 994, "tenant_bytes": 0, "ttl": 0}
    table.put(key("large/giant"), 0, 90)  # its own go, then itself: nobody else's
    assert table.share_bytes("large") == 0
    assert table.share_bytes("small") == 40


def test_the_largest_of_many_shares_is_found_whatever_they_were_before() -> None:
    # Shares that grew in small steps and shrank again: the heap's bounds are loose in both directions.
    table = table_of(10_000)
    for step in range(1, 30):
        for tenant in range(60):
            table.put(key(f"t{tenant:02}/a"), 0, step * (tenant % 7 + 1))
    for tenant in range(60):
        table.resize(key(f"t{tenant:02}/a"), 10 + tenant)
    assert table.evicted["bytes"] == 0
    for number in range(400):
        table.put(key(f"n{number}/a"), 0, 25)
    left = {name.tenant for name in table}
    gone = [tenant for tenant in range(60) if f"t{tenant:02}" not in left]
    assert gone == list(range(16, 60))  # those that held more than the new ones' 25


def test_a_history_of_many_tenants_costs_little_of_each() -> None:
    heap_pushes = 0
    table = table_of(1 << 40)
    push = table._largest.grown

    def counted(*arguments: Any) -> None:
        nonlocal heap_pushes
        heap_pushes += 1
        push(*arguments)

    table._largest.grown = counted  # type: ignore[method-assign]
    for step in range(1, 2_000):
        for tenant in range(3):
            table.put(key(f"t{tenant}/a"), 0, 1_000 * step) if step == 1 else table.resize(
                key(f"t{tenant}/a"), 1_000 * step
            )
    assert heap_pushes < 3 * 70  # one per growth by an eighth: log(2000) / log(9/8) = 65
