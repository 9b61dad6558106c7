"""Which other objects a spec names. They may come later, so that their absence is a warning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...api.admission_spec import AdmissionSpec
from ...api.toktier_spec import TokTierSpec
from .findings import Findings, Notes


@dataclass(frozen=True, slots=True)
class Reference:
    """kind: ConfigMap, Secret, Service or TokenizerAdmission; path: of the field that names it."""

    kind: str
    namespace: str
    name: str
    path: str


def references_of_admission(spec: AdmissionSpec, namespace: str) -> tuple[Reference, ...]:
    found: list[Reference] = []
    source = spec.source
    if source.config_map is not None:
        found.append(Reference("ConfigMap", namespace, source.config_map.name, "spec.source.configMap"))
    if source.secret is not None:
        found.append(Reference("Secret", namespace, source.secret.name, "spec.source.secret"))
    if source.hugging_face is not None and source.hugging_face.token_secret is not None:
        secret = source.hugging_face.token_secret
        found.append(Reference("Secret", namespace, secret.name, "spec.source.huggingFace.tokenSecret"))
    for index, corpus in enumerate(spec.campaign.corpora):
        if corpus.config_map is not None:
            path = f"spec.campaign.corpora[{index}].configMap"
            found.append(Reference("ConfigMap", namespace, corpus.config_map.name, path))
    return tuple(found)


def references_of_toktier(spec: TokTierSpec, namespace: str) -> tuple[Reference, ...]:
    found = [
        Reference("TokenizerAdmission", namespace, each.admission, f"spec.tokenizers[{index}].admission")
        for index, each in enumerate(spec.tokenizers)
    ]
    upstream = spec.upstream
    if upstream is not None and upstream.service is not None:
        service = upstream.service
        found.append(Reference("Service", service.namespace or namespace, service.name, "spec.upstream.service"))
    if upstream is not None and upstream.auth_secret is not None:
        found.append(Reference("Secret", namespace, upstream.auth_secret.name, "spec.upstream.authSecret"))
    security = spec.security
    if security.tokens_secret is not None:
        found.append(Reference("Secret", namespace, security.tokens_secret.name, "spec.security.tokensSecret"))
    if security.tls is not None:
        found.append(Reference("Secret", namespace, security.tls.secret_name, "spec.security.tls.secretName"))
        authority = security.tls.client_ca
        if authority is not None:
            kind, reference = (
                ("ConfigMap", authority.config_map) if authority.config_map else ("Secret", authority.secret)
            )
            assert reference is not None
            found.append(Reference(kind, namespace, reference.name, "spec.security.tls.clientCA"))
    return tuple(found)


def absent(missing: Iterable[Reference]) -> Findings:
    notes = Notes()
    for each in missing:
        notes.warning(each.path, f"there is no {each.kind} {each.name} in namespace {each.namespace} yet")
    return notes.findings()
