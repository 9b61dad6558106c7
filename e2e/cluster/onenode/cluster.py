"""`Cluster`: the whole of it, started and ended, with what tests do to it."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from onenode.binaries import HERE, Binaries
from onenode.control_plane import ControlPlane, Endpoints
from onenode.kubernetes import Kubernetes
from onenode.node import ADDRESS, NAME, Node, network
from onenode.place import Place
from onenode.processes import Processes

NODE_READY_S = 60
ENDPOINTS = Endpoints(ADDRESS, api=6443, etcd=2379, etcd_peers=2380, controllers=10257, scheduler=10259)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster in `place`, used from inside its network namespace.

    `kubeconfig` is an administrator's. Images are loaded, never pulled: pods use them with `imagePullPolicy: Never` or
    `IfNotPresent`. Names of Services resolve in pods (`onenode.dns`); nothing outside the cluster can be reached.
    """

    place: Place
    control_plane: ControlPlane
    node: Node

    @classmethod
    def of(cls, place: Place, binaries: Binaries, *, keep: bool = False) -> Cluster:
        """With `keep` it outlives this process, else it ends with it."""
        processes = Processes(place.path, keep, place.lock)
        control_plane = ControlPlane(binaries, processes, place.path, ENDPOINTS)
        return cls(place, control_plane, Node(place.path, control_plane))

    @property
    def kubeconfig(self) -> Path:
        return self.control_plane.kubeconfig

    @property
    def kubernetes(self) -> Kubernetes:
        return Kubernetes(self.kubeconfig, self.control_plane.binaries.tools, direct=True)

    @property
    def processes(self) -> Processes:
        return self.control_plane.processes

    @property
    def is_up(self) -> bool:
        return (self.place.path / "up").exists()

    def up(self) -> dict[str, float]:
        """Returns when the node is Ready, with the seconds that each step took. Raises ClusterFailed."""
        steps: dict[str, float] = {}
        begin = time.monotonic()
        network()
        authority = self.control_plane.start()
        steps["control plane"] = time.monotonic() - begin
        begin = time.monotonic()
        self.node.start(authority)
        dns = ["env", f"PYTHONPATH={HERE}", sys.executable, "-m", "onenode.dns", ADDRESS, str(self.control_plane.pki)]
        self.processes.start("dns", dns)
        steps["node processes"] = time.monotonic() - begin
        begin = time.monotonic()
        self.processes.wait("kubelet", self._node_is_ready, NODE_READY_S)
        self.kubernetes.wait_for_namespace("default")
        steps["node Ready"] = time.monotonic() - begin
        (self.place.path / "up").write_text(json.dumps(steps))
        return steps

    def _node_is_ready(self) -> bool:
        path = "{.status.conditions[?(@.type=='Ready')].status}"
        return self.kubernetes.kubectl("get", "node", NAME, "-o", f"jsonpath={path}", check=False) == "True"

    def load_image(self, archive: Path) -> None:
        """Of a docker archive, by the names in it."""
        self.node.load(archive)

    def name_image(self, loaded: str, name: str) -> None:
        """One more name for a loaded image: a new image to Kubernetes, the same bytes."""
        self.node.ctr("images", "tag", "--force", full_name(loaded), full_name(name))

    def restart_api_server(self) -> None:
        self.control_plane.restart_api_server()


def full_name(name: str) -> str:
    """As containerd and the kubelet write an image's name: `toktier:dev` is `docker.io/library/toktier:dev`."""
    first = name.split("/")[0]
    if "/" in name and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if "/" in name else f"docker.io/library/{name}"
