"""Against a real tier: the own tokenizer's IDs or none, deltas on the wire, every doubt counted, no lie for long."""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plugin_workshop import FAMILY, Between, Loaded, between, bridge, lie, until, with_bos

from catalog import path_of
from certificates import Authority
from servers import GrpcTier, grpc_tier, whole_tier
from toktier_sglang.bridge import BREAKER, WAITING, Bridge
from toktier_sglang.link import Link
from toktier_sglang.own import Call
from toktier_sglang.probes import comparison
from toktier_sglang.reasons import Off, Own
from toktier_sglang.settings import TlsFiles
from toktier_tier.sessions.registry import Registry, Served
from toktier_tier.sessions.service import SessionService
from toktier_tier.settings import SecuritySettings, TlsSettings
from toktier_tier.transport.messages import bytes_of
from toktier_tier.transport.v1 import toktier_pb2 as pb
from workshop import build_tier, family_data, sample_text

DATA = family_data(FAMILY)


@pytest.fixture(scope="module")
def tier() -> Iterator[GrpcTier]:
    with grpc_tier(FAMILY) as found:
        yield found


@pytest.fixture
def proxy(tier: GrpcTier) -> Iterator[Between]:
    with between(tier) as found:
        yield found


def own(found: Bridge, reason: Own, path: str = "chat") -> int:
    return found.counts.requests[path, "own", reason.value]


def by_tier(found: Bridge) -> dict[str, int]:
    totals: dict[str, int] = {}
    for (_, answer, _), count in found.counts.requests.items():
        if answer != "own":
            totals[answer] = totals.get(answer, 0) + count
    return totals


# --- the same IDs ------------------------------------------------------------------------------------------------


def test_a_conversation_gets_the_own_tokenizers_ids_and_only_changes_travel(tmp_path: Path, proxy: Between) -> None:
    chooser = random.Random(1)
    with bridge(tmp_path, proxy.address) as found:
        proxy.seen.clear()
        text = sample_text(20_000)
        for turn in range(60):
            assert found.ids(Call.CHAT_PLAIN, text) == found.own.ids(Call.CHAT_PLAIN, text)
            if turn % 5 == 4:
                cut = len(text) - chooser.randrange(2_000)
                text = text[:cut] + sample_text(500, turn)
            elif turn % 7 == 6:
                start = chooser.randrange(2_000, len(text) - 200)
                text = text[:start] + "edited" + text[start + 100 :]
            else:
                text += sample_text(chooser.randrange(900), turn)
        sent = found.counts.chars
        assert by_tier(found)["open"] == 1
        assert set(proxy.methods()) == {"OpenSession", "Append", "Edit"}
        assert by_tier(found)["append"] + by_tier(found)["edit"] == 59
        assert sent["sent"] < sent["text"] / 15


def test_all_code_points_are_compared_before_the_first_request(tmp_path: Path, proxy: Between) -> None:
    with bridge(tmp_path, proxy.address, points=1_000) as found:
        assert found.on
        compared = "".join(request.text for method, request in proxy.seen if method == "Encode")
        assert {chr(point) for point in range(0x20000) if not 0xD800 <= point < 0xE000} <= set(compared)
        assert compared == "".join(comparison(["<|endoftext|>"]))


def test_special_tokens_are_those_of_the_call(tmp_path: Path) -> None:
    data = with_bos(DATA)
    with grpc_tier(FAMILY) as server:
        tokenizer = build_tier(data).tokenizer
        server.servicer.registry = Registry([Served("bos", (), tokenizer, SessionService(tokenizer))])
        with bridge(tmp_path, server.address, loaded=Loaded(tmp_path, data)) as found:
            assert found.on
            text = sample_text(3_000)
            for call in Call:
                for more in ("", " and more"):
                    ids = found.ids(call, text + more)
                    assert ids == found.own.ids(call, text + more)
            starts = found.own.tokenizer.backend_tokenizer.id_to_token(found.own.ids(Call.TEXT, "")[0]) + text
            assert found.ids(Call.TEXT, starts) == found.own.ids(Call.TEXT, starts)  # twice, as SGLang itself


