"""What SGLang's two gRPC services say, without the network: requests as bytes, and replies read message by message.

    SmgWire      sglang.grpc.scheduler.SglangScheduler (--smg-grpc-mode): chunks of new IDs, then `complete`, which
                 repeats the last chunk's IDs
    NativeWire   sglang.runtime.v1.SglangService (--grpc-port): each message holds all IDs so far, or, where the server
                 runs with --incremental-streaming-output, the new ones; which one it is shows in `completion_tokens`

Guarantee of both readers: the `Delta`s joined are the output, each ID once, and one `Finished` ends them; anything else
raises `EngineFault` (`engine.bad_reply`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.message import DecodeError

from ..core.errors import EngineFault, InvalidRequest
from .ids import CheckedIds
from .sampling import Sampling
from .wire import native_pb2, smg_pb2


@dataclass(frozen=True, slots=True)
class Delta:
    """New output IDs, at least one."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an output: why ("stop", "length", "abort", ...) and the engine's counts."""

    reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Reader(Protocol):
    """Reads one reply; not to be used after `Finished`."""

    def read(self, message: bytes) -> list[Delta | Finished]: ...


class Wire(Protocol):
    @property
    def method(self) -> str:
        """The full path of the generating RPC."""

    def request(
        self, ids: CheckedIds, sampling: Sampling, request_id: str, session: str, trace: Mapping[str, str]
    ) -> bytes: ...

    def metadata(self, trace: Mapping[str, str]) -> tuple[tuple[str, str], ...]: ...

    def reader(self) -> Reader: ...


class SmgWire:
    method = "/sglang.grpc.scheduler.SglangScheduler/Generate"

    def request(
        self, ids: CheckedIds, sampling: Sampling, request_id: str, session: str, trace: Mapping[str, str]
    ) -> bytes:
        params = smg_pb2.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            repetition_penalty=sampling.repetition_penalty,
            max_new_tokens=sampling.max_new_tokens,
            stop=sampling.stop,
            stop_token_ids=sampling.stop_token_ids,
            skip_special_tokens=sampling.skip_special_tokens,
            spaces_between_special_tokens=sampling.spaces_between_special_tokens,
            regex=sampling.regex,
            json_schema=sampling.json_schema,
            ebnf_grammar=sampling.ebnf,
            structural_tag=sampling.structural_tag,
            n=1,
            min_new_tokens=sampling.min_new_tokens,
            ignore_eos=sampling.ignore_eos,
            no_stop_trim=sampling.no_stop_trim,
            stream_interval=sampling.stream_interval,
            logit_bias=sampling.logit_bias,
        )
        tokenized = smg_pb2.TokenizedInput(input_ids=ids.array.tolist())
        return smg_pb2.GenerateRequest(
            request_id=request_id, tokenized=tokenized, sampling_params=params, logprob_start_len=-1, stream=True
        ).SerializeToString()

    def metadata(self, trace: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        return tuple(trace.items())

    def reader(self) -> Reader:
        return _SmgReader()


class _SmgReader:
    def __init__(self) -> None:
        self._chunked = False

    def read(self, message: bytes) -> list[Delta | Finished]:
        try:
            response = smg_pb2.GenerateResponse.FromString(message)
        except DecodeError as error:
            raise EngineFault("engine.bad_reply", "a message that isn't the service's") from error
        if response.HasField("chunk"):
            if response.chunk.index != 0:
                raise EngineFault("engine.bad_reply", "a second output, which wasn't asked for")
            self._chunked = True
            return _delta(response.chunk.token_ids)
        if not response.HasField("complete"):
            raise EngineFault("engine.bad_reply", "a message with neither IDs nor an end")
        end = response.complete
        finished = Finished(end.finish_reason or "stop", end.prompt_tokens, end.completion_tokens, end.cached_tokens)
        return [*([] if self._chunked else _delta(end.output_ids)), finished]


class NativeWire:
    method = "/sglang.runtime.v1.SglangService/Generate"

    def request(
        self, ids: CheckedIds, sampling: Sampling, request_id: str, session: str, trace: Mapping[str, str]
    ) -> bytes:
        """Raises `InvalidRequest` (`engine.sampling_unsupported`) for what this service has no field for."""
        missing = {
            "ebnf": sampling.ebnf is not None,
            "structural_tag": sampling.structural_tag is not None,
            "logit_bias": bool(sampling.logit_bias),
            "no_stop_trim": sampling.no_stop_trim,
            "stream_interval": sampling.stream_interval is not None,
        }
        for name, wanted in missing.items():
            if wanted:
                raise InvalidRequest("engine.sampling_unsupported", f"SGLang's native gRPC has no {name}", field=name)
        params = native_pb2.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            repetition_penalty=sampling.repetition_penalty,
            max_new_tokens=sampling.max_new_tokens,
            min_new_tokens=sampling.min_new_tokens,
            stop=sampling.stop,
            stop_token_ids=sampling.stop_token_ids,
            ignore_eos=sampling.ignore_eos,
            n=1,
            json_schema=sampling.json_schema,
            regex=sampling.regex,
        )
        return native_pb2.GenerateRequest(
            input_ids=ids.array.tolist(),
            sampling_params=params,
            stream=True,
            return_logprob=False,
            top_logprobs_num=0,
            logprob_start_len=-1,
            rid=request_id,
            routing_key=session or None,
            trace_headers=dict(trace),
        ).SerializeToString()

    def metadata(self, trace: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        return ()

    def reader(self) -> Reader:
        return _NativeReader()


class _NativeReader:
    def __init__(self) -> None:
        self._seen = 0

    def read(self, message: bytes) -> list[Delta | Finished]:
        try:
            response = native_pb2.GenerateResponse.FromString(message)
        except DecodeError as error:
            raise EngineFault("engine.bad_reply", "a message that isn't the service's") from error
        meta = response.meta_info
        completed = _number(meta.get("completion_tokens"))
        count, known = len(response.output_ids), 0
        if completed is None or completed != self._seen + count:
            known = self._seen
            if count < known:
                raise EngineFault("engine.bad_reply", "an output that shrinks")
        ids = response.output_ids[known:]  # of a cumulative message only what is new becomes Python's
        self._seen += len(ids)
        out = _delta(ids)
        if response.finished:
            prompt = _number(meta.get("prompt_tokens"))
            if prompt is None:
                raise EngineFault("engine.bad_reply", "an end without a count of the prompt's tokens")
            cached = _number(meta.get("cached_tokens")) or 0
            out.append(Finished(_reason(meta.get("finish_reason")), prompt, completed or self._seen, cached))
        return out


def _delta(ids: Iterable[int]) -> list[Delta | Finished]:
    new = tuple(ids)
    return [Delta(new)] if new else []


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isascii() and value.isdigit() else None


def _reason(value: str | None) -> str:
    """SGLang writes {"type": "length", "length": 8}."""
    try:
        parsed = json.loads(value or "null")
    except ValueError:
        return value or "stop"
    if isinstance(parsed, dict):
        parsed = parsed.get("type")
    return parsed if isinstance(parsed, str) and parsed else "stop"
