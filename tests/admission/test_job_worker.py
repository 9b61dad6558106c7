"""The tokenizer of an SGLang worker, over its own gRPC call, from servers that keep to it and servers that don't."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from toktier_tier.admission_job.worker import METHOD, load_from_worker
from toktier_tier.core.errors import TierError
from toktier_tier.engine.wire import smg_pb2
from toktier_tier.sources import bounds

TOKENIZER = b'{"version": "1.0"}' * 20_000
FILES = {
    "tokenizer.json": TOKENIZER,
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "generation_config.json": b"{}",
    "vocab.json": b"{}",
    "../config.json": b"outside",
    "/etc/config.json": b"outside",
}


class Worker:
    """Answers GetTokenizer with `chunks`."""

    def __init__(self) -> None:
        self.chunks: list[tuple[bytes, str]] = []
        self.status: grpc.StatusCode | None = None
        service, _, method = METHOD.strip("/").partition("/")
        handler = grpc.unary_stream_rpc_method_handler(
            self._answer,
            request_deserializer=smg_pb2.GetTokenizerRequest.FromString,
            response_serializer=smg_pb2.GetTokenizerChunk.SerializeToString,
        )
        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        self.spec = f"sglang-grpc://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _answer(self, request: Any, context: grpc.ServicerContext) -> Iterator[smg_pb2.GetTokenizerChunk]:
        for data, digest in self.chunks:
            yield smg_pb2.GetTokenizerChunk(data=data, sha256=digest)
        if self.status is not None:
            context.abort(self.status, "no tokenizer path")

    def give(self, archive: bytes, digest: str | None = None) -> None:
        parts = [archive[at : at + 65_536] for at in range(0, len(archive), 65_536)]
        last = hashlib.sha256(archive).hexdigest() if digest is None else digest
        self.chunks = [*((part, "") for part in parts[:-1]), (parts[-1], last)]

    def stop(self) -> None:
        self._server.stop(None)


@pytest.fixture
def worker() -> Iterator[Worker]:
    found = Worker()
    yield found
    found.stop()


def zip_of(files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def code_of(spec: str) -> str:
    with pytest.raises(TierError) as caught:
        load_from_worker(spec, timeout_s=5.0)
    return caught.value.code


def test_tokenizer_and_companions_come_and_nothing_else(worker: Worker) -> None:
    worker.give(zip_of(FILES))
    assert len(worker.chunks) > 3
    found = load_from_worker(worker.spec)
    assert found.files == {name: FILES[name] for name in list(FILES)[:3]}
    worker.give(zip_of(FILES, zipfile.ZIP_DEFLATED))
    assert load_from_worker(worker.spec).sha256 == found.sha256


def test_what_came_is_whole_or_refused(worker: Worker) -> None:
    archive = zip_of(FILES)
    worker.give(archive, "0" * 64)
    assert code_of(worker.spec) == "source.digest_mismatch"
    worker.give(archive, "")
    assert code_of(worker.spec) == "source.fetch_failed"
    worker.give(archive)
    del worker.chunks[1]
    assert code_of(worker.spec) == "source.digest_mismatch"
    worker.chunks = []
    assert code_of(worker.spec) == "source.fetch_failed"


def test_a_worker_that_refuses_is_quoted(worker: Worker) -> None:
    worker.status = grpc.StatusCode.FAILED_PRECONDITION
    with pytest.raises(TierError, match="no tokenizer path") as caught:
        load_from_worker(worker.spec)
    assert caught.value.code == "source.fetch_failed"


def test_a_worker_that_is_not_there_is_not_waited_for_without_end() -> None:
    with pytest.raises(TierError) as caught:
        load_from_worker("sglang-grpc://127.0.0.1:9", timeout_s=0.5)
    assert caught.value.code == "source.fetch_failed"


def test_a_zip_that_is_none_or_lacks_the_tokenizer_is_told(worker: Worker) -> None:
    worker.give(b"PK but not a zip")
    assert code_of(worker.spec) == "source.bad_archive"
    worker.give(zip_of({"tokenizer.model": b"x"}))
    assert code_of(worker.spec) == "source.not_found"
    damaged = bytearray(zip_of(FILES))
    damaged[100] ^= 1
    worker.give(bytes(damaged))
    assert code_of(worker.spec) == "source.bad_archive"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_stands_twice_and_a_crowd_are_refused(worker: Worker) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("tokenizer.json", b"one")
        archive.writestr("tokenizer.json", b"two")
    worker.give(stream.getvalue())
    assert code_of(worker.spec) == "source.bad_archive"
    worker.give(zip_of({"tokenizer.json": b"{}", **{str(at): b"" for at in range(1_000)}}))
    assert code_of(worker.spec) == "source.bad_archive"


def test_bombs_are_bounded(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_MEMBER_BYTES", 1 << 20)
    worker.give(zip_of({"tokenizer.json": bytes(32 << 20)}, zipfile.ZIP_DEFLATED))
    assert code_of(worker.spec) == "source.too_large"
    worker.give(bytes(2 << 20))
    assert code_of(worker.spec) == "source.too_large"


@pytest.mark.parametrize(
    "spec", ["sglang-grpc://", "sglang-grpc://host", "sglang-grpc://unix:/x:1", "sglang-grpc://a/b:1"]
)
def test_what_is_no_address_is_no_specification(spec: str) -> None:
    assert code_of(spec) == "source.bad_spec"
