"""The engine in Triton's interpreter: its answers are the twins' and the reference's, and it lives through errors."""

from __future__ import annotations

import resource
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from genuine import FAMILIES, genuine  # noqa: E402

from toktier_kernels import buckets, passes  # noqa: E402
from toktier_kernels.engine import Engine  # noqa: E402
from toktier_kernels.errors import (  # noqa: E402
    Busy,
    Closed,
    InvalidArgument,
    InvalidText,
    KernelsError,
    NotInstalled,
    OutOfMemory,
    Overlong,
    TextTooLarge,
    Unsettled,
)
from toktier_kernels.twins import pipeline  # noqa: E402
from workshop import examples  # noqa: E402

UNSETTLED = "e\u0301"  # what the tables of `samples` call unsettled
JAMO = "\u1100\u1161"  # the same of letters alone: it makes one letter of two


def normalize(data: bytes) -> bytes:
    return unicodedata.normalize("NFC", data.decode()).encode()


def encode_overlong(stretches: Sequence[bytes]) -> list[np.ndarray]:
    """By other means than the device: a byte a token, which is no worse than what merges would make."""
    return [np.frombuffer(stretch, np.uint8).astype(np.uint32) for stretch in stretches]


def open_engine(stages: int = 1, **options: Any) -> Engine:
    options = {"graphs": False, "normalize": normalize, "encode_overlong": encode_overlong, **options}
    return Engine(samples.tables(stages), device="cpu", **options)


@cache
def shared_engine() -> Engine:
    return open_engine()


def by_twins(documents: Sequence[bytes], stages: int = 1, **options: Any) -> pipeline.Encoding:
    return pipeline.encode(
        samples.tables(stages), documents, normalize=normalize, encode_overlong=encode_overlong, **options
    )


def check(engine: Engine, expected: pipeline.Encoding, documents: Sequence[bytes], spans: Any = None) -> Any:
    found = engine.encode(documents, spans=spans, ends="uint32")
    assert found.numpy().tolist() == expected.ids.tolist()
    assert found.numpy_ends().tolist() == expected.ends.tolist()
    assert found.document_tokens.tolist() == expected.document_tokens.tolist()
    assert (found.ids.numpy() == found.numpy()).all()
    assert found.ends is not None
    assert (found.ends.numpy() == found.numpy_ends()).all()
    return found


# --- right ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("stages", [1, 3])
def test_the_engine_gives_what_the_twins_give(stages: int, graphs: bool) -> None:
    engine = open_engine(stages, graphs=graphs)
    documents = [samples.text(size, size).encode() for size in (0, 1, 2, 31, 60, 0, 90)]
    check(engine, by_twins(documents, stages), documents)
    few = [b"the one and the 12345 other"]
    spans = ([4, 8], [7, 11], [300, 301])
    check(engine, by_twins(few, stages, spans=spans), few, spans)


@pytest.mark.parametrize("family", FAMILIES[:2])
def test_the_engine_gives_what_the_reference_gives(family: str) -> None:
    case = genuine(family)
    engine = Engine(
        case.tables, device="cpu", normalize=case.normalize, encode_overlong=case.encode_overlong, walk_limit=24
    )
    documents = case.texts(examples(12), 24, seed=7)
    found = engine.encode([text.encode() for text in documents], spans=case.spans(documents), ends="uint64")
    ids, ends, counts = case.expected(documents)
    assert found.tolist() == ids
    assert found.numpy_ends().tolist() == ends
    assert found.document_tokens.tolist() == counts
    assert found.document_bytes.sum() == found.facts.text_bytes == ends[-1]


@pytest.mark.parametrize("graphs", [False, True])
def test_what_the_arrays_held_before_does_not_matter(graphs: bool) -> None:
    engine = open_engine(2, graphs=graphs)
    documents = [f"the {UNSETTLED} 1234 in".encode(), b"", b"and a long stretch of it"]
    expected = by_twins(documents, 2, walk_limit=2048)
    for poison in (0xFF, 0xA5):
        engine.encode([b"x"])
        _arena(engine).fill_(poison)
        check(engine, expected, documents)


