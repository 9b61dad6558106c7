"""The tokenizer that an SGLang worker serves by, from the worker itself: GetTokenizer of its SMG gRPC service.

Guarantees: what came is whole (the worker's SHA-256 over the stream holds); of the zip only the tokenizer.json and its
companions are read, each bounded; everything is over after `GET_S`. Nothing vouches for the worker: it is asked in the
clear, inside the cluster.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Iterator

import grpc

from ..core.errors import InvalidRequest, SourceUnavailable
from ..engine.wire import smg_pb2
from ..sources import TokenizerFiles, is_companion
from ..sources.archives import UNREADABLE, read_zip_member
from ..sources.bounds import check_size
from ..sources.files import TOKENIZER

METHOD = "/sglang.grpc.scheduler.SglangScheduler/GetTokenizer"
GET_S = 120.0
MAX_MEMBERS = 1_000
_WORKER = re.compile(r"sglang-grpc://(?P<target>(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5})")


def is_worker(spec: str) -> bool:
    return spec.startswith("sglang-grpc:")


def load_from_worker(spec: str, *, timeout_s: float = GET_S) -> TokenizerFiles:
    """`sglang-grpc://HOST:PORT`. Raises the codes of `sources`."""
    match = _WORKER.fullmatch(spec)
    if match is None:
        raise InvalidRequest("source.bad_spec", "expected sglang-grpc://HOST:PORT", spec=spec)
    options = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))
    with grpc.insecure_channel(match["target"], options=options) as channel:
        call = channel.unary_stream(
            METHOD,
            request_serializer=smg_pb2.GetTokenizerRequest.SerializeToString,
            response_deserializer=smg_pb2.GetTokenizerChunk.FromString,
        )
        try:
            chunks = call(smg_pb2.GetTokenizerRequest(), timeout=timeout_s, wait_for_ready=True)
            archive = _whole(chunks, spec)
        except grpc.RpcError as error:
            reason = f"{error.code().name}: {error.details()}"[:300] if isinstance(error, grpc.Call) else "no answer"
            raise SourceUnavailable("source.fetch_failed", f"{spec} gives no tokenizer: {reason}", spec=spec) from error
    return TokenizerFiles(_members(archive, spec), spec)


def _whole(chunks: Iterator[smg_pb2.GetTokenizerChunk], spec: str) -> bytes:
    """Up to the chunk with the digest, which ends the stream."""
    archive = bytearray()
    for chunk in chunks:
        archive += chunk.data
        check_size(len(archive), spec)
        if not chunk.sha256:
            continue
        if hashlib.sha256(archive).hexdigest() != chunk.sha256.lower():
            raise SourceUnavailable("source.digest_mismatch", f"{spec} sent other bytes than it names", spec=spec)
        return bytes(archive)
    raise SourceUnavailable("source.fetch_failed", f"{spec} ended without a digest", spec=spec)


def _members(archive: bytes, spec: str) -> dict[str, bytes]:
    """By exact names, so a member with another path is never looked at; a name that stands twice is refused."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            names = opened.namelist()
        if len(names) > MAX_MEMBERS or len(set(names)) != len(names):
            raise SourceUnavailable("source.bad_archive", f"{spec} sent a zip with too many members or a name twice")
        if TOKENIZER not in names:
            raise SourceUnavailable("source.not_found", f"{spec} has no {TOKENIZER}", spec=spec)
        wanted = [name for name in names if name == TOKENIZER or is_companion(name)]
        return {name: read_zip_member(io.BytesIO(archive), name) for name in wanted}
    except (*UNREADABLE, OSError) as error:
        raise SourceUnavailable("source.bad_archive", f"can't read the zip of {spec}: {error}"[:300]) from error
