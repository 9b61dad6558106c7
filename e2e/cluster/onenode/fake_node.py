"""A node that says of every pod that it runs, and runs none.

Pods that are scheduled to it become Running and Ready at once; those that are to end (of Jobs) succeed at once, or as
`run` says. A deleted pod is gone at once. Probes, volumes and images aren't looked at: what could never start starts.

    with FakeNode(kubeconfig, run=my_job):
        ...
    python -m onenode.fake_node KUBECONFIG    # until it is ended
"""

from __future__ import annotations

import base64
import ipaddress
import itertools
import json
import signal
import ssl
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

NAME = "fake1"
PODS = ipaddress.ip_network("10.200.0.0/16")
WORKERS = 4
HEARTBEAT_S = 10
CAPACITY = {"cpu": "100000", "memory": "100000Gi", "pods": "60000", "ephemeral-storage": "100000Gi"}
MERGE = {"Content-Type": "application/merge-patch+json"}
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NAME}"

Run = Callable[[dict[str, Any]], bool]
"""What a pod of a Job does, given the pod: whether it succeeds. Called from several threads."""


def succeed(pod: dict[str, Any]) -> bool:
    return True


def client(kubeconfig: Path) -> httpx.Client:
    """Of the API server, as the user of a kubeconfig with a client certificate."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    with tempfile.NamedTemporaryFile() as file:  # Python reads these from files only
        file.write(b"".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key")))
        file.flush()
        context.load_cert_chain(file.name)
    limits = httpx.Limits(max_connections=WORKERS * 2 + 2)
    return httpx.Client(base_url=cluster["server"], verify=context, timeout=30, limits=limits, trust_env=False)


@dataclass(slots=True)
class FakeNode:
    """While entered, it answers for its pods. It outlasts restarts of the API server."""

    kubeconfig: Path
    run: Run = succeed
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _taken: set[str] = field(default_factory=set)
    """Ids of pods that `run` was called for: once each."""
    _addresses: Iterator[Any] = field(default_factory=lambda: itertools.islice(itertools.cycle(PODS), 10, None))

    def __enter__(self) -> Self:
        for work in (self._watch, self._beat):
            thread = threading.Thread(target=work, name=f"fake-node{work.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        """Returns at once; a watch that waits for the API server ends with its next event."""
        self._ended.set()

    def _beat(self) -> None:
        """The node and its lease; without it the controller manager would give it up."""
        with client(self.kubeconfig) as api:
            while not self._ended.is_set():
                with suppress(httpx.HTTPError):
                    if api.get(f"/api/v1/nodes/{NAME}").status_code == 404:
                        api.post("/api/v1/nodes", json={"kind": "Node", "apiVersion": "v1", "metadata": {"name": NAME}})
                    api.patch(f"/api/v1/nodes/{NAME}/status", headers=MERGE, json={"status": _node_status()})
                    spec = {"holderIdentity": NAME, "leaseDurationSeconds": 40, "renewTime": _now(fraction=".000000")}
                    if api.patch(LEASE, headers=MERGE, json={"spec": spec}).status_code == 404:
                        lease = {"metadata": {"name": NAME}, "spec": spec}
                        api.post(LEASE.rpartition("/")[0], json=lease)
                self._ended.wait(HEARTBEAT_S)

    def _watch(self) -> None:
        own = {"fieldSelector": f"spec.nodeName={NAME}"}
        with client(self.kubeconfig) as api, ThreadPoolExecutor(WORKERS) as workers:
            while not self._ended.is_set():
                with suppress(httpx.HTTPError, json.JSONDecodeError):
                    listed = api.get("/api/v1/pods", params=own).raise_for_status().json()
                    for pod in listed["items"]:
                        workers.submit(self._settle, api, pod)
                    since = own | {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
                    with api.stream("GET", "/api/v1/pods", params=since, timeout=httpx.Timeout(30, read=None)) as lines:
                        for line in lines.iter_lines():
                            event = json.loads(line)
                            if self._ended.is_set() or event["type"] == "ERROR":
                                break
                            if event["type"] != "DELETED":
                                workers.submit(self._settle, api, event["object"])
                self._ended.wait(0.2)

    def _settle(self, api: httpx.Client, pod: dict[str, Any]) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        try:
            if metadata.get("deletionTimestamp"):
                now = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
                api.request("DELETE", path, json=now)
            elif pod["status"].get("phase", "Pending") == "Pending" and metadata["uid"] not in self._taken:
                self._taken.add(metadata["uid"])
                ends = spec.get("restartPolicy", "Always") != "Always"
                phase = "Running" if not ends else "Succeeded" if self.run(pod) else "Failed"
                status = _pod_status(pod, phase, str(next(self._addresses)))
                api.patch(
                    f"{path}/status", headers=MERGE, json={"metadata": {"uid": metadata["uid"]}, "status": status}
                )
        except httpx.HTTPError:
            self._taken.discard(metadata["uid"])  # the next list has it again
        except Exception as error:
            print(f"{path}: {error!r}", file=sys.stderr, flush=True)
            raise


def _node_status() -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "reason": "Fake", "lastHeartbeatTime": _now()}
    return {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": [ready]}


def _pod_status(pod: dict[str, Any], phase: str, address: str) -> dict[str, Any]:
    now, spec = _now(), pod["spec"]
    running = phase == "Running"
    reason = {"Succeeded": "Completed", "Failed": "Error"}.get(phase)
    ended = {"exitCode": int(phase == "Failed"), "reason": reason, "startedAt": now, "finishedAt": now}
    completed = ended | {"exitCode": 0, "reason": "Completed"}

    def states(containers: list[dict[str, Any]], state: dict[str, Any], ready: bool) -> list[dict[str, Any]]:
        same = {"state": state, "ready": ready, "restartCount": 0, "started": running, "imageID": "fake"}
        return [{"name": each["name"], "image": each["image"]} | same for each in containers]

    conditions = ("PodScheduled", "Initialized", *(("ContainersReady", "Ready") if running else ()))
    return {
        "phase": phase,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "hostIP": "127.0.0.1",
        "startTime": now,
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in conditions],
        "initContainerStatuses": states(spec.get("initContainers", []), {"terminated": completed}, True),
        "containerStatuses": states(
            spec["containers"], {"running": {"startedAt": now}} if running else {"terminated": ended}, running
        ),
    }


def _now(fraction: str = "") -> str:
    return datetime.now(UTC).strftime(f"%Y-%m-%dT%H:%M:%S{fraction}Z")


if __name__ == "__main__":
    with FakeNode(Path(sys.argv[1])):
        signal.pause()