def _arena(engine: Engine) -> Any:
    assert engine._passes is not None
    return engine._passes._memory._arena


@pytest.mark.parametrize("documents", [[], [b""], [b"", b"", b""]])
def test_nothing_gives_nothing_and_launches_nothing(documents: list[bytes]) -> None:
    engine = shared_engine()
    before = engine.synchronizations
    found = engine.encode(documents, ends="uint64")
    assert (len(found), found.numpy().dtype, found.numpy_ends().dtype) == (0, np.uint32, np.uint64)
    assert found.document_tokens.tolist() == found.document_bytes.tolist() == [0] * len(documents)
    assert engine.synchronizations == before


def test_more_documents_than_usual_fit_too() -> None:
    documents = [b"a", b"", b"the"] * 60
    bucket = buckets.bucket_of(240, len(documents))
    assert bucket.marks > buckets.bucket_of(240, 1).marks
    check(shared_engine(), by_twins(documents), documents)


# --- how often the host waits -------------------------------------------------------------------------------------

MANY_IDS = b"1!" * 100  # a token each: more than was guessed


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (b"the other and the one", {}, 1),
        (MANY_IDS, {}, 2),
        (MANY_IDS, {"host": False}, 1),
        (f"the {UNSETTLED} one".encode(), {}, 2),
        (f"{UNSETTLED} ".encode() * 60, {"ends": "uint32"}, 2),
        (b"in " + b"a" * 50, {}, 2),
        (b"in " + b"a" * 50 + b"1!" * 70, {"ends": "uint64"}, 2),
        (f"{UNSETTLED} in ".encode() + b"a" * 50, {}, 2),
        (
            f"{UNSETTLED} in ".encode() + b"a" * 50 + b" it " + b"a" * 41 + f" {UNSETTLED}".encode(),
            {"ends": "uint32"},
            2,
        ),
        (f"in {'a' * 30}{JAMO}{'a' * 50}{JAMO}a it".encode(), {"ends": "uint32"}, 2),
        (f"{'a' * 50}{JAMO}".encode(), {}, 2),
        (f"{UNSETTLED} 1 ".encode() * 4 + MANY_IDS, {"ends": "uint64"}, 2),
        (MANY_IDS + f"{UNSETTLED} in ".encode() + b"a" * 50, {}, 2),
    ],
)
def test_the_host_waits_as_often_as_it_must(text: bytes, options: dict[str, Any], expected: int) -> None:
    engine = limited_engine()
    before = engine.synchronizations
    found = engine.encode([text], **options)
    assert found.facts.synchronizations == engine.synchronizations - before == expected
    assert found.ids.numpy().tolist() == by_twins([text], walk_limit=40).ids.tolist()
    assert found.numpy().tolist() == found.ids.numpy().tolist()


PARTS = [UNSETTLED, JAMO, "\u0301", "é", " in ", "a" * 41, "a", "1", "  ", "1!" * 40]


@settings(max_examples=examples(40))
@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=8), st.integers(0, 8))
def test_normalized_and_overlong_together_in_every_order(parts: list[str], cut: int) -> None:
    documents = ["".join(parts[:cut]).encode(), "".join(parts[cut:]).encode()]
    try:
        found = check(limited_engine(), by_twins(documents, walk_limit=40), documents)
    except Overlong as error:
        assert "the normalized text" in str(error)  # noqa: PT017
        assert max(len(normalize(document)) for document in documents) > 40
    else:
        assert found.facts.synchronizations <= 2


@pytest.mark.parametrize(
    "text",
    [
        "a" * 30 + UNSETTLED + "a" * 30,  # too long only once it is normal
        "a" * 41 + UNSETTLED,
        "a" * 41 + JAMO,
        UNSETTLED + "a" * 41,
    ],
)
def test_stretches_that_normalizing_may_join_are_left_to_the_cpu_or_right(text: str) -> None:
    documents = [f"in {text} it".encode()]
    engine = limited_engine()
    before = engine.synchronizations
    try:
        check(engine, by_twins(documents, walk_limit=40), documents)
    except Overlong as error:
        assert error.code == "kernels.overlong"  # noqa: PT017
    assert engine.synchronizations - before <= 2


