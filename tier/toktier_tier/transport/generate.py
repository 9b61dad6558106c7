"""`/generate` where the engine behind the tier speaks gRPC: SGLang's form of answer, made from its output IDs.

Guarantees: the text of an answer is the reference's decoding of the output IDs; streams are cumulative, as SGLang's
are by default, and never end in half a character; closing the stream aborts the request in the engine.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import numpy as np
from starlette.responses import JSONResponse, Response

from ..core.errors import InvalidRequest, TierError
from ..engine.ids import CheckedIds
from ..engine.sampling import Sampling
from ..engine.sglang_grpc import SGLangGrpc
from ..engine.wires import Delta, Finished
from .streams import ClosingStream

_FIELDS = {field.name for field in dataclasses.fields(Sampling)}
_LISTS = ("stop", "stop_token_ids")
UNFINISHED = "\ufffd"

Decode = Callable[[Any], str]


def sampling_of(fields: Mapping[str, Any]) -> Sampling:
    """The body's `sampling_params`. Raises `InvalidRequest` (`generate.sampling`, `engine.sampling`)."""
    given = fields.get("sampling_params") or {}
    if not isinstance(given, Mapping) or not _FIELDS.issuperset(given):
        raise InvalidRequest("generate.sampling", "sampling_params is an object of parameters that are known")
    found = dict(given)
    for name in _LISTS:
        if name in found:
            value = found[name]
            found[name] = tuple(value) if isinstance(value, list) else () if value is None else (value,)
    try:
        return Sampling(**found)
    except (TypeError, ValueError) as error:
        raise InvalidRequest("generate.sampling", "a sampling parameter is of another type") from error


async def generate(
    engine: SGLangGrpc,
    ids: CheckedIds,
    fields: Mapping[str, Any],
    decode: Decode,
    *,
    session: str,
    trace: Mapping[str, str],
) -> Response:
    """One answer, or a stream of them where the body says so."""
    sampling = sampling_of(fields)
    rid, stream = fields.get("rid") or "", fields.get("stream", False)
    if not isinstance(rid, str) or not isinstance(stream, bool):
        raise InvalidRequest("generate.types", "rid is a text, stream true or false")
    answers = _answers(engine, ids, sampling, decode, session=session, request_id=rid, trace=trace)
    if stream:
        first = await anext(answers)  # what fails before anything came is an error of its own
        return ClosingStream(_events(first, answers), answers.aclose, media_type="text/event-stream")
    last: dict[str, Any] = {}
    async with aclosing(answers):
        async for answer in answers:
            last = answer
    return JSONResponse(last)


async def _events(first: dict[str, Any], answers: AsyncGenerator[dict[str, Any], None]) -> AsyncIterator[bytes]:
    async with aclosing(answers):
        yield _event(first)
        try:
            async for answer in answers:
                yield _event(answer)
        except TierError as error:
            yield _event({"error": {"message": error.message, "code": error.code}})
        yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


async def _answers(
    engine: SGLangGrpc,
    ids: CheckedIds,
    sampling: Sampling,
    decode: Decode,
    *,
    session: str,
    request_id: str,
    trace: Mapping[str, str],
) -> AsyncGenerator[dict[str, Any], None]:
    output: list[int] = []
    records = engine.generate(ids, sampling, session=session, request_id=request_id, trace=trace)
    async with aclosing(records):
        async for record in records:
            if isinstance(record, Delta):
                output.extend(record.ids)
                about: dict[str, Any] = {
                    "prompt_tokens": len(ids),
                    "completion_tokens": len(output),
                    "finish_reason": None,
                }
                yield _answer(decode(np.array(output, dtype=np.uint32)).rstrip(UNFINISHED), output, about)
                continue
            assert isinstance(record, Finished)
            about = {
                "prompt_tokens": record.prompt_tokens,
                "completion_tokens": record.completion_tokens,
                "cached_tokens": record.cached_tokens,
                "finish_reason": {"type": record.reason},
            }
            yield _answer(decode(np.array(output, dtype=np.uint32)), output, about)


def _answer(text: str, output: list[int], about: Mapping[str, Any]) -> dict[str, Any]:
    return {"text": text, "output_ids": list(output), "meta_info": dict(about)}
