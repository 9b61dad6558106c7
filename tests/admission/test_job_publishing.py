"""What a run found reaches the API server whole and once, whatever stops it on the way."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from toktier_tier.admission_job import publishing
from toktier_tier.admission_job.bundle import chunk_names, chunks_of, joined
from toktier_tier.admission_job.publishing import objects_of, publish
from toktier_tier.admission_job.request import AdmissionRequest, read_request
from toktier_tier.core.errors import TierError
from toktier_tier.kubernetes.api import ApiServer

Json = dict[str, Any]
BUNDLE = random.Random(5).randbytes(2_500_000)
DIGEST = hashlib.sha256(BUNDLE).hexdigest()
NAMES = [*chunk_names("qwen", DIGEST, 3), "qwen-run-7"]


class Api:
    """ConfigMaps of one namespace, as the API server keeps them; `trouble` statuses are answered first."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.made: list[str] = []
        self.trouble: list[int] = []
        self.lose_answers = 0
        self.pause_s = 0.0
        self.queries: list[str] = []
        self.on_post: Callable[[Json], None] = lambda document: None
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                found = api.objects.get(self.path.rpartition("/")[2])
                self._answer(200 if found else 404, found or {"message": "not found"})

            def do_POST(self) -> None:
                document = json.loads(self.rfile.read(int(self.headers["content-length"])))
                api.queries.append(self.path)
                api.on_post(document)
                time.sleep(api.pause_s)
                if api.trouble:
                    return self._answer(api.trouble.pop(0), {"message": "trouble"})
                name = document["metadata"]["name"]
                values = [base64.b64decode(value) for value in document.get("binaryData", {}).values()]
                size = sum(map(len, values)) + sum(len(value.encode()) for value in document.get("data", {}).values())
                if size > 1 << 20:
                    return self._answer(422, {"message": "Too long: may not be more than 1048576 bytes"})
                if name in api.objects:
                    return self._answer(409, {"message": "already exists"})
                api.objects[name] = document
                api.made.append(name)
                if api.lose_answers:
                    api.lose_answers -= 1
                    self.close_connection = True
                    return None
                return self._answer(201, document)

            def _answer(self, status: int, document: Json) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(publishing, "FIRST_WAIT_S", 0.01)
    found = Api()
    yield found
    found.close()


REQUEST_TEXT = json.dumps(
    {
        "id": "qwen-7",
        "name": "qwen",
        "namespace": "models",
        "uid": "uid-1",
        "run": 7,
        "source": {"path": "/source/tokenizer.json"},
        "policy": "none",
        "encoders": [],
        "budget_s": 1,
        "seed": 1,
    }
)


@pytest.fixture
def request_() -> AdmissionRequest:
    return read_request(REQUEST_TEXT)


def found(work: Path, *, bundle: bytes | None = BUNDLE, report: str = '{"format": "x"}', **more: Any) -> Path:
    work.mkdir(exist_ok=True)
    entry = None if bundle is None else {"sha256": hashlib.sha256(bundle).hexdigest()}
    (work / "result.json").write_text(json.dumps({"id": "qwen-7", "run": 7, "bundle": entry, **more}))
    if bundle is not None:
        (work / "bundle.tar.gz").write_bytes(bundle)
        (work / "report.json").write_text(report)
    return work


def send(request: AdmissionRequest, work: Path, api: Api, patience_s: float = 10.0) -> None:
    asyncio.run(publish(request, work, ApiServer(api.url), patience_s=patience_s))


def code_of(request: AdmissionRequest, work: Path, api: Api, patience_s: float = 0.3) -> str:
    with pytest.raises(TierError) as caught:
        send(request, work, api, patience_s)
    return caught.value.code


def test_chunks_come_first_and_the_result_last_and_all_belong_to_the_admission(
    api: Api, request_: AdmissionRequest, tmp_path: Path
) -> None:
    send(request_, found(tmp_path / "work"), api)
    assert api.made == NAMES
    folder = tmp_path / "chunks"
    folder.mkdir()
    for name in NAMES:
        document = api.objects[name]
        assert document["immutable"] is True
        assert document["metadata"]["namespace"] == "models"
        assert document["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "toktier.dev/v1alpha1",
                "kind": "TokenizerAdmission",
                "name": "qwen",
                "uid": "uid-1",
                "controller": False,
                "blockOwnerDeletion": False,
            }
        ]
        bundle = {"toktier.dev/bundle": DIGEST[:16]} if "binaryData" in document else {}
        assert document["metadata"]["labels"] == bundle | {
            "app.kubernetes.io/name": "toktier",
            "app.kubernetes.io/managed-by": "toktier-operator",
            "app.kubernetes.io/instance": "qwen",
            "app.kubernetes.io/component": "admission",
            "toktier.dev/admission": "qwen",
        }
        for key, value in document.get("binaryData", {}).items():
            (folder / key).write_bytes(base64.b64decode(value))
    assert joined(folder) == BUNDLE
    assert sorted(api.objects["qwen-run-7"]["data"]) == ["report.json", "result.json"]
    assert set(api.queries) == {"/api/v1/namespaces/models/configmaps?fieldManager=toktier-admission"}


def test_a_run_without_a_bundle_is_its_result_alone(api: Api, request_: AdmissionRequest, tmp_path: Path) -> None:
    send(request_, found(tmp_path, bundle=None, outcome="Failed"), api)
    assert api.made == ["qwen-run-7"]
    assert "report.json" not in api.objects["qwen-run-7"]["data"]


