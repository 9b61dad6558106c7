"""Installing the operator by the README's own commands: all of them, or only the first, which is the operator's."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from kube import helm
from onenode.cluster import Cluster

ROOT = Path(__file__).parents[2]
OPERATOR_NAMESPACE = "toktier-system"
IMAGE = "toktier"


def readme_commands() -> str:
    """The commands under "On Kubernetes", as a user copies them."""
    (found,) = re.findall(r"<!-- e2e: kubernetes -->\n```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return str(found)


def operator_command() -> str:
    """The first of them."""
    command = readme_commands().partition("\n\n")[0]
    assert command.startswith("helm install toktier-operator "), command
    return command


def is_installed() -> bool:
    """As in a kept cluster, or by a test before."""
    return "toktier-operator" in helm("list", "--namespace", OPERATOR_NAMESPACE, "--short")


def install(commands: str, folder: Path, image: str, own_cluster: Cluster | None) -> str:
    """What a shell that ran `commands` printed, in `folder`, beside the project's files, with the cluster's `image`."""
    if own_cluster is not None:
        own_cluster.name_image(image, f"{IMAGE}:0.1.0")
    for name in ("examples", "helm"):
        (folder / name).symlink_to(ROOT / name)
    environment = os.environ | {"IMAGE": IMAGE if own_cluster is not None else image.rpartition(":")[0]}
    script = ["bash", "-euc", commands]
    done = subprocess.run(script, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
