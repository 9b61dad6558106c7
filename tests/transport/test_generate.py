"""`/generate` through an engine that speaks gRPC, on loopback: SGLang's form of answer out of output IDs."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import numpy as np
import pytest

from toktier_tier.core.errors import EngineFault, InvalidRequest
from toktier_tier.engine.ids import check_ids
from toktier_tier.engine.sglang_grpc import SGLangGrpc
from toktier_tier.engine.upstreams import Upstreams
from toktier_tier.engine.wire import smg_pb2
from toktier_tier.engine.wires import SmgWire
from toktier_tier.transport.generate import generate, sampling_of
from toktier_tier.transport.output import UNFINISHED, Output
from workshop import family_reference, sample_text

REFERENCE = family_reference("gpt2-novelai")
OUTPUT = "naïve 中文 😀!"
OUTPUT_IDS = REFERENCE.encode_text(OUTPUT).tolist()
PROMPT = check_ids([5, 6, 7], 100)

Messages = Callable[[Any], AsyncIterator[Any]]


async def one_by_one(request: Any) -> AsyncIterator[Any]:
    for each in OUTPUT_IDS:
        yield smg_pb2.GenerateResponse(chunk=smg_pb2.GenerateStreamChunk(token_ids=[each]))
    yield finished(len(request.tokenized.input_ids))


async def cut_short(request: Any) -> AsyncIterator[Any]:
    yield smg_pb2.GenerateResponse(chunk=smg_pb2.GenerateStreamChunk(token_ids=OUTPUT_IDS[:2]))


async def lying(request: Any) -> AsyncIterator[Any]:
    yield finished(99)


def finished(prompt_tokens: int) -> Any:
    complete = smg_pb2.GenerateComplete(
        output_ids=OUTPUT_IDS[-1:],
        finish_reason="length",
        prompt_tokens=prompt_tokens,
        completion_tokens=len(OUTPUT_IDS),
        cached_tokens=2,
    )
    return smg_pb2.GenerateResponse(complete=complete)


async def body_of(messages: Messages, fields: dict[str, Any], decode: Callable[[Any], str] = REFERENCE.decode) -> bytes:
    async def serve(request: Any, context: Any) -> AsyncIterator[Any]:
        async for message in messages(request):
            yield message

    _, service, method = SmgWire().method.split("/")
    handler = grpc.unary_stream_rpc_method_handler(
        serve,
        request_deserializer=smg_pb2.GenerateRequest.FromString,
        response_serializer=smg_pb2.GenerateResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    engine = SGLangGrpc(Upstreams([f"127.0.0.1:{port}"]), SmgWire())
    try:
        response: Any = await generate(engine, PROMPT, fields, decode, session="s", trace={})
        if hasattr(response, "body_iterator"):
            return b"".join([part async for part in response.body_iterator])
        return bytes(response.body)
    finally:
        await engine.aclose()
        await server.stop(0)


def test_an_answer_has_text_ids_and_counts() -> None:
    answer = json.loads(asyncio.run(body_of(one_by_one, {"sampling_params": {"max_new_tokens": 20}})))
    about = answer.pop("meta_info")
    assert answer == {"text": OUTPUT, "output_ids": OUTPUT_IDS}
    assert (about["prompt_tokens"], about["cached_tokens"]) == (3, 2)
    assert (about["completion_tokens"], about["finish_reason"]) == (len(OUTPUT_IDS), {"type": "length"})


def test_a_stream_is_cumulative_and_never_ends_in_half_a_character() -> None:
    lines = asyncio.run(body_of(one_by_one, {"stream": True})).decode().split("\n\n")
    assert lines.pop() == ""
    assert lines.pop() == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [len(event["output_ids"]) for event in events] == [*range(1, len(OUTPUT_IDS) + 1), len(OUTPUT_IDS)]
    for event in events:
        assert OUTPUT.startswith(event["text"])
        assert not event["text"].endswith(UNFINISHED)
    assert events[-1]["text"] == OUTPUT


def outputs(family: str) -> tuple[list[int], Callable[[Any], str]]:
    """IDs of a text and of anything, and their decoder."""
    reference = family_reference(family)
    rng = random.Random(7)
    anything = [rng.randrange(min(reference.id_limit, 30_000)) for _ in range(600)]
    return reference.encode_text(sample_text(1_500, 3)).tolist() + anything, reference.decode


@pytest.mark.parametrize("family", ["gpt2-novelai", "mixtral-8x22b-v0.1"])
def test_an_output_grows_to_the_decoding_of_all_its_ids(family: str) -> None:
    ids, decode = outputs(family)
    text_ids = ids[:-600]
    for whole in (ids, text_ids):
        output, shown = Output(decode), ""
        for each in whole:
            output.extend([each])
            assert output.text.startswith(shown)
            event = json.loads(output.event({}).removeprefix(b"data: "))
            assert event == {"text": output.text, "output_ids": output.ids, "meta_info": {}}
            shown = output.text
        if whole is text_ids:
            assert output.text == decode(np.array(whole, dtype=np.uint32))
        output.finish()
        assert output.text == decode(np.array(whole, dtype=np.uint32))


@pytest.mark.parametrize("skipped", [False, True], ids=["tokens of text", "tokens that aren't shown"])
@pytest.mark.parametrize("stream", [True, False])
def test_the_work_for_a_stream_grows_with_its_tokens(stream: bool, skipped: bool) -> None:
    ids = [each for each in outputs("gpt2-novelai")[0] if not skipped] or [50_256] * 1_500
    decoded: list[int] = []

    def decode(part: Any) -> str:
        decoded.append(len(part))
        return REFERENCE.decode(part, skip_special_tokens=skipped)

    def work(tokens: int) -> int:
        async def many(request: Any) -> AsyncIterator[Any]:
            for at in range(tokens):
                yield smg_pb2.GenerateResponse(chunk=smg_pb2.GenerateStreamChunk(token_ids=[ids[at % len(ids)]]))
            yield finished(len(request.tokenized.input_ids))

        decoded.clear()
        asyncio.run(body_of(many, {"stream": stream}, decode))
        return sum(decoded)

    assert work(1_200) <= 5 * work(300) > 0


def test_a_stream_that_breaks_off_says_so_in_its_last_event() -> None:
    lines = asyncio.run(body_of(cut_short, {"stream": True})).decode().split("\n\n")
    assert json.loads(lines[-3].removeprefix("data: "))["error"]["code"] == "engine.cut"


@pytest.mark.parametrize(("messages", "code"), [(cut_short, "engine.cut"), (lying, "engine.prompt_tokens_mismatch")])
def test_what_the_engine_gets_wrong_is_an_error_with_a_code(messages: Messages, code: str) -> None:
    with pytest.raises(EngineFault) as caught:
        asyncio.run(body_of(messages, {}))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"sampling_params": 3}, "generate.sampling"),
        ({"sampling_params": {"no_such": 1}}, "generate.sampling"),
        ({"sampling_params": {"temperature": "hot"}}, "generate.sampling"),
        ({"sampling_params": {"temperature": -1}}, "engine.sampling"),
        ({"stream": "yes"}, "generate.types"),
        ({"rid": 7}, "generate.types"),
    ],
)
def test_what_the_client_gets_wrong_reaches_no_engine(fields: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(body_of(one_by_one, fields))
    assert caught.value.code == code


def test_stop_may_be_one_text_or_several() -> None:
    assert sampling_of({"sampling_params": {"stop": "a"}}).stop == ("a",)
    assert sampling_of({"sampling_params": {"stop": ["a", "b"], "stop_token_ids": [1]}}).stop == ("a", "b")
    assert sampling_of({"sampling_params": {"stop": None}}).stop == ()
    assert sampling_of({}).max_new_tokens is None