@cache
def limited_engine() -> Engine:
    return open_engine(walk_limit=40)


def test_facts_tell_what_the_cpu_did() -> None:
    found = limited_engine().encode([f"the {UNSETTLED} one ".encode() + b"a" * 50])
    assert (found.facts.normalized_bytes, found.facts.overlong_bytes) == (len("é".encode()), 51)
    assert found.facts.text_bytes == found.document_bytes[0] == 61


@pytest.mark.parametrize("count", [64, 80])
def test_as_many_overlong_segments_as_are_listed_are_encoded_by_the_cpu(count: int) -> None:
    assert buckets.bucket_of(4096, 1).overlong == 80
    text = b"aa1" * count
    engine = open_engine(walk_limit=1)
    check(engine, by_twins([text], walk_limit=1), [text])


@pytest.mark.parametrize("count", [1, 40])
def test_a_segment_that_is_listed_more_than_once_is_encoded_once(count: int) -> None:
    seen: list[bytes] = []

    def encode(stretches: Sequence[bytes]) -> list[np.ndarray]:
        seen.extend(stretches)
        return encode_overlong(stretches)

    segment = b"      bbbbbb"  # two pieces past the limit
    engine = open_engine(merge_limit=4, encode_overlong=encode)
    check(engine, by_twins([segment * count], merge_limit=4), [segment * count])
    assert seen == [segment] * count


def test_more_overlong_segments_are_an_error() -> None:
    engine = open_engine(walk_limit=1)
    with pytest.raises(Overlong, match="81 stretches"):
        engine.encode([b"aa1" * 81])
    check(engine, by_twins([b"a1"], walk_limit=1), [b"a1"])


def test_text_that_is_unsettled_everywhere_is_normalized_whole() -> None:
    text = (UNSETTLED * 50).encode()
    engine = open_engine()
    assert passes.bucket_of(len(text), 1).unsettled == 128
    check(engine, by_twins([text * 3, b"in"]), [text * 3, b"in"])


# --- delivery -----------------------------------------------------------------------------------------------------


def test_arrays_come_in_every_form() -> None:
    found = shared_engine().encode([b"the other"], ends="uint64")
    expected = by_twins([b"the other"])
    assert (found.ids.dtype, found.numpy().dtype) == (torch.uint32, np.uint32)
    assert found.ends is not None
    assert (found.ends.dtype, found.numpy_ends().dtype) == (torch.uint64, np.uint64)
    assert len(found) == len(expected.ids)
    assert torch.from_dlpack(found).data_ptr() == found.ids.data_ptr()
    assert np.from_dlpack(found).tolist() == expected.ids.tolist()
    assert np.asarray(found).tolist() == expected.ids.tolist()
    assert np.asarray(found, dtype=np.int64).dtype == np.int64
    assert found.tolist() == expected.ids.tolist()


def test_what_was_not_asked_for_on_the_host_is_brought_when_it_is() -> None:
    found = shared_engine().encode([b"the other"], ends="uint32", host=False)
    assert (found.host_ids, found.host_ends) == (None, None)
    expected = by_twins([b"the other"])
    assert (found.numpy().tolist(), found.numpy_ends().tolist()) == (expected.ids.tolist(), expected.ends.tolist())


def test_no_ends_unless_asked_for() -> None:
    found = shared_engine().encode([b"the other"])
    assert found.ends is None
    with pytest.raises(ValueError, match="no ends"):
        found.numpy_ends()


def test_a_later_call_changes_no_answer() -> None:
    engine = shared_engine()
    first = engine.encode([b"the other"], ends="uint32")
    before = (first.tolist(), first.ids.tolist(), first.ends.tolist())
    engine.encode([b"12345 !!!! and"], ends="uint32")
    assert (first.tolist(), first.ids.tolist(), first.ends.tolist()) == before


