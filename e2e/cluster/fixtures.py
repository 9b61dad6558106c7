"""pytest's fixtures of the clusters: `cluster` and what stands on it for a whole one, `api_tier` for the API alone.

The whole cluster is KUBECONFIG's where that is set: the user's own, or one kept by `ctl up`. Otherwise pytest has been
started by `run`, in the network namespace of a new place, and the session starts a cluster there, which ends with it.
When a test that uses a cluster fails, objects, events and logs are left under build/e2e-dump. How long each step took
is printed at the end and is in build/e2e-cluster.json.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from onenode.api_tier import ApiTier
from onenode.binaries import HERE, ROOT, install, tools
from onenode.cluster import Cluster
from onenode.kubernetes import Kubernetes
from onenode.place import VARIABLE, Place, sweep
from onenode.processes import Processes

IMAGE = "TOKTIER_E2E_IMAGE"
DIRECT = "TOKTIER_E2E_DIRECT"
"""1: addresses of the user's pods and Services are reached from here (a node, or a routed network)."""
OWN_IMAGE = "toktier:dev"
OUT = ROOT / "build"
DUMPS = OUT / "e2e-dump"

Step = Callable[[str], Any]
_steps: dict[str, float] = {}
_running: dict[str, tuple[Kubernetes, Processes | None]] = {}
"""By the fixture that a test has to use, for the dump."""


def pytest_configure(config: pytest.Config) -> None:
    shutil.rmtree(DUMPS, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.failed and report.when != "teardown":
        for name, (kubernetes, processes) in _running.items():
            if name in getattr(item, "fixturenames", ()):
                folder = DUMPS / re.sub(r"[^\w.-]+", "_", item.nodeid.removeprefix("e2e/")) / name
                kubernetes.dump(folder)
                if processes is not None:
                    for part in processes.names():
                        shutil.copy(processes.log(part), folder / f"{part}.log")
                report.sections.append(("cluster", f"objects, events and logs are in {folder}"))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _steps:
        OUT.mkdir(exist_ok=True)
        (OUT / "e2e-cluster.json").write_text(json.dumps(_steps, indent=1))
        terminalreporter.write_sep("-", "seconds for each step")
        for name, taken in _steps.items():
            terminalreporter.write_line(f"{taken:8.1f}  {name}")


@contextmanager
def timed(name: str) -> Iterator[None]:
    begin = time.monotonic()
    try:
        yield
    finally:
        _steps[name] = round(time.monotonic() - begin, 2)


@pytest.fixture(scope="session")
def step() -> Step:
    """`with step("what it is"):` notes how long that took."""
    return timed


@pytest.fixture(scope="session")
def own_cluster() -> Iterator[Cluster | None]:
    """The cluster as its own harness sees it (images, restarts); None where it is the user's."""
    path = os.environ.get(VARIABLE)
    if path is None:
        if not os.environ.get("KUBECONFIG"):
            pytest.fail("start pytest by e2e/cluster/run, or set KUBECONFIG to use a cluster of yours")
        yield None
        return
    place = Place(Path(path))
    cluster = Cluster.of(place, install())
    if cluster.is_up:  # kept by `ctl up`: what a test restarts has to be kept too
        yield Cluster.of(place, install(), keep=True)
        return
    parts = cluster.up()
    _steps.update({f"cluster up: {name}": round(taken, 2) for name, taken in parts.items()})
    yield cluster  # `run` ends it with its place, whatever becomes of this process


@pytest.fixture(scope="session")
def cluster(own_cluster: Cluster | None) -> Iterator[Kubernetes]:
    """The whole cluster: kubectl, helm, ways to its Services. Also KUBECONFIG of all commands from now on."""
    if own_cluster is None:
        on_path = all(map(shutil.which, ("kubectl", "helm")))
        found = Kubernetes(Path(os.environ["KUBECONFIG"]), None if on_path else tools(), os.environ.get(DIRECT) == "1")
    else:
        found = own_cluster.kubernetes
    _running["cluster"] = found, own_cluster.processes if own_cluster else None
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment().items():
            patch.setenv(name, value)
        yield found
    del _running["cluster"]


@pytest.fixture(scope="session")
def kubectl(cluster: Kubernetes) -> Callable[..., str]:
    return cluster.kubectl


@pytest.fixture(scope="session")
def helm(cluster: Kubernetes) -> Callable[..., str]:
    return cluster.helm


@pytest.fixture(scope="session")
def image(own_cluster: Cluster | None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of the image of tier and operator, which the cluster has; use it with `imagePullPolicy: IfNotPresent`.

    Built from this checkout, or what TOKTIER_E2E_IMAGE says: with a cluster of the user's it has to be set.
    """
    given = os.environ.get(IMAGE)
    if given or own_cluster is None:
        return given or pytest.fail(f"set {IMAGE} to an image of the Dockerfile that your cluster has or can pull")
    archive = tmp_path_factory.mktemp("image") / "toktier.tar"
    with timed("image built"):
        command = [*Place.outside(), sys.executable, "-m", "onenode.tier_image", str(archive), OWN_IMAGE]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": str(HERE)}, check=True)
    with timed("image loaded"):
        own_cluster.load_image(archive)
    archive.unlink()
    return OWN_IMAGE


@pytest.fixture
def namespace(cluster: Kubernetes, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new namespace, gone after the test."""
    stem = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].rstrip("-")
    name = f"{stem}-{os.urandom(3).hex()}"
    cluster.kubectl("create", "namespace", name)
    cluster.wait_for_namespace(name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def api_tier() -> Iterator[ApiTier]:
    """A control plane alone, on loopback, with a fake node on which every pod runs at once."""
    with started_api_tier(fake_node=True) as tier:
        yield tier


@contextmanager
def started_api_tier(*, fake_node: bool) -> Iterator[ApiTier]:
    """Without `fake_node` the test runs a `FakeNode` of its own, whose Jobs do what it says.

    The test is skipped where the cluster is the user's: it needs nothing of it, and takes long to install.
    """
    if os.environ.get("KUBECONFIG") and VARIABLE not in os.environ:
        pytest.skip("the cluster is the user's, and this needs an API server of its own")
    binaries = install(node=False)
    sweep()
    place = Place.make(network=False)
    try:
        tier = ApiTier.of(place, binaries)
        with timed("API tier up"):
            tier.up(fake_node=fake_node)
        _running["api_tier"] = tier.kubernetes, tier.control_plane.processes
        yield tier
    finally:
        _running.pop("api_tier", None)
        place.remove()
