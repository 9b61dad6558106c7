"""`ApiTier`: a real control plane without a kubelet, on loopback, for many objects where containers don't matter.

It needs no root and no network namespace. Pods are said to run by a `FakeNode`. The API server calls webhooks by a URL
on 127.0.0.1; a Service leads nowhere, as there is no kube-proxy.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from onenode.binaries import HERE, Binaries
from onenode.control_plane import ControlPlane, Endpoints
from onenode.kubernetes import Kubernetes
from onenode.place import Place
from onenode.processes import Processes

FILE = "endpoints.json"


@dataclass(frozen=True, slots=True)
class ApiTier:
    control_plane: ControlPlane

    @classmethod
    def of(cls, place: Place, binaries: Binaries, *, keep: bool = False) -> ApiTier:
        """One to be started, or the one that has been in this place. With `keep` it outlives this process."""
        note = place.path / FILE
        if not note.exists():
            names = ("api", "etcd", "etcd_peers", "controllers", "scheduler")
            note.write_text(
                json.dumps({"address": "127.0.0.1"} | dict(zip(names, free_ports(len(names)), strict=True)))
            )
        endpoints = Endpoints(**json.loads(note.read_text()))
        processes = Processes(place.path, keep, place.lock)
        return cls(ControlPlane(binaries, processes, place.path, endpoints))

    @property
    def kubeconfig(self) -> Path:
        return self.control_plane.kubeconfig

    @property
    def kubernetes(self) -> Kubernetes:
        return Kubernetes(self.kubeconfig, self.control_plane.binaries.tools, direct=True)

    def up(self, *, fake_node: bool = True) -> dict[str, float]:
        """Returns when the API server is ready, with the seconds that took.

        Without `fake_node` a test runs a `FakeNode` of its own, to have a say in what Jobs do. Raises ClusterFailed.
        """
        begin = time.monotonic()
        self.control_plane.start()
        if fake_node:
            node = ["env", f"PYTHONPATH={HERE}", sys.executable, "-m", "onenode.fake_node", str(self.kubeconfig)]
            self.control_plane.processes.start("fake_node", node)
        return {"control plane": time.monotonic() - begin}

    def restart_api_server(self) -> None:
        self.control_plane.restart_api_server()


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
