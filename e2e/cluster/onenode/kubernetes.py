"""Using a cluster, whosever it is: kubectl, helm, ways to its Services, and a dump of all that there is to see."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND_S = 120
KINDS = (
    *("nodes", "namespaces", "pods", "services", "endpointslices", "configmaps", "serviceaccounts", "jobs"),
    *("statefulsets", "deployments", "replicasets", "poddisruptionbudgets", "networkpolicies"),
    *("horizontalpodautoscalers", "roles", "rolebindings", "clusterroles", "clusterrolebindings"),
    *("validatingwebhookconfigurations", "mutatingwebhookconfigurations", "customresourcedefinitions"),
    *("tokenizeradmissions.toktier.dev", "toktiers.toktier.dev"),
)
"""No secrets."""
FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")


class CommandFailed(RuntimeError):
    """kubectl or helm refused; the message is what it said."""


@dataclass(frozen=True, slots=True)
class Kubernetes:
    kubeconfig: Path
    tools: Path | None
    """Folder of kubectl and helm; None: they are on the path."""
    direct: bool
    """Whether addresses of pods and Services can be reached from this process."""

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, within_s: float = COMMAND_S
    ) -> str:
        """What it printed. Raises CommandFailed, or without `check` gives what it printed before."""
        return self._run("kubectl", arguments, stdin, check, within_s)

    def helm(self, *arguments: str, stdin: str | None = None, check: bool = True, within_s: float = COMMAND_S) -> str:
        return self._run("helm", arguments, stdin, check, within_s)

    def get(self, *arguments: str) -> Any:
        """kubectl get, read from JSON."""
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    def apply(self, *objects: Mapping[str, Any], namespace: str = "default") -> str:
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        return self.kubectl("apply", f"--namespace={namespace}", "--filename=-", stdin=json.dumps(listed))

    def wait_for_namespace(self, name: str) -> None:
        """Pods are refused until it has its ServiceAccount."""
        self.kubectl("wait", f"--namespace={name}", "serviceaccount/default", "--for=create", "--timeout=60s")

    def environment(self) -> dict[str, str]:
        """For commands that find kubectl, helm and the cluster by themselves."""
        path = os.environ.get("PATH", "")
        if self.tools is not None and str(self.tools) not in path.split(os.pathsep):
            path = f"{self.tools}{os.pathsep}{path}"
        return os.environ | {"KUBECONFIG": str(self.kubeconfig), "PATH": path}

    @contextmanager
    def reach(self, namespace: str, target: str, port: int) -> Iterator[str]:
        """`host:port` by which this process reaches a port of `service/NAME` or `pod/NAME`.

        In a cluster of our own that is the address itself, so kube-proxy chooses the pod; elsewhere kubectl forwards,
        to one pod until the end.
        """
        if self.direct:
            kind, _, _ = target.partition("/")
            found = self.get(f"--namespace={namespace}", target)
            yield f"{found['spec']['clusterIP'] if kind == 'service' else found['status']['podIP']}:{port}"
            return
        command = [
            self.tools / "kubectl" if self.tools else "kubectl",
            "port-forward",
            f"--namespace={namespace}",
            target,
            f":{port}",
        ]
        process = subprocess.Popen(command, env=self.environment(), stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            found = FORWARDING.match(process.stdout.readline())
            if found is None:
                raise CommandFailed(f"{target}: port-forward ended with {process.wait()}")
            yield f"127.0.0.1:{found.group(1)}"
        finally:
            process.terminate()
            process.wait()

    def dump(self, folder: Path) -> None:
        """Objects, events and the logs of all pods into `folder`, as far as they can be had."""
        folder.mkdir(parents=True, exist_ok=True)
        everywhere = ("--all-namespaces", "--ignore-not-found")
        for kind in KINDS:
            text = self.kubectl("get", kind, *everywhere, "--output=yaml", check=False)
            if text:
                (folder / f"{kind}.yaml").write_text(text)
        events = self.kubectl("get", "events", *everywhere, "--sort-by=.metadata.creationTimestamp", check=False)
        (folder / "events.txt").write_text(events)
        (folder / "pods.txt").write_text(self.kubectl("describe", "pods", "--all-namespaces", check=False))
        with suppress(CommandFailed):
            for pod in self.get("pods", "--all-namespaces")["items"]:
                self._dump_logs(pod, folder)

    def _dump_logs(self, pod: Mapping[str, Any], folder: Path) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        for kind in ("initContainers", "containers"):
            for container in pod["spec"].get(kind, ()):
                for flags, ending in ((), "log"), (("--previous",), "previous.log"):
                    where = (f"--namespace={namespace}", name, f"--container={container['name']}", *flags)
                    text = self.kubectl("logs", *where, check=False)
                    if text:
                        (folder / f"{namespace}.{name}.{container['name']}.{ending}").write_text(text)

    def _run(self, tool: str, arguments: tuple[str, ...], stdin: str | None, check: bool, within_s: float) -> str:
        try:
            done = subprocess.run(
                [tool if self.tools is None else self.tools / tool, *arguments],
                env=self.environment(),
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                text=True,
                timeout=within_s,
            )
        except subprocess.TimeoutExpired:
            if not check:
                return ""
            raise CommandFailed(f"{tool} {' '.join(arguments)}: no end after {within_s:g} s") from None
        if check and done.returncode != 0:
            raise CommandFailed(f"{tool} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout
