"""HOST:PORT and URLs, where a pattern can't count."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from .findings import Notes


def check_address(notes: Notes, path: str, address: str) -> str:
    """`address` is HOST:PORT or a URL. Returns the host in lower case, "" if it isn't one of them."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        notes.error(path, f"{address} has no port from 1 to 65535; correct it")
        return ""
    if port == 0:
        notes.error(path, f"{address} has no port from 1 to 65535; correct it")
    if not host:
        notes.error(path, f"{address} names no host; correct it")
    return host.lower()


def check_cidr(notes: Notes, path: str, cidr: str, excepted: tuple[str, ...] = ()) -> None:
    network = _network(notes, path, cidr)
    for each in excepted:
        inner = _network(notes, f"{path}.except", each)
        if network is None or inner is None:
            continue
        if inner.version != network.version or not _contains(network, inner):
            notes.error(f"{path}.except", f"{each} isn't within {cidr}; correct one of them")


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _network(notes: Notes, path: str, cidr: str) -> Network | None:
    try:
        if "/" not in cidr:
            raise ValueError
        return ipaddress.ip_network(cidr)
    except ValueError:
        notes.error(path, f"{cidr} is no network like 10.0.0.0/8 (all bits right of the length are 0); correct it")
        return None


def _contains(outer: Network, inner: Network) -> bool:
    return inner.prefixlen >= outer.prefixlen and int(inner.network_address) & int(outer.netmask) == int(
        outer.network_address
    )