# --- errors -------------------------------------------------------------------------------------------------------

FAILURES: dict[str, tuple[type[KernelsError], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "kernels.invalid_utf8": (
        InvalidText,
        {},
        {"documents": [b"ab", b"c\xff"]},
        {"offset": 3, "document": 1, "document_offset": 1},
    ),
    "kernels.invalid_spans": (InvalidArgument, {}, {"documents": [b"ab"], "spans": ([0], [3], [1])}, {}),
    "kernels.invalid_argument": (InvalidArgument, {}, {"documents": [b"ab"], "ends": "int64"}, {}),
    "kernels.unsettled": (Unsettled, {"normalize": None}, {"documents": [UNSETTLED.encode()]}, {"characters": 1}),
    "kernels.overlong": (
        Overlong,
        {"encode_overlong": None, "walk_limit": 9},
        {"documents": [b"a" * 10, b"a" * 11]},
        {"stretches": 2},
    ),
    "kernels.too_large": (
        TextTooLarge,
        {"memory_bytes": buckets.arena_bytes(buckets.bucket_of(4096, 1))},
        {"documents": [b"a" * 4097]},
        {"bytes": 4097, "needed_bytes": buckets.arena_bytes(buckets.bucket_of(4097, 1))},
    ),
}


@pytest.mark.parametrize("code", FAILURES)
def test_an_error_has_its_code_and_leaves_the_engine_usable(code: str) -> None:
    kind, options, arguments, details = FAILURES[code]
    engine = open_engine(**options)
    with pytest.raises(kind) as caught:
        engine.encode(**arguments)
    assert (caught.value.code, caught.value.details) == (code, details)
    check(engine, by_twins([b"the one"]), [b"the one"])


def test_what_a_callable_raises_comes_through_and_leaves_the_engine_usable() -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError("no CUDA error, and none of memory")

    for options, text in (({"normalize": fail}, UNSETTLED.encode()), ({"encode_overlong": fail}, b"a" * 10)):
        engine = open_engine(**options, walk_limit=8)
        with pytest.raises(RuntimeError, match="no CUDA error"):
            engine.encode([text])
        check(engine, by_twins([b"the one"]), [b"the one"])


@pytest.mark.parametrize("answer", [b"ab", b"abcd"])
def test_an_encoding_that_does_not_cover_its_stretch_is_never_put_in(answer: bytes) -> None:
    engine = open_engine(walk_limit=2, encode_overlong=lambda _: [np.frombuffer(answer, np.uint8).astype(np.uint32)])
    with pytest.raises(Overlong, match="byte for byte"):
        engine.encode([b"abc"])


def test_no_memory_is_an_error_that_passes() -> None:
    engine = open_engine(memory_bytes=1 << 40)
    text = b"a" * (64 << 20)
    with _address_space(1 << 30), pytest.raises(OutOfMemory) as caught:
        engine.encode([text])
    assert caught.value.code == "kernels.out_of_memory"
    assert engine.arena_bytes == 0
    check(engine, by_twins([b"the one"]), [b"the one"])


@contextmanager
def _address_space(more_bytes: int) -> Iterator[None]:
    """This process may map so much more memory, and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"walk_limit": 0}, InvalidArgument),
        ({"walk_limit": 2**20, "walk_budget": 2**11}, InvalidArgument),
        ({"merge_limit": 513}, InvalidArgument),
        ({"merge_limit": 0}, InvalidArgument),
        ({"waiters": -1}, InvalidArgument),
        ({"device": "meta"}, InvalidArgument),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], kind: type[KernelsError]) -> None:
    with pytest.raises(kind):
        Engine(samples.tables(), **{"device": "cpu", **options})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(NotInstalled) as caught:
        Engine(samples.tables())
    assert caught.value.code == "kernels.not_installed"


# --- memory, turns ------------------------------------------------------------------------------------------------


def test_the_arena_is_allocated_once_for_all_texts_that_fit() -> None:
    engine = open_engine(memory_bytes=1 << 20)
    assert engine.arena_bytes == 0
    engine.encode([b"in"])
    assert engine.arena_bytes == buckets.arena_bytes(buckets.bucket_of(2, 1))
    engine.encode([b" " * 4200])
    held, address = engine.arena_bytes, _arena(engine).data_ptr()
    assert held == buckets.arena_bytes(buckets.bucket_of(4200, 1))
    engine.encode([b"the one"])
    assert (engine.arena_bytes, _arena(engine).data_ptr()) == (held, address)
    assert held <= engine.memory_bytes
    assert engine.limit_text_bytes >= 4200


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 6144, 6145, 10**6, 2**30])
@pytest.mark.parametrize("marks", [0, 1, 80, 81, 5000])
def test_a_bucket_holds_its_text_and_costs_what_it_says(size: int, marks: int) -> None:
    bucket = buckets.bucket_of(size, marks)
    assert bucket.text >= size
    assert bucket.marks >= marks
    assert buckets.bucket_of(bucket.text, bucket.marks) == bucket
    assert buckets.arena_bytes(bucket) <= 41 * bucket.text
    if marks <= 80 and size > 4096:
        assert bucket.text < 1.5 * size + 2


def test_the_largest_text_is_what_the_memory_allows() -> None:
    for limit in (0, 100_000, 200_000, 10**6, 10**9, 10**12):
        size = buckets.limit_text_bytes(limit)
        assert size == 0 or buckets.arena_bytes(buckets.bucket_of(size, 1)) <= limit
        assert size == buckets.LARGEST_TEXT_BYTES or buckets.arena_bytes(buckets.bucket_of(size + 1, 1)) > limit


@contextmanager
def held(waiters: int) -> Iterator[tuple[Engine, threading.Event, Callable[[], Any]]]:
    """An engine with a text at work, for as long as the event isn't set; and what asks for that text's answer."""
    started, go = threading.Event(), threading.Event()

    def wait(data: bytes) -> bytes:
        started.set()
        assert go.wait(60)
        return normalize(data)

    engine = open_engine(normalize=wait, waiters=waiters)
    with ThreadPoolExecutor(4) as pool:
        at_work = pool.submit(engine.encode, [UNSETTLED.encode()])
        try:
            assert started.wait(60)
            yield engine, go, partial(at_work.result, 60)
        finally:
            go.set()


def test_who_does_not_want_to_wait_is_told_at_once() -> None:
    with held(waiters=3) as (engine, go, result):
        with pytest.raises(Busy) as caught:
            engine.try_encode([b"the"])
        assert caught.value.code == "kernels.busy"
        go.set()
        assert result().tolist() == by_twins([UNSETTLED.encode()]).ids.tolist()
        assert engine.try_encode([b"the"]).tolist() == by_twins([b"the"]).ids.tolist()


def test_no_more_callers_wait_than_may() -> None:
    with held(waiters=1) as (engine, go, result), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(engine.encode, [b"the"])
        while engine._slots._value:  # it has taken the only place
            threading.Event().wait(0.01)
        with pytest.raises(Busy, match="as many callers wait as may"):
            engine.encode([b"in"])
        go.set()
        assert waiting.result(60).tolist() == by_twins([b"the"]).ids.tolist()
        result()
    assert engine.encode([b"in"]).tolist() == by_twins([b"in"]).ids.tolist()


def test_callers_of_several_threads_get_their_own_answers() -> None:
    engine = shared_engine()
    texts = [samples.text(30, seed).encode() for seed in range(6)]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda text: engine.encode([text]).tolist(), texts))
    assert answers == [by_twins([text]).ids.tolist() for text in texts]


def test_a_closed_engine_gives_its_memory_back_and_says_so() -> None:
    engine = open_engine()
    engine.encode([b"the"])
    engine.close()
    engine.close()
    assert engine.arena_bytes == 0
    with pytest.raises(Closed):
        engine.encode([b"the"])
