"""Volumes of a tier's pod and where its containers mount them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..api.references import KeyReference
from ..api.rollout import Composition
from ..api.toktier_spec import TokTierSpec
from . import names, paths
from .owned import Json, Owner

SECRET_MODE = 0o440
"""Readable by the pod's group, which is its own."""


@dataclass(frozen=True, slots=True)
class Volumes:
    volumes: list[Json] = field(default_factory=list)
    tier: list[Json] = field(default_factory=list)
    snapshots: list[Json] = field(default_factory=list)

    def add(self, name: str, source: Json, path: str, *, tier: bool = True, snapshots: bool = False) -> None:
        self.volumes.append({"name": name} | source)
        mount: Json = {"name": name, "mountPath": path}
        if "emptyDir" not in source:
            mount["readOnly"] = True
        if tier:
            self.tier.append(mount)
        if snapshots:
            self.snapshots.append(dict(mount))


def pod_volumes(owner: Owner, spec: TokTierSpec, composition: Composition, settings_name: str) -> Volumes:
    found = Volumes()
    found.add("settings", {"configMap": {"name": settings_name}}, paths.SETTINGS)
    found.add("peers", _secret(names.peers_secret(owner.name)), paths.PEERS)
    found.add("snapshots", {"emptyDir": {}}, paths.SNAPSHOTS, snapshots=True)
    found.add("tmp", {"emptyDir": {}}, paths.TMP, snapshots=True)
    bundles = {each.id: each.config_maps for each in composition.tokenizers}
    for index, (admission_id, config_maps) in enumerate(bundles.items()):
        chunks = {"projected": {"sources": [{"configMap": {"name": name}} for name in config_maps]}}
        found.add(f"bundle-{index}", chunks, f"{paths.BUNDLES}/{admission_id}", tier=False, snapshots=True)
    security, upstream = spec.security, spec.upstream
    if security.tokens_secret is not None:
        found.add("tokens", _secret_key(security.tokens_secret), paths.TOKENS)
    if security.tls is not None:
        found.add("tls", _secret(security.tls.secret_name), paths.TLS)
        authority = security.tls.client_ca
        if authority is not None and authority.secret is not None:
            found.add("client-ca", _secret_key(authority.secret), paths.CLIENT_CA)
        elif authority is not None and authority.config_map is not None:
            reference = authority.config_map
            source = {"name": reference.name, "items": [{"key": reference.key, "path": reference.key}]}
            found.add("client-ca", {"configMap": source}, paths.CLIENT_CA)
    if upstream is not None and upstream.auth_secret is not None:
        found.add("upstream", _secret_key(upstream.auth_secret), paths.UPSTREAM)
    found.volumes.extend(dict(each) for each in spec.pod_template.volumes)
    found.tier.extend(dict(each) for each in spec.pod_template.volume_mounts)
    return found


def _secret(name: str) -> Json:
    return {"secret": {"secretName": name, "defaultMode": SECRET_MODE}}


def _secret_key(reference: KeyReference) -> Json:
    """That key alone: a pod sees no more of a Secret than it is told of."""
    source = _secret(reference.name)
    source["secret"]["items"] = [{"key": reference.key, "path": reference.key}]
    return source
