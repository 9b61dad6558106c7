"""The cluster as tests see it: kubectl and helm of the environment, objects as JSON, and waiting for them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


class Refused(Exception):
    """kubectl or helm ended with an error; the text is what it said."""


def run(*command: str, stdin: str | None = None, within_s: float = 180.0) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=within_s, check=False)
    if done.returncode:
        raise Refused(f"{' '.join(command[:4])}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def kubectl(*arguments: str, stdin: str | None = None, within_s: float = 180.0) -> str:
    return run("kubectl", *arguments, stdin=stdin, within_s=within_s)


def apply(*manifests: Json, namespace: str) -> None:
    document = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    kubectl("apply", "--namespace", namespace, "--filename", "-", stdin=json.dumps(document))


def get(kind: str, name: str, namespace: str) -> Json | None:
    try:
        found: Json = json.loads(kubectl("get", kind, name, "--namespace", namespace, "--output", "json"))
    except Refused as error:
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
        except Refused as error:
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
