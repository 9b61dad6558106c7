"""The API server's questions before it stores a custom resource: defaults, then what is wrong with it.

Ids are the paths of docs/decisions/0008: `/default-toktier` and so on. The schema and its CEL rules have been applied
when a validating handler is asked. A change that leaves the spec as it is, or is of an object on its way out, is never
refused, so that no rule of a newer operator stands in the way of labels, finalizers and deletion.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import kopf

from ..api.admission_spec import AdmissionSpec
from ..api.group import GROUP, TOKENIZER_ADMISSION, TOKTIER, VERSION, Resource
from ..api.structure import SpecError
from ..api.toktier_spec import TokTierSpec
from ..cluster import kinds
from ..cluster.errors import ClusterError
from ..policies.defaulting import default_admission, default_toktier
from ..policies.validation import (
    Findings,
    Reference,
    absent,
    references_of_admission,
    references_of_toktier,
    validate_admission,
    validate_toktier,
)

LOOK_UP_S = 3.0
"""For all references together: the API server waits for an answer."""

_KINDS = {kind.kind: kind for kind in (kinds.CONFIG_MAP, kinds.SECRET, kinds.SERVICE, kinds.TOKENIZER_ADMISSION)}
log = logging.getLogger("toktier.operator")


class Finder(Protocol):
    """`cluster.client.Cluster`, as far as it is needed here."""

    async def get_metadata(self, kind: kinds.Kind, namespace: str, name: str) -> kinds.Json | None: ...


def serve(settings: kopf.OperatorSettings, directory: Path, port: int) -> None:
    """Answer on `port` with the certificate in `directory`, which is read again when it changes."""
    settings.admission.managed = None
    settings.admission.server = kopf.WebhookServer(
        addr="0.0.0.0",
        port=port,
        certfile=directory / "tls.crt",
        pkeyfile=directory / "tls.key",
        cafile=directory / "ca.crt" if (directory / "ca.crt").exists() else None,
        file_check_interval=10.0,
    )


def register(registry: kopf.OperatorRegistry, finder: Finder) -> None:
    """All four handlers; `finder` tells which objects exist."""

    async def admission_is_valid(
        body: kopf.Body, old: kopf.Body | None, namespace: str | None, warnings: list[str], **_: object
    ) -> None:
        if _settled(body, old):
            return
        spec = _read(AdmissionSpec, body)
        named = references_of_admission(spec, namespace or "")
        _answer(validate_admission(spec) + absent(await missing(finder, named)), warnings)

    async def toktier_is_valid(
        body: kopf.Body,
        old: kopf.Body | None,
        name: str | None,
        namespace: str | None,
        warnings: list[str],
        **_: object,
    ) -> None:
        if _settled(body, old):
            return
        spec = _read(TokTierSpec, body)
        named = references_of_toktier(spec, namespace or "")
        findings = validate_toktier(spec, name or "", namespace or "")
        _answer(findings + absent(await missing(finder, named)), warnings)

    async def admission_defaults(body: kopf.Body, patch: kopf.Patch, **_: object) -> None:
        _merge(patch, default_admission(body))

    async def toktier_defaults(body: kopf.Body, patch: kopf.Patch, **_: object) -> None:
        _merge(patch, default_toktier(body))

    for resource, valid, defaults in (
        (TOKENIZER_ADMISSION, admission_is_valid, admission_defaults),
        (TOKTIER, toktier_is_valid, toktier_defaults),
    ):
        _on(registry, resource, valid, defaults)


def _on(registry: kopf.OperatorRegistry, resource: Resource, valid: Any, defaults: Any) -> None:
    where = (GROUP, VERSION, resource.plural)
    word = resource.kind.lower()
    operations: Any = ["CREATE", "UPDATE"]
    kopf.on.validate(*where, id=f"validate-{word}", operations=operations, registry=registry)(valid)
    kopf.on.mutate(*where, id=f"default-{word}", operations=operations, registry=registry)(defaults)


async def missing(finder: Finder, references: Iterable[Reference]) -> list[Reference]:
    """Those of which the API server says that they don't exist; what it doesn't say in time isn't among them."""

    async def is_missing(reference: Reference) -> bool:
        try:
            return await finder.get_metadata(_KINDS[reference.kind], reference.namespace, reference.name) is None
        except ClusterError as error:
            log.debug("%s %s not looked up: %s", reference.kind, reference.name, error)
            return False

    named = list(references)
    try:
        async with asyncio.timeout(LOOK_UP_S):
            found = await asyncio.gather(*map(is_missing, named))
    except TimeoutError:
        return []
    return [reference for reference, gone in zip(named, found, strict=True) if gone]


def _settled(body: Mapping[str, Any], old: Mapping[str, Any] | None) -> bool:
    if body.get("metadata", {}).get("deletionTimestamp"):
        return True
    return old is not None and old.get("spec") == body.get("spec")


def _read(kind: Any, body: Mapping[str, Any]) -> Any:
    try:
        return kind.of(body)
    except SpecError as error:
        raise kopf.AdmissionError(str(error), code=422) from None


def _answer(findings: Findings, warnings: list[str]) -> None:
    if findings.errors:
        raise kopf.AdmissionError(findings.refusal, code=422)
    warnings.extend(findings.warnings)


def _merge(patch: kopf.Patch, changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        patch[key] = value
