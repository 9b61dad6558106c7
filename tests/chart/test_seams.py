"""The program that `helm test` runs, against a real tier: content with exact IDs, and not with planted wrong ones."""

from __future__ import annotations

import dataclasses
import random
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from servers import GrpcTier, grpc_tier

FOLDER = Path(__file__).parents[2] / "helm" / "toktier-operator" / "files" / "test"
SEAMS = runpy.run_path(str(FOLDER / "seams.py"))


@pytest.fixture(scope="module")
def tier() -> Iterator[GrpcTier]:
    with grpc_tier("qwen-3") as found:
        yield found


def ran(tier: GrpcTier, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("ADDRESS", tier.address)
    monkeypatch.setitem(SEAMS["main"].__globals__, "MOST_CUTS", 4)
    code: int = SEAMS["main"]()
    return code


def test_a_right_tier_passes(tier: GrpcTier, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert ran(tier, monkeypatch) == 0
    told = capsys.readouterr().out
    assert "all exact" in told
    for name in [*SEAMS["FORMS"], *SEAMS["RUNS"]]:
        assert repr(name) in told


def test_one_wrong_id_fails_it(tier: GrpcTier, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    right = tier.sessions.append

    def wrong(*arguments: Any, **more: Any) -> Any:
        patch = right(*arguments, **more)
        ids = patch.ids.copy()
        ids[-1:] ^= 1
        return dataclasses.replace(patch, ids=ids)

    monkeypatch.setattr(tier.sessions, "append", wrong)
    assert ran(tier, monkeypatch) == 1
    assert "WRONG IDS" in capsys.readouterr().out


def test_pieces_make_up_the_text_and_cut_it_everywhere() -> None:
    splits = SEAMS["splits"]
    for text in [*SEAMS["FORMS"].values(), *SEAMS["RUNS"].values()]:
        found = splits(text, random.Random(1))
        assert all("".join(pieces) == text and all(pieces) for pieces in found)
        if len(text) <= SEAMS["MOST_CUTS"]:
            assert {len(pieces[0]) for pieces in found if len(pieces) == 2} >= set(range(1, len(text)))


@pytest.mark.parametrize("status", [200, 500])
def test_the_operators_health_is_asked_for(status: int) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        environment = {"SERVICE": "my-op", "MY_OP_SERVICE_HOST": "127.0.0.1", "PORT": str(server.server_port)}
        done = subprocess.run([sys.executable, str(FOLDER / "health.py")], env=environment, capture_output=True)
    finally:
        server.shutdown()
        server.server_close()
    assert (done.returncode == 0) is (status == 200)


def test_the_test_pod_sends_it_where_it_is_told(rendered: Callable[..., Any], one_of: Callable[..., Any]) -> None:
    pod = one_of(rendered({"tests": {"toktier": "chat", "namespace": "team-a"}}), "Pod")
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python3", "/test/seams.py"]
    assert {"name": "ADDRESS", "value": "chat.team-a.svc:50051"} in container["env"]
    found = rendered({"tests": {"toktier": "chat"}})
    maps = {each["metadata"]["name"]: each for each in found if each["kind"] == "ConfigMap"}
    files = maps[one_of(found, "Pod")["spec"]["volumes"][0]["configMap"]["name"]]["data"]
    assert files["seams.py"] == (FOLDER / "seams.py").read_text()
