"""The names of `toktier.v1.TokenizerService`, as its descriptor has them."""

from __future__ import annotations

from google.protobuf.descriptor import MethodDescriptor

from .v1 import toktier_pb2 as pb

_DESCRIPTOR = pb.DESCRIPTOR.services_by_name["TokenizerService"]
SERVICE: str = _DESCRIPTOR.full_name
MULTIPLEX = "Multiplex"
METHODS: tuple[MethodDescriptor, ...] = tuple(method for method in _DESCRIPTOR.methods if method.name != MULTIPLEX)
"""One request and one answer each."""


def path_of(method: str) -> str:
    return f"/{SERVICE}/{method}"
