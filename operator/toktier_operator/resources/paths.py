"""Where things are in a tier's pod: the mounts of docs/decisions/0008-operator.md, and ports."""

from __future__ import annotations

SETTINGS = "/etc/toktier"
TOKENS = "/etc/toktier-tokens"
TLS = "/etc/toktier-tls"
CLIENT_CA = "/etc/toktier-client-ca"
UPSTREAM = "/etc/toktier-upstream"
PEERS = "/var/run/toktier/peers"
BUNDLES = "/bundles"
SNAPSHOTS = "/snapshots"
TMP = "/tmp"
SAMPLES = "/tmp/samples"

HTTP_PORT = 8080
GRPC_PORT = 50051


def snapshot(admission_id: str) -> str:
    """The folder of a tokenizer.json and what lies beside it."""
    return f"{SNAPSHOTS}/{admission_id}/snapshot"


def compiled(admission_id: str) -> str:
    return f"{SNAPSHOTS}/{admission_id}/compiled"
