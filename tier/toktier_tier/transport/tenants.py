"""Who a request is for, as values: whatever the credential was that told it."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..core.errors import InvalidRequest

ANONYMOUS_TENANT = "default"
"""Of everybody, where no credentials are configured."""
TENANT_KEY = "x-toktier-tenant"
"""Metadata in which a peer names the tenant that it calls for."""
FORWARDED_KEY = "x-toktier-forwarded"
"""Metadata in which a pod that forwards a call names itself."""
OWN_TENANT = "(tier)"
"""Of the tier's own probes: no credential can give this name."""
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+=-]{0,255}")


class Identity(NamedTuple):
    """peer: another pod of this tier."""

    tenant: str
    peer: bool = False


NO_TENANT = Identity("(pods)", True)
"""Another pod that names nobody it calls for, where tenants are told apart."""


class ClientNames(NamedTuple):
    """What a verified client certificate calls its owner."""

    common_names: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()


def is_tenant(name: str) -> bool:
    return _TENANT.fullmatch(name) is not None


def check_tenant(name: str) -> str:
    """Raises `InvalidRequest` (`auth.bad_tenant`) for what can't be a tenant's name."""
    if not is_tenant(name):
        raise InvalidRequest("auth.bad_tenant", "a tenant has 1 to 256 letters, digits and ._:/@+=-")
    return name


def is_peer(role: str) -> bool:
    """Raises `InvalidRequest` (`auth.bad_role`) for what is no role."""
    if role not in ("user", "peer"):
        raise InvalidRequest("auth.bad_role", "a role is user or peer")
    return role == "peer"
