"""The HTTP interface against its own description: whatever schemathesis makes up is answered as stated there, and a
session that is there before is there afterwards, unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from servers import FAMILY, Engine, OnThread, WholeTier, whole_tier
from toktier_tier.settings import UpstreamSettings
from toktier_tier.transport.openapi import description
from workshop import examples, family_tier

CHECKS = [content_type_conformance, response_schema_conformance, status_code_conformance]
KEPT = "a session that nobody else knows"
schema = schemathesis.openapi.from_dict(description())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeTier]:
    engine = OnThread(Engine().app)
    upstream = UpstreamSettings(urls=(engine.url,))
    with whole_tier(tmp_path_factory.mktemp("tier"), upstream=upstream) as found:
        yield found
    engine.stop()


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as found:
        found.trust_env = False
        yield found


@schema.parametrize()
@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
def test_requests_are_answered_as_stated(case: Any, server: WholeTier, session: requests.Session) -> None:
    if not len(server.sessions):
        server.sessions.open("default", "kept", KEPT)
    response = case.call(base_url=f"http://{server.http}", session=session, timeout=30)
    case.validate_response(response, checks=CHECKS)
    assert response.status_code != 500
    if response.status_code >= 400:
        assert response.json()["error"]["code"]
    assert server.sessions.ids("default", "kept").tolist() == family_tier(FAMILY).ids(KEPT)


def test_the_description_is_served_and_names_every_route(server: WholeTier) -> None:
    answer = httpx.get(f"http://{server.http}/openapi.json", trust_env=False)
    assert answer.json() == description()
    routes = {(method.lower(), route.path) for route in server.tier.http.app.routes for method in route.methods}
    stated = {(method, path) for path, methods in description()["paths"].items() for method in methods}
    assert stated == {(method, path) for method, path in routes if method != "head" and path != "/openapi.json"}