def test_two_branches_of_one_prompt_and_many_threads_at_once(tmp_path: Path, tier: GrpcTier) -> None:
    shared = sample_text(9_000, 5)
    with bridge(tmp_path, tier.address) as found:
        wrong: list[int] = []

        def agent(number: int) -> None:
            text = shared + f"agent {number}"
            for turn in range(12):
                text += sample_text(1_500, number * 100 + turn)
                ids = found.ids(Call.CHAT, text)
                if ids is not None and ids != found.own.ids(Call.CHAT, text):
                    wrong.append(turn)

        threads = [threading.Thread(target=agent, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert wrong == []
        assert sum(by_tier(found).values()) == 72
        assert by_tier(found)["append"] > 30


def test_the_event_loop_goes_on_while_the_tier_is_asked(tmp_path: Path, proxy: Between) -> None:
    with bridge(tmp_path, proxy.address) as found:
        proxy.delay_s = 0.5

        async def both() -> tuple[list[int] | None, int]:
            ticks = 0
            asked = asyncio.create_task(found.ids_on_loop(Call.TEXT, "a text of its own"))
            while not asked.done():
                await asyncio.sleep(0.01)
                ticks += 1
            return asked.result(), ticks

        ids, ticks = asyncio.run(both())
        assert ids == found.own.ids(Call.TEXT, "a text of its own")
        assert ticks > 10


# --- state that the tier lost ------------------------------------------------------------------------------------


def test_a_session_that_is_gone_or_has_moved_on_is_opened_anew(tmp_path: Path, tier: GrpcTier, proxy: Between) -> None:
    with bridge(tmp_path, proxy.address) as found:
        text = sample_text(5_000)
        found.ids(Call.CHAT, text)
        name = next(request.session for method, request in proxy.seen if method == "OpenSession")
        Link(tier.address).call("CloseSession", pb.CloseSessionRequest(session=name), 10)
        text += " more"
        assert found.ids(Call.CHAT, text) == found.own.ids(Call.CHAT, text)
        assert found.counts.lost == {"session.not_found": 1}
        Link(tier.address).call("Append", pb.AppendRequest(session=name, delta="by somebody else"), 10)
        text += " and more"
        assert found.ids(Call.CHAT, text) == found.own.ids(Call.CHAT, text)
        assert found.counts.lost["session.revision_conflict"] == 1
        assert by_tier(found) == {"open": 3}


def test_a_patch_for_other_ids_is_never_applied(tmp_path: Path, proxy: Between) -> None:
    def longer(method: str, patch: pb.Patch) -> None:
        if method == "Append":
            patch.total += 1

    with bridge(tmp_path, proxy.address) as found:
        text = sample_text(5_000)
        found.ids(Call.CHAT, text)
        proxy.alter = longer
        text += " more"
        assert found.ids(Call.CHAT, text) == found.own.ids(Call.CHAT, text)
        assert found.counts.lost == {"patch.wrong_base": 1}


# --- doubts ------------------------------------------------------------------------------------------------------


def test_a_dead_address_leaves_everything_to_the_own_tokenizer(tmp_path: Path) -> None:
    with bridge(tmp_path, "127.0.0.1:1", wait=False) as found:
        begun = time.monotonic()
        for _ in range(50):
            assert found.ids(Call.CHAT, "some text") is None
        assert time.monotonic() - begun < 1
        assert own(found, Own.CHECKING) == 50
        assert found.off is None  # it may come up


def test_a_tier_that_dies_is_left_alone_and_used_again_when_it_is_back(tmp_path: Path, proxy: Between) -> None:
    with bridge(tmp_path, proxy.address) as found:
        text = sample_text(5_000)
        assert found.ids(Call.CHAT, text) is not None
        proxy.stop_serving()
        begun = time.monotonic()
        for _ in range(200):
            assert found.ids(Call.CHAT, text) is None
        assert time.monotonic() - begun < 2
        assert own(found, Own.UNREACHABLE) == BREAKER.failures_to_open
        assert own(found, Own.BREAKER) == 200 - BREAKER.failures_to_open
        proxy.serve()
        until(lambda: found.ids(Call.CHAT, text) == found.own.ids(Call.CHAT, text))


def test_a_slow_tier_costs_no_more_than_the_deadline_a_few_times(tmp_path: Path, proxy: Between) -> None:
    with bridge(tmp_path, proxy.address, timeout_s=0.1) as found:
        proxy.delay_s = 1.0
        begun = time.monotonic()
        for _ in range(20):
            assert found.ids(Call.CHAT, "a text") is None
        assert time.monotonic() - begun < 20 * 0.1
        assert own(found, Own.LATE) == BREAKER.failures_to_open
        proxy.delay_s = 0.0
        until(lambda: found.ids(Call.CHAT, "a text") == found.own.ids(Call.CHAT, "a text"))


def test_after_a_late_answer_the_conversation_starts_anew(tmp_path: Path, proxy: Between) -> None:
    with bridge(tmp_path, proxy.address, timeout_s=0.3) as found:
        text = sample_text(5_000)
        assert found.ids(Call.CHAT, text) is not None
        proxy.delay_s = 0.6
        assert found.ids(Call.CHAT, text + " late") is None  # the tier may have applied it
        proxy.delay_s = 0.0
        assert found.ids(Call.CHAT, text + " later") == found.own.ids(Call.CHAT, text + " later")
        assert by_tier(found) == {"open": 2}


def test_short_texts_and_lone_surrogates_arent_asked_for(tmp_path: Path, proxy: Between) -> None:
    with bridge(tmp_path, proxy.address, min_chars=100) as found:
        proxy.seen.clear()
        assert found.ids(Call.CHAT, "short") is None
        assert found.ids(Call.CHAT, "\ud800" * 200) is None
        assert found.ids(Call.CHAT, b"bytes" * 100) is None  # type: ignore[arg-type]
        assert proxy.seen == []
        assert [own(found, reason) for reason in (Own.SHORT, Own.SURROGATE, Own.NOT_TEXT)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (lambda _, patch: setattr(patch, "ids", bytes_of(np.array([1 << 30] * 9, np.uint32))), Own.UNKNOWN_IDS),
        (lambda _, patch: patch.CopyFrom(pb.Patch(route=pb.ROUTE_ENCODE, reason="none")), Own.EMPTY),
        (lambda _, patch: setattr(patch, "ids", b"abc"), Own.NONSENSE),
    ],
    ids=["beyond the vocabulary", "none", "no whole ID"],
)
def test_ids_that_cant_be_are_refused(tmp_path: Path, proxy: Between, alter: Any, reason: Own) -> None:
    with bridge(tmp_path, proxy.address) as found:
        proxy.alter = alter
        assert found.ids(Call.CHAT, "hello there") is None
        assert found.ids(Call.CHAT, sample_text(3_000)) is None
        assert sum(own(found, each) for each in (reason, Own.NONSENSE)) >= 2
        assert own(found, reason) >= 1


def test_more_than_so_many_dont_wait_for_the_tier(tmp_path: Path, proxy: Between) -> None:
    with bridge(tmp_path, proxy.address) as found:
        proxy.delay_s = 0.3

        async def many() -> list[list[int] | None]:
            return await asyncio.gather(*(found.ids_on_loop(Call.TEXT, f"text {n}") for n in range(WAITING + 8)))

        answers = asyncio.run(many())
        assert answers.count(None) == own(found, Own.BUSY, "text") == 8


# --- lies and other tokenizers -----------------------------------------------------------------------------------


def test_a_lying_tier_is_found_out_by_the_shadow_check_and_never_asked_again(tmp_path: Path, proxy: Between) -> None:
    with bridge(tmp_path, proxy.address, shadow_rate=0.2) as found:
        proxy.alter = lie
        turns = 0
        while found.off is None:
            assert turns < 500
            found.ids(Call.CHAT, f"turn {turns} of a talk")
            turns += 1
            time.sleep(0.002)
        assert found.off is Off.SHADOW
        assert found.counts.shadow["differs"] == 1
        proxy.alter, asked = None, len(proxy.seen)
        assert found.ids(Call.CHAT, "the truth") is None
        assert own(found, Own.OFF) == 1
        assert len(proxy.seen) == asked


def test_an_honest_tier_is_checked_and_stays(tmp_path: Path, tier: GrpcTier) -> None:
    with bridge(tmp_path, tier.address, shadow_rate=1.0) as found:
        for turn in range(20):
            found.ids(Call.CHAT, f"turn {turn} of a talk")
        until(lambda: found.counts.shadow["same"] + found.counts.shadow["dropped"] == 20)
        assert found.on
        assert found.counts.shadow["same"] > 0


def test_a_tier_that_lies_from_the_start_is_never_used(tmp_path: Path, proxy: Between) -> None:
    proxy.alter = lie
    with bridge(tmp_path, proxy.address) as found:
        assert found.off is Off.PROBE
        assert found.ids(Call.CHAT, "text") is None


def test_a_tier_with_another_file_under_that_name_is_never_used(tmp_path: Path, tier: GrpcTier) -> None:
    with bridge(tmp_path, tier.address, loaded=Loaded(tmp_path, DATA + b"\n"), model=FAMILY) as found:
        assert found.off is Off.FINGERPRINT


def test_a_tier_without_this_tokenizer_is_waited_for(tmp_path: Path, tier: GrpcTier) -> None:
    with bridge(tmp_path, tier.address, model="unheard-of", wait=False) as found:
        time.sleep(1.0)
        assert (found.on, found.off) == (False, None)
        assert found.ids(Call.CHAT, "text") is None
        assert own(found, Own.CHECKING) == 1


def test_a_tokenizer_exchanged_at_the_tier_is_compared_before_it_is_used(tmp_path: Path) -> None:
    with grpc_tier(FAMILY) as server, bridge(tmp_path, server.address) as found:
        served = server.servicer.registry
        text = sample_text(3_000)
        assert found.ids(Call.CHAT, text) is not None
        server.servicer.registry = Registry([])
        assert found.ids(Call.CHAT, text + " more") is None
        assert own(found, Own.CHANGED) == 1
        assert not found.on
        server.servicer.registry = served
        until(lambda: found.on)
        assert found.ids(Call.CHAT, text + " more") == found.own.ids(Call.CHAT, text + " more")


def test_the_token_file_is_sent_and_read_again(tmp_path: Path, proxy: Between) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with bridge(tmp_path, proxy.address, token_file=str(token)) as found:
        found.ids(Call.CHAT, "text")
        assert proxy.metadata[-1]["authorization"] == "Bearer first"
        token.write_text("second")
        found.ids(Call.CHAT, "text")
        assert proxy.metadata[-1]["authorization"] == "Bearer second"
        token.unlink()
        assert found.ids(Call.CHAT, "text") is None
        assert own(found, Own.UNREACHABLE) == 1


def test_a_unix_socket_is_an_address_like_any_other(tmp_path: Path, tier: GrpcTier) -> None:
    socket = f"unix:{tmp_path}/tier.sock"
    with between(tier, socket), bridge(tmp_path, socket) as found:
        assert found.ids(Call.CHAT, "text") == found.own.ids(Call.CHAT, "text")


def test_over_tls_with_a_token_and_not_without(tmp_path: Path) -> None:
    authority = Authority()
    issued = authority.issue("tier")
    for name, data in (("ca", authority.certificate), ("cert", issued.certificate), ("key", issued.key)):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "tokens").write_text(f"{hashlib.sha256(b'secret').hexdigest()} team\n")
    (tmp_path / "secret").write_text("secret\n")
    security = SecuritySettings(
        tokens=str(tmp_path / "tokens"), tls=TlsSettings(str(tmp_path / "cert"), str(tmp_path / "key"))
    )
    tls = TlsFiles(str(tmp_path / "ca"))
    data = path_of(FAMILY).read_bytes()
    with whole_tier(tmp_path, security=security) as server:
        with bridge(
            tmp_path, server.grpc, loaded=Loaded(tmp_path, data), tls=tls, token_file=str(tmp_path / "secret")
        ) as found:
            assert found.ids(Call.CHAT, "text") == found.own.ids(Call.CHAT, "text")
            (tmp_path / "secret").write_text("guessed")
            assert found.ids(Call.CHAT, "text") is None
            assert own(found, Own.DENIED) == 1
        with bridge(tmp_path, server.grpc, loaded=Loaded(tmp_path, data), wait=False) as found:
            time.sleep(1)
            assert not found.on
