"""`/generate` where the engine behind the tier speaks gRPC: SGLang's form of answer, made from its output IDs.

Guarantees: the text of an answer is the reference's decoding of the output IDs; streams are cumulative, as SGLang's
are by default, and never end in half a character; closing the stream aborts the request in the engine. The work for a
stream, but for copying what each event repeats, grows with its tokens (`output.py`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import numpy as np
from starlette.responses import JSONResponse, Response

from ..core.errors import InvalidRequest, TierError
from ..engine.ids import CheckedIds
from ..engine.sampling import Sampling
from ..engine.sglang_grpc import SGLangGrpc
from ..engine.wires import Delta, Finished
from .output import Decode, Output
from .streams import ClosingStream

_FIELDS = {field.name for field in dataclasses.fields(Sampling)}
_LISTS = ("stop", "stop_token_ids")


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
    records = engine.generate(ids, sampling, session=session, request_id=rid, trace=trace)
    if stream:
        events = _events(records, Output(decode), len(ids))
        first = await anext(events)  # what fails before anything came is an error of its own
        return ClosingStream(_all(first, events), events.aclose, media_type="text/event-stream")
    output: list[int] = []
    about: dict[str, Any] = {}
    async with aclosing(records):
        async for record in records:
            if isinstance(record, Delta):
                output.extend(record.ids)
            else:
                about = _about(record)
    return JSONResponse({"text": decode(np.array(output, dtype=np.uint32)), "output_ids": output, "meta_info": about})


async def _all(first: bytes, events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(events):
        yield first
        try:
            async for event in events:
                yield event
        except TierError as error:
            document = {"error": {"message": error.message, "code": error.code}}
            yield b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"


async def _events(
    records: AsyncGenerator[Delta | Finished, None], output: Output, prompt_tokens: int
) -> AsyncGenerator[bytes, None]:
    async with aclosing(records):
        async for record in records:
            if isinstance(record, Delta):
                output.extend(record.ids)
                counts = {"prompt_tokens": prompt_tokens, "completion_tokens": len(output.ids), "finish_reason": None}
                yield output.event(counts)
            else:
                output.finish()
                yield output.event(_about(record))


def _about(end: Finished) -> dict[str, Any]:
    return {
        "prompt_tokens": end.prompt_tokens,
        "completion_tokens": end.completion_tokens,
        "cached_tokens": end.cached_tokens,
        "finish_reason": {"type": end.reason},
    }