def test_a_report_that_is_too_large_is_packed_or_left_out(api: Api, request_: AdmissionRequest, tmp_path: Path) -> None:
    send(request_, found(tmp_path, report=" " * 2_000_000), api)
    assert list(api.objects["qwen-run-7"]["binaryData"]) == ["report.json.gz"]
    noise = random.Random(1).randbytes(2_000_000).hex()
    last = objects_of(request_, found(tmp_path, report=noise))[-1]
    assert "binaryData" not in last
    assert list(last["data"]) == ["result.json"]


def test_what_is_there_already_is_left_as_it_is(api: Api, request_: AdmissionRequest, tmp_path: Path) -> None:
    work = found(tmp_path, startedAt="then")
    send(request_, work, api)
    send(request_, found(tmp_path, startedAt="now"), api)  # another pod of the same Job
    assert api.made == NAMES
    assert "then" in api.objects["qwen-run-7"]["data"]["result.json"]


def test_other_bytes_under_a_chunks_name_are_an_error(api: Api, request_: AdmissionRequest, tmp_path: Path) -> None:
    work = found(tmp_path)
    send(request_, work, api)
    del api.objects["qwen-run-7"]
    api.objects[NAMES[1]]["binaryData"]["bundle.001"] = base64.b64encode(b"other").decode()
    assert code_of(request_, work, api) == "publish.conflict"
    assert "qwen-run-7" not in api.objects


def test_what_an_earlier_admission_of_that_name_left_is_waited_for(
    api: Api, request_: AdmissionRequest, tmp_path: Path
) -> None:
    work = found(tmp_path)
    send(request_, work, api)
    for document in api.objects.values():
        document["metadata"]["ownerReferences"][0]["uid"] = "uid-0"
    assert code_of(request_, work, api) == "publish.conflict"
    collecting = threading.Timer(0.3, api.objects.clear)
    collecting.start()
    send(request_, work, api)
    collecting.join()
    assert sorted(api.objects) == sorted(NAMES)
    assert {each["metadata"]["ownerReferences"][0]["uid"] for each in api.objects.values()} == {"uid-1"}


def test_an_object_that_is_being_deleted_is_waited_for(api: Api, request_: AdmissionRequest, tmp_path: Path) -> None:
    work = found(tmp_path)
    send(request_, work, api)
    api.objects[NAMES[0]]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    collecting = threading.Timer(0.3, lambda: api.objects.pop(NAMES[0]))
    collecting.start()
    send(request_, work, api)
    collecting.join()
    assert "deletionTimestamp" not in api.objects[NAMES[0]]["metadata"]


def test_trouble_and_lost_answers_are_waited_out(api: Api, request_: AdmissionRequest, tmp_path: Path) -> None:
    api.trouble = [503, 429, 401, 500, 504, 403, 404]  # the last two: an API server that has just started
    api.lose_answers = 2
    send(request_, found(tmp_path), api)
    assert api.made == NAMES


def test_a_refusal_and_an_absence_have_codes(api: Api, request_: AdmissionRequest, tmp_path: Path) -> None:
    work = found(tmp_path)
    api.trouble = [422]
    assert code_of(request_, work, api) == "publish.refused"
    api.trouble = [403] * 100
    assert code_of(request_, work, api) == "publish.refused"
    api.trouble = [503] * 100
    assert code_of(request_, work, api) == "publish.unreachable"
    api.close()
    assert code_of(request_, work, api) == "publish.unreachable"


def test_nothing_is_sent_of_a_run_that_is_not_whole(api: Api, request_: AdmissionRequest, tmp_path: Path) -> None:
    assert code_of(request_, tmp_path, api) == "publish.no_result"
    work = found(tmp_path)
    (work / "bundle.tar.gz").write_bytes(BUNDLE[:-1])
    assert code_of(request_, work, api) == "bundle.digest_mismatch"
    (work / "bundle.tar.gz").unlink()
    assert code_of(request_, work, api) == "publish.no_result"
    found(tmp_path, id="qwen-6")
    assert code_of(request_, work, api) == "publish.no_result"
    assert not api.objects


PROGRAM = """
import asyncio, sys
from pathlib import Path
from toktier_tier.admission_job.publishing import publish
from toktier_tier.admission_job.request import read_request
from toktier_tier.kubernetes.api import ApiServer
asyncio.run(publish(read_request(sys.argv[1]), Path(sys.argv[2]), ApiServer(sys.argv[3])))
"""


def test_killed_at_every_step_and_started_again_it_is_the_same_in_the_end(api: Api, tmp_path: Path) -> None:
    work = found(tmp_path)
    command = [sys.executable, "-c", PROGRAM, REQUEST_TEXT, str(work), api.url]
    for step in range(len(NAMES)):
        reached = threading.Event()
        api.on_post = lambda document, step=step, reached=reached: (  # type: ignore[misc]
            reached.set() if document["metadata"]["name"] == NAMES[step] else None
        )
        api.pause_s = 0.2  # killed while the server is at it: it makes the object all the same
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        assert reached.wait(30)
        process.kill()
        assert process.wait(10) != 0
        api.pause_s = 0.0
        if step < len(NAMES) - 1:
            assert "qwen-run-7" not in api.objects
    assert subprocess.run(command, timeout=60).returncode == 0
    assert sorted(api.objects) == sorted(NAMES)
    assert len(api.made) == len(NAMES)
    chunks = [
        base64.b64decode(api.objects[name]["binaryData"][key])
        for name, (key, _) in zip(NAMES, chunks_of(BUNDLE), strict=False)
    ]
    assert b"".join(chunks) == BUNDLE
