"""By what operator and pods tell each other of quarantines, and the pods' own credential."""

from __future__ import annotations

from . import names
from .owned import Json, Owner


def control(owner: Owner, quarantined: str) -> Json:
    """quarantined: a JSON list of admission ids."""
    return owner.manifest("v1", "ConfigMap", names.control(owner.name)) | {"data": {names.CONTROL_KEY: quarantined}}


def reports(owner: Owner) -> Json:
    """Without `data`, which is the pods' alone: applying this takes nothing away from them."""
    return owner.manifest("v1", "ConfigMap", names.reports(owner.name))


def peers_secret(owner: Owner, token: str) -> Json:
    """Made once. The token is good for every pod of this TokTier, and for nothing else."""
    manifest = owner.manifest("v1", "Secret", names.peers_secret(owner.name))
    return manifest | {"type": "Opaque", "stringData": {names.TOKEN_KEY: token}}
