"""What the plugin's tests build with: SGLang's side of it without SGLang, and a server that stands before a real tier.

`Loaded` has the part of a transformers tokenizer that SGLang uses, over the real `tokenizers` library; the true one is
met in e2e.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
from tokenizers import Tokenizer

from servers import GrpcTier
from toktier_sglang import probes
from toktier_sglang.bridge import Bridge
from toktier_sglang.counts import Counts
from toktier_sglang.own import OwnTokenizer
from toktier_sglang.settings import PluginSettings
from toktier_tier.transport.interface import METHODS, SERVICE, path_of
from toktier_tier.transport.messages import MESSAGE_LIMITS, bytes_of, ids_of
from toktier_tier.transport.v1 import toktier_pb2 as pb
from workshop import family_data

FAMILY = "gpt2-novelai"
WAIT_S = 60.0


class Loaded:
    """A loaded tokenizer.json; `calls` counts what was asked of it."""

    is_fast = True

    def __init__(self, folder: Path, data: bytes, *, loaded: bytes | None = None) -> None:
        (folder / "tokenizer.json").write_bytes(data)
        self.name_or_path = str(folder)
        self.backend_tokenizer = Tokenizer.from_str((loaded or data).decode())
        self.calls: Counter[str] = Counter()

    def __call__(self, texts: list[str]) -> dict[str, list[list[int]]]:
        return {"input_ids": [self.encode(text) for text in texts]}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.calls["encode"] += 1
        ids: list[int] = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def get_vocab(self) -> dict[str, int]:
        vocab: dict[str, int] = self.backend_tokenizer.get_vocab()
        return vocab


def with_bos(data: bytes) -> bytes:
    """The same tokenizer with its first added token before every text that is encoded with special tokens."""
    document = json.loads(data)
    token = document["added_tokens"][0]
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": token["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            token["content"]: {"id": token["content"], "ids": [token["id"]], "tokens": [token["content"]]}
        },
    }
    return json.dumps(document).encode()


class Between:
    """A gRPC server that hands every call on to a tier, and may be late or lie about the answer.

    delay_s   before each answer; alter: (method, patch) changes a patch in place; seen: (method, request) in order
    """

    def __init__(self, upstream: str, address: str) -> None:
        self.delay_s = 0.0
        self.alter: Callable[[str, pb.Patch], None] | None = None
        self.seen: list[tuple[str, Any]] = []
        self.metadata: list[dict[str, str]] = []
        self._channel = grpc.insecure_channel(upstream, options=MESSAGE_LIMITS)
        self.address = address
        self.serve()

    def serve(self) -> None:
        """Also again, at the same address."""
        self._server = grpc.server(ThreadPoolExecutor(40), options=MESSAGE_LIMITS)
        handlers = {method.name: self._handler(method) for method in METHODS}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = self._server.add_insecure_port(self.address)
        if not self.address.startswith("unix:"):
            self.address = f"127.0.0.1:{port}"
        self._server.start()

    def stop_serving(self) -> None:
        self._server.stop(0).wait()

    def _handler(self, method: Any) -> Any:
        ask = self._channel.unary_unary(
            path_of(method.name),
            request_serializer=lambda data: data,
            response_deserializer=lambda data: data,
        )
        request_type, answer_type = getattr(pb, method.input_type.name), getattr(pb, method.output_type.name)

        def answer(data: bytes, context: grpc.ServicerContext) -> bytes:
            self.seen.append((method.name, request_type.FromString(data)))
            self.metadata.append({key: str(value) for key, value in context.invocation_metadata()})
            time.sleep(self.delay_s)
            try:
                found = answer_type.FromString(ask(data, timeout=30))
            except grpc.RpcError as error:
                context.set_trailing_metadata(error.trailing_metadata())
                context.abort(error.code(), error.details())
            if self.alter is not None and method.name in ("Encode", "OpenSession", "Append", "Edit"):
                self.alter(method.name, found.patch)
            return found.SerializeToString()  # type: ignore[no-any-return]

        return grpc.unary_unary_rpc_method_handler(answer)

    def methods(self) -> list[str]:
        return [method for method, _ in self.seen]

    def stop(self) -> None:
        self.stop_serving()
        self._channel.close()


@contextmanager
def between(tier: GrpcTier, address: str = "127.0.0.1:0") -> Iterator[Between]:
    server = Between(tier.address, address)
    try:
        yield server
    finally:
        server.stop()


def lie(method: str, patch: pb.Patch) -> None:
    """Another ID of the vocabulary in the last place."""
    ids = ids_of(patch.ids).copy()
    if len(ids):
        ids[-1] = 5 if ids[-1] != 5 else 6
        patch.ids = bytes_of(ids)


@contextmanager
def bridge(
    folder: Path, address: str, *, loaded: Loaded | None = None, wait: bool = True, points: int = 8, **settings: Any
) -> Iterator[Bridge]:
    """Started, and waited for until it is on or off. `points`: how many texts of code points are compared first."""
    settings = {"min_chars": 1, "shadow_rate": 0.0, "timeout_s": 10.0, **settings}
    own = OwnTokenizer(loaded or Loaded(folder, family_data(FAMILY)))
    found = Bridge(PluginSettings(address, **settings), own, Counts())
    every = list(probes.code_points())
    with mock.patch.object(probes, "code_points", return_value=every[:points]):
        found.start()
        try:
            if wait:
                until(lambda: found.on or found.off is not None)
            yield found
        finally:
            found.close()


def until(holds: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + wait_s
    while not holds():
        assert time.monotonic() < deadline, "it didn't happen in time"
        threading.Event().wait(0.01)
