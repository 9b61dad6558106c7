"""Every name and label of docs/decisions/0008-operator.md, made and read back in one place."""

from __future__ import annotations

import re

from ..api.group import GROUP, OPERATOR

READMIT = f"{GROUP}/readmit"
"""Annotation of a TokenizerAdmission: any new value asks for a run."""

TOKTIER = f"{GROUP}/toktier"
ADMISSION = f"{GROUP}/admission"
RUN = f"{GROUP}/run"
"""Label of a Job: the number of its run."""
MANAGED_BY = "app.kubernetes.io/managed-by"
SELECTOR = f"{MANAGED_BY}={OPERATOR}"
"""Label selector of everything that the operator or a Job of it made."""

BUNDLE = f"{GROUP}/bundle"
"""Label of a bundle's ConfigMaps: the first 16 hex digits of its SHA-256. The operator doesn't watch what has it."""

CONTROL_KEY = "quarantined"
RESULT_KEY = "result.json"
REPORT_KEY = "report.json"
SETTINGS_KEY = "tier.yaml"
TOKEN_KEY = "token"


def tier_labels(toktier: str) -> dict[str, str]:
    return {**tier_selector(toktier), MANAGED_BY: OPERATOR, TOKTIER: toktier}


def tier_selector(toktier: str) -> dict[str, str]:
    """What selects a TokTier's pods; never changed, since a StatefulSet's selector can't be."""
    return {
        "app.kubernetes.io/name": "toktier",
        "app.kubernetes.io/instance": toktier,
        "app.kubernetes.io/component": "tier",
    }


def admission_labels(admission: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "toktier",
        "app.kubernetes.io/instance": admission,
        "app.kubernetes.io/component": "admission",
        MANAGED_BY: OPERATOR,
        ADMISSION: admission,
    }


def admission_id(admission: str, run: int) -> str:
    return f"{admission}-{run}"


def admission_of(id_: str) -> tuple[str, int] | None:
    """(admission, run) of an admission id; None for what isn't one."""
    name, dash, number = id_.rpartition("-")
    return (name, int(number)) if dash and name and re.fullmatch(r"[1-9][0-9]{0,8}", number) else None


def admission_job(admission: str, run: int) -> str:
    return f"{admission}-admit-{run}"


def admission_result(admission: str, run: int) -> str:
    return f"{admission}-run-{run}"


def run_of(admission: str, object_name: str) -> int | None:
    """The run whose Job or result has this name; None if it is neither."""
    for prefix in (f"{admission}-admit-", f"{admission}-run-"):
        number = object_name.removeprefix(prefix)
        if number != object_name and re.fullmatch(r"[1-9][0-9]{0,8}", number):
            return int(number)
    return None


def bundle_chunk(admission: str, bundle_sha256: str, k: int) -> str:
    return f"{admission}-{bundle_sha256[:16]}-{k}"


def is_bundle_chunk(admission: str, object_name: str) -> bool:
    return re.fullmatch(re.escape(admission) + r"-[0-9a-f]{16}-[0-9]+", object_name) is not None


def admission_account(admission: str) -> str:
    """ServiceAccount, Role and RoleBinding of an admission's Jobs."""
    return f"{admission}-admit"


def headless_service(toktier: str) -> str:
    return f"{toktier}-pods"


def settings(toktier: str, digest: str) -> str:
    """ConfigMap of the settings; digest: hex SHA-256 of its content."""
    return f"{toktier}-settings-{digest[:10]}"


def is_settings(toktier: str, object_name: str) -> bool:
    return re.fullmatch(re.escape(toktier) + r"-settings-[0-9a-f]{10}", object_name) is not None


def control(toktier: str) -> str:
    return f"{toktier}-control"


def reports(toktier: str) -> str:
    return f"{toktier}-reports"


def peers_secret(toktier: str) -> str:
    return f"{toktier}-peers"


def report_key(pod: str, id_: str) -> str:
    """Key of a pod's report in `T-reports`."""
    return f"{pod}.{id_}"
