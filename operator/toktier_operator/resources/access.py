"""Who a tier's pods are to the API server, and what they may: see each other, hear the operator, report to it."""

from __future__ import annotations

from . import names
from .owned import Json, Owner

READ = ["get", "list", "watch"]


def service_account(owner: Owner) -> Json:
    """Its token is mounted by the pods themselves."""
    return owner.manifest("v1", "ServiceAccount", owner.name) | {"automountServiceAccountToken": False}


def role(owner: Owner) -> Json:
    control, reports = names.control(owner.name), names.reports(owner.name)
    return owner.manifest("rbac.authorization.k8s.io/v1", "Role", owner.name) | {
        "rules": [
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": READ},
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [control], "verbs": READ},
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [reports], "verbs": ["get", "patch"]},
        ]
    }


def role_binding(owner: Owner) -> Json:
    return owner.manifest("rbac.authorization.k8s.io/v1", "RoleBinding", owner.name) | {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": owner.name},
        "subjects": [{"kind": "ServiceAccount", "name": owner.name, "namespace": owner.namespace}],
    }
