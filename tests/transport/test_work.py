"""Where long calls run: side by side only where that is faster, and behind the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from toktier_tier.transport.work import INLINE_CHARS, NICENESS, Work
from workshop import family_tier, fresh_tokenizer

FAMILY = "gpt2-novelai"


def served(*, keeps_lock: bool) -> Any:
    return SimpleNamespace(tokenizer=SimpleNamespace(keeps_lock=keeps_lock, repairer=object()))


@pytest.mark.parametrize("keeps_lock", [True, False])
def test_calls_that_keep_the_interpreters_lock_run_one_after_the_other(keeps_lock: bool) -> None:
    work, running, most = Work(threads=4), [0], [0]
    lock, together = threading.Lock(), threading.Event()

    def call(wait: bool) -> None:
        assert wait
        with lock:
            running[0] += 1
            most[0] = max(most)
            most.append(running[0])
            if running[0] == 4:
                together.set()
        together.wait(0.05 if keeps_lock else 10)
        with lock:
            running[0] -= 1

    async def talk() -> None:
        await asyncio.gather(*(work.run(served(keeps_lock=keeps_lock), INLINE_CHARS + 1, call) for _ in range(4)))

    asyncio.run(talk())
    work.close()
    assert max(most) == (1 if keeps_lock else 4)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a priority is a process's")
@pytest.mark.parametrize("keeps_lock", [True, False])
def test_long_calls_run_behind_the_event_loop(keeps_lock: bool) -> None:
    work = Work()

    def priority(_: bool = True) -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = priority()
    assert asyncio.run(work.run(served(keeps_lock=keeps_lock), INLINE_CHARS + 1, priority)) == max(before, NICENESS)
    assert asyncio.run(work.run(served(keeps_lock=keeps_lock), 1, priority)) == before == priority()
    work.close()


def test_candidates_keep_the_lock_and_the_reference_does_not() -> None:
    fast = fresh_tokenizer(family_tier(FAMILY, "gigatoken"))
    assert fast.keeps_lock
    fast.quarantine()
    assert not fast.keeps_lock
    assert not fresh_tokenizer(family_tier(FAMILY)).keeps_lock
