"""etcd, API server, controller manager and scheduler, as processes: all that an API needs to behave like Kubernetes."""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from pathlib import Path

from onenode.binaries import Binaries
from onenode.pki import Authority, service_account_key
from onenode.processes import Processes

SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
PODS = "10.244.0.0/16"
READY_S = 120
UNBRIDLED = ("--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=1000")
"""The only one of its kind, and not held back: many objects at once are what some tests are about."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """`address` is the API server's as others see it; on loopback no pod can reach it."""

    address: str
    api: int
    etcd: int
    etcd_peers: int
    controllers: int
    scheduler: int

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.api}"

    @property
    def on_loopback(self) -> bool:
        return self.address.startswith("127.")


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Runs where its maker runs: in the network namespace of a place or, on loopback, in any."""

    binaries: Binaries
    processes: Processes
    folder: Path
    endpoints: Endpoints

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def kubeconfig(self) -> Path:
        return self.pki / "admin.kubeconfig"

    def start(self) -> Authority:
        """Up to an API server that is ready; the others find it by themselves."""
        authority = self._certificates()
        self.start_etcd()
        self.start_api_server()
        self.start_controllers()
        return authority

    def _certificates(self) -> Authority:
        authority = Authority.make(self.pki)
        service_account_key(self.pki)
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        addresses = {"127.0.0.1", self.endpoints.address, API_SERVICE}
        authority.issue("apiserver", "kube-apiserver", hosts=[*sorted(addresses), *names])
        authority.issue("admin", "admin", group="system:masters")
        authority.issue("controllers", "system:kube-controller-manager")
        authority.issue("scheduler", "system:kube-scheduler")
        for name in ("admin", "controllers", "scheduler"):
            authority.kubeconfig(name, self.endpoints.server)
        return authority

    def start_etcd(self) -> None:
        client, peers = (f"http://127.0.0.1:{port}" for port in (self.endpoints.etcd, self.endpoints.etcd_peers))
        self._start(
            "etcd",
            self.binaries.etcd,
            *("--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync", "--log-level=warn"),
            *("--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peers),
            *("--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"),
        )

    def start_api_server(self) -> None:
        """Returns when it is ready."""
        pki, loopback = self.pki, self.endpoints.on_loopback
        self._start(
            "apiserver",
            self.binaries.kubernetes / "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.endpoints.etcd}",
            f"--bind-address={'127.0.0.1' if loopback else '0.0.0.0'}",
            f"--advertise-address={self.endpoints.address}",
            f"--secure-port={self.endpoints.api}",
            # Loopback is no endpoint that the Service `kubernetes` may have.
            f"--endpoint-reconciler-type={'none' if loopback else 'lease'}",
            f"--client-ca-file={pki}/ca.crt",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            "--enable-admission-plugins=NodeRestriction",
            f"--kubelet-client-certificate={pki}/admin.crt",
            f"--kubelet-client-key={pki}/admin.key",
            f"--kubelet-certificate-authority={pki}/ca.crt",
            "--kubelet-preferred-address-types=InternalIP,Hostname",
            "--shutdown-delay-duration=0s",
        )
        self.processes.wait("apiserver", lambda: self.get("/readyz") == 200, READY_S)

    def start_controllers(self) -> None:
        pki = self.pki
        kubeconfigs = {name: pki / f"{name}.kubeconfig" for name in ("controllers", "scheduler")}
        self._start(
            "controllers",
            self.binaries.kubernetes / "kube-controller-manager",
            *_as_user(kubeconfigs["controllers"]),
            f"--service-account-private-key-file={pki}/sa.key",
            f"--root-ca-file={pki}/ca.crt",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
            "--use-service-account-credentials=true",
            *UNBRIDLED,
            f"--allocate-node-cidrs={'false' if self.endpoints.on_loopback else 'true'}",
            f"--cluster-cidr={PODS}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.endpoints.controllers}",
        )
        self._start(
            "scheduler",
            self.binaries.kubernetes / "kube-scheduler",
            *_as_user(kubeconfigs["scheduler"]),
            *UNBRIDLED,
            "--bind-address=127.0.0.1",
            f"--secure-port={self.endpoints.scheduler}",
        )

    def restart_api_server(self) -> None:
        """As a crash would do it: nothing is told to anyone before. Returns when it is ready again."""
        self.stop_api_server()
        self.start_api_server()

    def stop_api_server(self) -> None:
        self.processes.stop("apiserver", within_s=0)

    def get(self, path: str) -> int | None:
        """Status of a request to the API server as an administrator; None where it doesn't answer."""
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
        connection = http.client.HTTPSConnection(self.endpoints.address, self.endpoints.api, timeout=5, context=context)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def _start(self, name: str, binary: Path, *arguments: str) -> None:
        self.processes.start(name, [binary, *arguments])


def _as_user(kubeconfig: Path) -> tuple[str, ...]:
    return tuple(
        f"--{flag}={kubeconfig}" for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    )
