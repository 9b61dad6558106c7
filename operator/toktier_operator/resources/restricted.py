"""What every pod and container that the operator makes is held to: no root, no rights, nothing writable but volumes."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
USER = 65_532


def restricted_pod() -> Json:
    """securityContext of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def restricted_container() -> Json:
    """securityContext of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
