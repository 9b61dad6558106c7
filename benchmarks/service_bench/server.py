"""The measured process: the tier's gRPC server, and a bare echo of bytes, each on a port of its own.

Started by `__main__`; prints one line of JSON with both ports, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path
from typing import Any

import grpc

from catalog import path_of
from toktier_tier import SessionService, open_tokenizer
from toktier_tier.sessions.registry import Registry, Served
from toktier_tier.telemetry import Telemetry
from toktier_tier.transport.grpc_server import OPTIONS, GrpcServer
from toktier_tier.transport.servicer import TokenizerServicer
from toktier_tier.transport.work import Work

ECHO_METHOD = "/echo.Echo/Echo"


async def _echo(request: bytes, context: Any) -> bytes:
    """The first four bytes tell the size of the answer."""
    return _PAYLOAD[: int.from_bytes(request[:4], "little")]


_PAYLOAD = bytes(1 << 20)


class _Echo(grpc.GenericRpcHandler):
    _handler: Any = grpc.unary_unary_rpc_method_handler(_echo)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return self._handler if details.method == ECHO_METHOD else None


async def serve(family: str, compiled_dir: Path, budget_s: float) -> None:
    tokenizer = open_tokenizer(path_of(family), compiled_dir=compiled_dir, budget_s=budget_s)
    sessions = SessionService(tokenizer)
    registry = Registry([Served(family, (), tokenizer, sessions)])
    work, telemetry = Work(), Telemetry()
    tier = GrpcServer(TokenizerServicer(registry, work, telemetry), "127.0.0.1:0")
    await tier.start()
    echo = grpc.aio.server(options=OPTIONS)
    echo.add_generic_rpc_handlers((_Echo(),))
    echo_port = echo.add_insecure_port("127.0.0.1:0")
    await echo.start()
    gc.collect()
    gc.freeze()
    print(json.dumps({"tier": tier.port, "echo": echo_port, "whole_form": tokenizer.whole is not None}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await tier.stop(1.0)
    await echo.stop(1.0)
    work.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
