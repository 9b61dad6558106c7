"""What goes over the wire, to a server on loopback that answers as it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from toktier_operator.cluster.client import Cluster
from toktier_operator.cluster.errors import ClusterError, Conflict, Forbidden, Invalid, NotFound, Unavailable
from toktier_operator.cluster.kinds import CONFIG_MAP, HTTP_ROUTE, TOKENIZER_ADMISSION
from toktier_operator.cluster.wire import Wire, error_of

MAP: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}}


@dataclass
class Server:
    """Answers by (status, object), one after the other; then 200 with what it was sent."""

    answers: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    delay_s: float = 0.0

    async def handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        body = json.loads(text) if text else None
        self.asked.append((request.method, request.path_qs, body))
        await asyncio.sleep(self.delay_s)
        status, answer = self.answers.pop(0) if self.answers else (200, body or {})
        return web.json_response(answer, status=status)


def run(tmp_path: Path, server: Server, scenario: Callable[[Cluster], Awaitable[Any]], timeout_s: float = 5.0) -> Any:
    async def main() -> Any:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", server.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        config = {
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "x", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "current-context": "x",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        try:
            async with Cluster(await Wire.connect({"KUBECONFIG": str(path)}, timeout_s)) as cluster:
                return await scenario(cluster)
        finally:
            await runner.cleanup()

    return asyncio.run(main())


def status(code: int, reason: str, **details: Any) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "reason": reason, "message": "m", "details": details}


def test_apply_is_forced_by_the_operator_with_the_digest_and_is_seen_at_once(tmp_path: Path) -> None:
    server = Server()

    async def scenario(cluster: Cluster) -> None:
        await cluster.apply(MAP)
        assert cluster.observed.get(CONFIG_MAP, "n", "c") is not None

    run(tmp_path, server, scenario)
    ((method, path, body),) = server.asked
    assert (method, path) == (
        "PATCH",
        "/api/v1/namespaces/n/configmaps/c?fieldManager=toktier-operator&force=true",
    )
    assert list(body["metadata"]["annotations"]) == ["toktier.dev/applied"]


def test_a_status_is_written_whole_onto_what_was_observed_and_not_at_all_if_it_is_the_same(tmp_path: Path) -> None:
    server = Server()
    body = {"metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7"}, "status": {"a": 1}}

    async def scenario(cluster: Cluster) -> None:
        await cluster.patch_status(TOKENIZER_ADMISSION, "n", "a", {"a": 1}, observed=body)
        await cluster.patch_status(TOKENIZER_ADMISSION, "n", "a", {"b": 2}, observed=body)

    run(tmp_path, server, scenario)
    ((_, path, sent),) = server.asked
    assert path.startswith("/apis/toktier.dev/v1alpha1/namespaces/n/tokenizeradmissions/a/status?")
    assert sent["status"] == {"b": 2}
    assert sent["metadata"] == {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7"}


def test_what_is_not_there_is_none_or_empty_or_false(tmp_path: Path) -> None:
    gone = status(404, "NotFound", name="c")
    server = Server([gone, gone, gone, (404, {})])

    async def scenario(cluster: Cluster) -> None:
        assert await cluster.get(CONFIG_MAP, "n", "c") is None
        assert not await cluster.delete(CONFIG_MAP, "n", "c")
        assert await cluster.patch_status(TOKENIZER_ADMISSION, "n", "a", {}, observed=None) is None
        assert await cluster.list(HTTP_ROUTE, "n") == []

    run(tmp_path, server, scenario)


def test_lists_are_read_to_their_end_and_begin_again_if_they_expire(tmp_path: Path) -> None:
    def page(name: str, token: str) -> tuple[int, dict[str, Any]]:
        return 200, {"metadata": {"continue": token, "resourceVersion": "9"}, "items": [{"metadata": {"name": name}}]}

    server = Server([page("a", "t"), status(410, "Expired"), page("a", "t"), page("b", "")])

    async def scenario(cluster: Cluster) -> None:
        items, as_of = await cluster.snapshot(CONFIG_MAP, "n", "x=y")
        assert [item["metadata"]["name"] for item in items] == ["a", "b"]
        assert (items[0]["kind"], as_of) == ("ConfigMap", 9)

    run(tmp_path, server, scenario)
    assert "labelSelector=x" in server.asked[0][1]
    assert "continue=t" in server.asked[3][1]


def test_create_once_leaves_what_is_there_and_asks_once(tmp_path: Path) -> None:
    server = Server([status(409, "AlreadyExists")])

    async def scenario(cluster: Cluster) -> None:
        assert not await cluster.create_once(MAP)
        assert not await cluster.create_once(MAP)

    run(tmp_path, server, scenario)
    assert len(server.asked) == 1


def test_the_same_event_is_counted_and_found_again_by_its_name(tmp_path: Path) -> None:
    about = {"apiVersion": "x", "kind": "Y", "metadata": {"name": "a", "namespace": "n", "uid": "u"}}
    server = Server([(201, {}), status(409, "AlreadyExists"), (200, {"count": 4}), (200, {})])

    async def scenario(cluster: Cluster) -> None:
        for _ in range(3):
            await cluster.event(about, "Warning", "Reason", "words")

    run(tmp_path, server, scenario)
    run(tmp_path, server, scenario)
    posted = [body for method, _, body in server.asked if method == "POST"]
    assert len(posted) == 2
    assert posted[0]["metadata"]["name"] == posted[1]["metadata"]["name"]
    assert server.asked[-1][2]["count"] == 5


def test_an_event_that_is_refused_hurts_nobody(tmp_path: Path) -> None:
    about = {"apiVersion": "x", "kind": "Y", "metadata": {"name": "a", "namespace": "n", "uid": "u"}}
    run(tmp_path, Server([status(403, "Forbidden")]), lambda cluster: cluster.event(about, "Normal", "R", "m"))


def test_every_call_has_a_deadline(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(Unavailable):
            await cluster.get(CONFIG_MAP, "n", "c")

    run(tmp_path, Server(delay_s=3.0), scenario, timeout_s=0.2)


def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"

    async def scenario(cluster: Cluster) -> None:
        pass

    run(tmp_path, Server(), scenario)

    async def again() -> None:
        async with Cluster(await Wire.connect({"KUBECONFIG": str(path)})) as cluster:
            with pytest.raises(Unavailable):
                await cluster.get(CONFIG_MAP, "n", "c")

    asyncio.run(again())


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Unavailable),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (410, "Expired", Invalid),
        (413, "RequestEntityTooLarge", Invalid),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", Unavailable),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
    ],
)
def test_each_status_is_the_error_that_says_what_to_do(code: int, reason: str, expected: type[ClusterError]) -> None:
    error = error_of(code, {"reason": reason, "message": "m"}, retry_after="7")
    assert type(error) is expected
    assert error.reason == (reason if expected is not NotFound else "")
    if isinstance(error, Unavailable):
        assert error.retry_after_s == 7.0


def test_a_missing_kind_is_told_from_a_missing_object() -> None:
    missing = error_of(404, {"reason": "NotFound", "details": {"name": "c"}})
    unknown = error_of(404, {"message": "404 page not found"})
    assert isinstance(missing, NotFound)
    assert isinstance(unknown, NotFound)
    assert not missing.kind_missing
    assert unknown.kind_missing
