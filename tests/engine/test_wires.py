"""The two gRPC services' messages without a network: every field set, every output ID read once."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.core.errors import EngineFault, InvalidRequest
from toktier_tier.engine.ids import check_ids
from toktier_tier.engine.sampling import Sampling
from toktier_tier.engine.wire import native_pb2, smg_pb2
from toktier_tier.engine.wires import Delta, Finished, NativeWire, Reader, SmgWire
from workshop import examples

TIER = Path(__file__).parents[2] / "tier"
IDS = check_ids([5, 0, 7], 10)
OUTPUTS = st.lists(st.integers(0, 200_000), max_size=12)
CUTS = st.lists(st.integers(0, 12), max_size=6)


@pytest.mark.parametrize(("name", "module"), [("smg", smg_pb2), ("native", native_pb2)])
def test_the_generated_messages_are_what_their_source_says(name: str, module: Any, tmp_path: Path) -> None:
    out = tmp_path / "set"
    source = f"toktier_tier/engine/wire/{name}.proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(TIER), f"--descriptor_set_out={out}", source]
    subprocess.run(command, check=True, timeout=60)
    (file,) = FileDescriptorSet.FromString(out.read_bytes()).file
    for message in [*file.message_type, *(nested for each in file.message_type for nested in each.nested_type)]:
        for field in message.field:
            field.ClearField("json_name")
    assert module.DESCRIPTOR.serialized_pb == file.SerializeToString()


def parts(output: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(output), *(cut for cut in cuts if cut < len(output))})
    return [output[start:end] for start, end in pairwise(edges)]


def read_all(reader: Reader, messages: list[Any]) -> tuple[list[int], Finished]:
    ids: list[int] = []
    finished: Finished | None = None
    for message in messages:
        for record in reader.read(message.SerializeToString()):
            assert finished is None
            if isinstance(record, Finished):
                finished = record
            else:
                assert record.ids
                ids += record.ids
    assert finished is not None
    return ids, finished


def smg_chunk(ids: list[int], **more: int) -> smg_pb2.GenerateResponse:
    return smg_pb2.GenerateResponse(chunk=smg_pb2.GenerateStreamChunk(token_ids=ids, **more))


def smg_end(ids: list[int], **more: Any) -> smg_pb2.GenerateResponse:
    fields = {"finish_reason": "length", "prompt_tokens": 3, "completion_tokens": len(ids), "cached_tokens": 2, **more}
    return smg_pb2.GenerateResponse(complete=smg_pb2.GenerateComplete(output_ids=ids, **fields))


def native(ids: list[int], done: bool, **meta: str) -> native_pb2.GenerateResponse:
    return native_pb2.GenerateResponse(output_ids=ids, finished=done, meta_info=meta)


@settings(max_examples=examples(200))
@given(OUTPUTS, CUTS)
def test_smg_gives_each_id_once_though_its_end_repeats_the_last_chunk(output: list[int], cuts: list[int]) -> None:
    pieces = parts(output, cuts)
    messages = [smg_chunk(piece) for piece in pieces]
    last = pieces[-1] if pieces else []
    ids, finished = read_all(SmgWire().reader(), [*messages, smg_end(last, completion_tokens=len(output))])
    assert ids == output
    assert finished == Finished("length", 3, len(output), 2)


@given(OUTPUTS)
def test_smg_without_chunks_gives_the_ids_of_its_end(output: list[int]) -> None:
    assert read_all(SmgWire().reader(), [smg_end(output)])[0] == output


@settings(max_examples=examples(200))
@given(OUTPUTS, CUTS, st.booleans(), st.booleans())
def test_native_gives_each_id_once_cumulative_or_not(
    output: list[int], cuts: list[int], incremental: bool, empty_end: bool
) -> None:
    seen: list[int] = []
    messages = []
    for piece in parts(output, cuts):
        seen = seen + piece
        messages.append(native(piece if incremental else seen, False, completion_tokens=str(len(seen))))
    meta = {"prompt_tokens": "3", "completion_tokens": str(len(output)), "cached_tokens": "2"}
    meta["finish_reason"] = '{"type": "length", "length": 8}'
    if empty_end or not messages:
        messages.append(native([] if incremental else seen, True, **meta))
    else:
        messages[-1] = native(list(messages[-1].output_ids), True, **meta)
    ids, finished = read_all(NativeWire().reader(), messages)
    assert ids == output
    assert finished == Finished("length", 3, len(output), 2)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ('{"type": "stop", "matched": 7}', "stop"),
        ('{"type": "abort"}', "abort"),
        ('"length"', "length"),
        ("length", "length"),
        ("null", "stop"),
        ("", "stop"),
        ('{"type": 3}', "stop"),
    ],
)
def test_native_finish_reasons_are_read_in_any_form(written: str, reason: str) -> None:
    _, finished = read_all(NativeWire().reader(), [native([1], True, prompt_tokens="3", finish_reason=written)])
    assert finished == Finished(reason, 3, 1, 0)


@pytest.mark.parametrize(
    ("reader", "messages"),
    [
        (SmgWire().reader(), [b"\xff\xff"]),
        (SmgWire().reader(), [b""]),
        (SmgWire().reader(), [smg_chunk([1], index=1).SerializeToString()]),
        (NativeWire().reader(), [b"\xff\xff"]),
        (NativeWire().reader(), [native([1, 2], False).SerializeToString(), native([1], False).SerializeToString()]),
        (NativeWire().reader(), [native([1], True).SerializeToString()]),
        (NativeWire().reader(), [native([1], True, prompt_tokens="-3").SerializeToString()]),
    ],
)
def test_replies_that_cant_be_are_faults(reader: Reader, messages: list[bytes]) -> None:
    *good, bad = messages
    for message in good:
        reader.read(message)
    with pytest.raises(EngineFault) as caught:
        reader.read(bad)
    assert caught.value.code == "engine.bad_reply"


# Fields whose absence SGLang reads as "none", which is what is meant.
NONE_WHEN_ABSENT = {"stop", "stop_token_ids", "logit_bias", "max_new_tokens", "stream_interval"}
CONSTRAINTS = {"regex", "json_schema", "ebnf_grammar", "structural_tag"}


def test_every_smg_sampling_field_is_sent_with_its_real_default() -> None:
    request = smg_pb2.GenerateRequest.FromString(SmgWire().request(IDS, Sampling(), "r", "s", {}))
    params = request.sampling_params
    sent = {field.name for field, _ in params.ListFields()}
    zero = {"min_p", "frequency_penalty", "presence_penalty", "min_new_tokens", "ignore_eos", "no_stop_trim"}
    assert sent | zero | NONE_WHEN_ABSENT | CONSTRAINTS == set(smg_pb2.SamplingParams.DESCRIPTOR.fields_by_name)
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty, params.n) == (1, 1, -1, 1, 1)
    assert params.skip_special_tokens
    assert params.spaces_between_special_tokens
    assert (request.request_id, request.stream, request.logprob_start_len) == ("r", True, -1)
    assert list(request.tokenized.input_ids) == [5, 0, 7]


FULL: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 7,
    "min_p": 0.125,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "repetition_penalty": 1.5,
    "max_new_tokens": 9,
    "min_new_tokens": 2,
    "stop": ("a", "b"),
    "stop_token_ids": (1, 2),
    "ignore_eos": True,
    "json_schema": "{}",
}


def test_every_sampling_field_arrives_over_smg() -> None:
    more = {"no_stop_trim": True, "stream_interval": 4, "logit_bias": {"5": 0.5}, "skip_special_tokens": False}
    sampling = Sampling(**FULL, **more, spaces_between_special_tokens=False)
    params = smg_pb2.GenerateRequest.FromString(SmgWire().request(IDS, sampling, "r", "s", {})).sampling_params
    for name, value in {**FULL, **more, "spaces_between_special_tokens": False}.items():
        found = getattr(params, name)
        assert (
            tuple(found) if isinstance(value, tuple) else dict(found) if isinstance(value, dict) else found
        ) == value
    for ours, theirs in [("regex", "regex"), ("ebnf", "ebnf_grammar"), ("structural_tag", "structural_tag")]:
        request = SmgWire().request(IDS, Sampling(**{ours: "x"}), "r", "s", {})
        assert smg_pb2.GenerateRequest.FromString(request).sampling_params.WhichOneof("constraint") == theirs


def test_every_sampling_field_arrives_over_the_native_service() -> None:
    plain = native_pb2.GenerateRequest.FromString(NativeWire().request(IDS, Sampling(), "r", "s", {"traceparent": "t"}))
    names = set(native_pb2.SamplingParams.DESCRIPTOR.fields_by_name) - NONE_WHEN_ABSENT - CONSTRAINTS
    assert all(plain.sampling_params.HasField(name) for name in names)
    assert (plain.rid, plain.routing_key, plain.stream, plain.logprob_start_len) == ("r", "s", True, -1)
    assert dict(plain.trace_headers) == {"traceparent": "t"}
    assert list(plain.input_ids) == [5, 0, 7]
    params = native_pb2.GenerateRequest.FromString(
        NativeWire().request(IDS, Sampling(**FULL), "r", "", {})
    ).sampling_params
    for name, value in FULL.items():
        found = getattr(params, name)
        assert (tuple(found) if isinstance(value, tuple) else found) == value


@pytest.mark.parametrize(
    "wanted",
    [
        {"ebnf": "x"},
        {"structural_tag": "x"},
        {"logit_bias": {"1": 1.0}},
        {"no_stop_trim": True},
        {"stream_interval": 2},
    ],
)
def test_what_the_native_service_has_no_field_for_is_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        NativeWire().request(IDS, Sampling(**wanted), "r", "s", {})
    assert (caught.value.code, caught.value.details["field"]) == ("engine.sampling_unsupported", next(iter(wanted)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": 0},
        {"min_p": 2.0},
        {"frequency_penalty": 3.0},
        {"presence_penalty": -3.0},
        {"repetition_penalty": 0.0},
        {"max_new_tokens": -1},
        {"min_new_tokens": 5, "max_new_tokens": 4},
        {"stop_token_ids": (-1,)},
        {"stream_interval": 0},
        {"regex": "a", "json_schema": "{}"},
        {"logit_bias": {"1": float("nan")}},
    ],
)
def test_sampling_that_cant_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Sampling(**wrong)
    assert caught.value.code == "engine.sampling"


def test_a_delta_and_an_end_are_values() -> None:
    assert Delta((1, 2)) == Delta((1, 2))
    assert len({Finished("stop", 1, 1, 0), Finished("stop", 1, 1, 0)}) == 1
