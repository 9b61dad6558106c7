"""Whether the tier's tokenizer is SGLang's own.

Guarantee: `agree` returns a snapshot's fingerprint only if that snapshot is of the very tokenizer.json that SGLang's
tokenizer was shown to follow (`own`), and its IDs were the same for all of `probes`. A fingerprint covers the file, the
version of the reference library and the policy: whatever is asked for under it later is made by what was compared.

Raises `PluginOff` for a difference, and the tier's coded errors where it can't be asked (`snapshot.not_found` if it
doesn't serve the tokenizer, now).
"""

from __future__ import annotations

from collections.abc import Sequence

from toktier_tier.client import requests
from toktier_tier.core.errors import SnapshotNotFound
from toktier_tier.transport.messages import ids_of
from toktier_tier.transport.v1 import toktier_pb2 as pb

from .link import Link
from .own import Call, Inspected, OwnTokenizer
from .probes import comparison
from .reasons import Off, PluginOff

LIST_S, PROBE_S = 5.0, 30.0


def agree(own: OwnTokenizer, inspected: Inspected, link: Link, model: str) -> str:
    listed = link.call("ListSnapshots", pb.ListSnapshotsRequest(), LIST_S).snapshots
    fingerprint = chosen(listed, inspected.sha256, model)
    for number, text in enumerate(comparison(inspected.added)):
        answer = link.call("Encode", requests.encode(fingerprint, "", text, None), PROBE_S)
        found: list[int] = ids_of(answer.patch.ids).tolist()
        if not text and found:
            raise PluginOff(Off.ADDS_TOKENS, "serve this tokenizer with `policy: none` for the plugin")
        if found != own.ids(Call.CHAT_PLAIN, text):
            raise PluginOff(Off.PROBE, f"the tier has other IDs for probe {number}, snapshot {fingerprint[:16]}")
    return fingerprint


def chosen(listed: Sequence[pb.Snapshot], sha256: str, model: str) -> str:
    """The fingerprint of the snapshot that `model` names, or of the one of this file."""
    if not model:
        fitting = [snapshot.fingerprint for snapshot in listed if snapshot.sha256 == sha256]
        if not fitting:
            raise SnapshotNotFound("snapshot.not_found", f"the tier serves no tokenizer.json with SHA-256 {sha256}")
        return fitting[0]
    for snapshot in listed:
        if model in (snapshot.name, snapshot.fingerprint, *snapshot.models):
            if snapshot.sha256 != sha256:
                raise PluginOff(Off.FINGERPRINT, f"the tier's file is {snapshot.sha256}, SGLang's {sha256}")
            return str(snapshot.fingerprint)
    raise SnapshotNotFound("snapshot.not_found", f"the tier serves no tokenizer named {model!r}")
