"""The cluster as tests see it: kubectl and helm of the environment, objects as JSON, and waiting for them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onenode.kubernetes import CommandFailed, Kubernetes

Json = dict[str, Any]


WITHIN_S = 180.0


def _cluster() -> Kubernetes:
    """The one of the environment, as the fixture `cluster` leaves it."""
    return Kubernetes(Path(os.environ["KUBECONFIG"]), tools=None, direct=True)


def kubectl(*arguments: str, stdin: str | None = None, check: bool = True, within_s: float = WITHIN_S) -> str:
    return _cluster().kubectl(*arguments, stdin=stdin, check=check, within_s=within_s)


def helm(*arguments: str, within_s: float = WITHIN_S) -> str:
    return _cluster().helm(*arguments, within_s=within_s)


def apply(*manifests: Json, namespace: str) -> None:
    _cluster().apply(*manifests, namespace=namespace)


def get(kind: str, name: str, namespace: str) -> Json | None:
    try:
        found: Json = json.loads(kubectl("get", kind, name, "--namespace", namespace, "--output", "json"))
    except CommandFailed as error:
        if "NotFound" in str(error):
            return None
        raise
    return found


def items(kind: str, namespace: str, *arguments: str) -> list[Json]:
    found = json.loads(kubectl("get", kind, "--namespace", namespace, "--output", "json", *arguments))
    listed: list[Json] = found["items"]
    return listed


def condition(found: Json | None, kind: str) -> Json:
    """The condition of that type; empty if there is none."""
    listed = ((found or {}).get("status") or {}).get("conditions") or []
    return next((each for each in listed if each["type"] == kind), {})


def until(look: Callable[[], Any], within_s: float, what: str) -> Any:
    """What `look` finds, once it finds something."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            found = look()
        except CommandFailed as error:
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s} s: {what}: {error}") from error
            found = None
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.1)


def admitted(name: str, namespace: str, within_s: float = 240.0, *, id_: str = "") -> Json:
    """The admission, once it says Admitted about its present spec (and is at that id)."""

    def look() -> Json | None:
        found = get("tokenizeradmission", name, namespace)
        status = (found or {}).get("status") or {}
        current = (status.get("current") or {}).get("id", "")
        right = status.get("phase") == "Admitted" and (not id_ or current == id_)
        return found if found and right and status["observedGeneration"] == found["metadata"]["generation"] else None

    found: Json = until(look, within_s, f"tokenizeradmission/{name} Admitted {id_}")
    return found


def rolled_out(name: str, namespace: str, within_s: float = 240.0, *, id_: str = "") -> Json:
    """The TokTier, once all of its pods are of its present spec (and serve that admission id)."""

    def look() -> Json | None:
        found = get("toktier", name, namespace)
        if found is None or condition(found, "Available").get("status") != "True":
            return None
        status, progressing = found["status"], condition(found, "Progressing")
        if status["observedGeneration"] != found["metadata"]["generation"] or progressing.get("status") != "False":
            return None
        if id_ and [each.get("id") for each in status["snapshots"] if each["state"] == "Serving"] != [id_]:
            return None
        return found if status["readyReplicas"] == found["spec"]["replicas"] else None

    found: Json = until(look, within_s, f"toktier/{name} rolled out {id_}")
    return found


def events(namespace: str, about: str, reason: str) -> list[Json]:
    selector = f"involvedObject.name={about},reason={reason}"
    return items("events", namespace, "--field-selector", selector)


def pods(toktier: str, namespace: str) -> list[Json]:
    return items("pods", namespace, "--selector", f"toktier.dev/toktier={toktier}")


def cluster_ip(service: str, namespace: str) -> str:
    return kubectl("get", "service", service, "--namespace", namespace, "--output", "jsonpath={.spec.clusterIP}")
