"""The node: containerd, kubelet and kube-proxy, in a mount namespace of their own, and the network around them.

What they write outside their folders (sysctls, /run/containerd, /var/lib/cni, logs) they write into the place instead,
and their mounts end with the mount namespace.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from onenode.binaries import CNI_PLUGINS
from onenode.control_plane import PODS, ControlPlane
from onenode.image import Image, Layer
from onenode.pki import Authority
from onenode.place import CGROUPS

NAME = "node1"
ADDRESS = "192.0.2.10"  # TEST-NET-1: nobody's
GATEWAY = "192.0.2.1"
NODE_PODS = "10.244.0.0/24"
PAUSE = "localhost/pause:1"
BUSYBOX = Path("/usr/bin/busybox")
START_S = 60
SYSCTLS = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)
REDIRECTED = ("/run/containerd", "/var/lib/cni", "/var/log/containers", "/var/log/pods", "/var/lib/kubelet")
# Holds the mount namespace, and nothing else: $0 is the place's folder, then sysctls, "--", folders.
HOLDER = """
mount --make-rshared /
while [ "$1" != -- ]; do
    file=$0/sysctls/$(echo "$1" | tr / _); cat "/proc/sys/$1" > "$file"; mount --bind "$file" "/proc/sys/$1"; shift
done
shift
for folder; do mkdir -p "$0/redirected$folder" "$folder"; mount --bind "$0/redirected$folder" "$folder"; done
touch "$0/holder.ready"; exec sleep infinity
"""


def network() -> None:
    """The node's address, on a bridge without members, in the network namespace of this process."""
    for command in (
        f"ip link add node0 type bridge|ip addr add {ADDRESS}/24 dev node0|ip link set node0 up",
        f"ip route replace default via {GATEWAY} dev node0|sysctl --quiet --write net.ipv4.ip_forward=1",
    ):
        for each in command.split("|"):
            subprocess.run(each.split(), check=True)


@dataclass(frozen=True, slots=True)
class Node:
    folder: Path
    control_plane: ControlPlane

    @property
    def socket(self) -> Path:
        return self.folder / "ctd" / "containerd.sock"

    def start(self, authority: Authority) -> None:
        """Returns when all are started; the node is Ready some seconds later."""
        endpoints = self.control_plane.endpoints
        authority.issue("kubelet", f"system:node:{NAME}", group="system:nodes", hosts=["127.0.0.1", ADDRESS, NAME])
        authority.issue("proxy", "system:kube-proxy")
        for name in ("kubelet", "proxy"):
            authority.kubeconfig(name, endpoints.server)
        for name in ("cni", "sysctls", "redirected"):
            (self.folder / name).mkdir()
        for root in [CGROUPS] if (CGROUPS / "cgroup.controllers").exists() else CGROUPS.iterdir():
            with suppress(OSError):  # of version 1, not every hierarchy takes part
                (root / self.folder.name).mkdir()
        self._configure()
        self._start_holder()
        self._start("containerd", "containerd", "--config", str(self.folder / "containerd.toml"))
        self.control_plane.processes.wait("containerd", self._containerd_answers, START_S)
        self.load(pause_image(self.folder / "pause.tar"))
        pki = self.control_plane.pki
        kubernetes = self.control_plane.binaries.kubernetes
        self._start(
            "kubelet",
            str(kubernetes / "kubelet"),
            f"--config={self.folder / 'kubelet.yaml'}",
            f"--kubeconfig={pki / 'kubelet.kubeconfig'}",
            f"--hostname-override={NAME}",
            f"--node-ip={ADDRESS}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet-pki'}",
            "--oom-score-adj=0",  # a negative one isn't allowed everywhere
        )
        self._start(
            "proxy",
            str(kubernetes / "kube-proxy"),
            f"--kubeconfig={pki / 'proxy.kubeconfig'}",
            f"--hostname-override={NAME}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={PODS}",
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
            "--iptables-min-sync-period=0s",
        )

    def load(self, archive: Path) -> None:
        self.ctr("images", "import", str(archive))

    def ctr(self, *arguments: str) -> str:
        """containerd's own client. Raises CalledProcessError."""
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def _containerd_answers(self) -> bool:
        try:
            self.ctr("version")
        except subprocess.CalledProcessError:
            return False
        return True

    def _start_holder(self) -> None:
        processes = self.control_plane.processes
        command = ["unshare", "--mount", "--propagation", "private", "bash", "-euc", HOLDER, str(self.folder)]
        processes.start("holder", [*command, *SYSCTLS, "--", *REDIRECTED])
        processes.wait("holder", (self.folder / "holder.ready").exists, START_S)

    def _start(self, name: str, *command: str) -> None:
        processes = self.control_plane.processes
        inside = ["nsenter", f"--mount=/proc/{processes.id_of('holder')}/ns/mnt", "--"]
        processes.start(name, [*inside, *command])

    def _configure(self) -> None:
        folder, pki = self.folder, self.control_plane.pki
        (folder / "resolv.conf").write_text(f"nameserver {ADDRESS}\n")
        (folder / "containerd.toml").write_text(_containerd(folder))
        (folder / "cni" / "10-e2e.conflist").write_text(json.dumps(_cni(folder)))
        (folder / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet(folder, pki, self.socket)))


def pause_image(archive: Path) -> Path:
    layer = Layer.of_files(archive.with_suffix(".layer"), {"bin/busybox": BUSYBOX})
    image = Image((layer,), {"Entrypoint": ["/bin/busybox", "sleep", "2147483647"]})
    image.write(archive, PAUSE)
    return archive


def _containerd(folder: Path) -> str:
    return f"""\
version = 2
root = "{folder}/ctd/root"
state = "{folder}/ctd/state"
[grpc]
  address = "{folder}/ctd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{folder}/cni"
"""


def _cni(folder: Path) -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "subnet": NODE_PODS,
        "dataDir": f"{folder}/addresses",
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True}
    return {
        "cniVersion": "0.4.0",
        "name": "e2e",
        "plugins": [bridge | {"ipam": addresses}, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }


def _kubelet(folder: Path, pki: Path, socket: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/kubelet.crt",
        "tlsPrivateKeyFile": f"{pki}/kubelet.key",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{folder.name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{socket}",
        "resolvConf": f"{folder}/resolv.conf",
        "clusterDNS": [ADDRESS],
        "clusterDomain": "cluster.local",
        "podLogsDir": f"{folder}/logs",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "healthzBindAddress": "127.0.0.1",
        "syncFrequency": "5s",
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "volumePluginDir": f"{folder}/volume-plugins",
    }
