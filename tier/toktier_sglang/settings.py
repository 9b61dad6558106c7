"""The plugin's settings, from the environment, read once.

TOKTIER_ADDRESS      host:port or unix:/path of the tier's gRPC; without one the plugin does nothing
TOKTIER_MODEL        the tokenizer's name at the tier; else the one with SGLang's tokenizer.json
TOKTIER_TIMEOUT_MS   250: for one request, and a millisecond more for every 1,000 characters sent
TOKTIER_MIN_CHARS    4096: shorter texts are left to SGLang's own tokenizer
TOKTIER_TOKEN_FILE   a file whose content is sent as a bearer token; read again when it changes
TOKTIER_SHADOW_RATE  0.01: share of the tier's answers that are compared with the own tokenizer's
TOKTIER_MEMORY_MB    256: for the texts and IDs of conversations, per process
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .reasons import Off, PluginOff

MS_PER_CHAR = 0.001


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths; see `client.Tls`."""

    ca: str
    certificate: str = ""
    key: str = ""
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class PluginSettings:
    address: str
    model: str = ""
    timeout_s: float = 0.25
    min_chars: int = 4_096
    token_file: str = ""
    shadow_rate: float = 0.01
    memory_bytes: int = 256 << 20
    tls: TlsFiles | None = None

    def deadline_s(self, chars: int) -> float:
        """How long an answer may take for which `chars` characters are sent."""
        return self.timeout_s + chars * MS_PER_CHAR / 1_000


def read_settings(environment: Mapping[str, str]) -> PluginSettings | None:
    """None without an address. Raises `PluginOff` (`settings.invalid`), naming the variable."""
    address = environment.get("TOKTIER_ADDRESS", "").strip()
    if not address:
        return None

    def number(name: str, default: float, most: float) -> float:
        told = environment.get(name, "").strip()
        try:
            value = float(told) if told else default
        except ValueError:
            value = math.nan
        if not 0 <= value <= most:
            raise PluginOff(Off.SETTINGS, f"{name} is a number from 0 to {most:g}")
        return value

    timeout_s = number("TOKTIER_TIMEOUT_MS", 250, 60_000) / 1_000
    if timeout_s == 0:
        raise PluginOff(Off.SETTINGS, "TOKTIER_TIMEOUT_MS is more than 0")

    def word(name: str) -> str:
        return environment.get(name, "").strip()

    ca, certificate, key = word("TOKTIER_TLS_CA"), word("TOKTIER_TLS_CERT"), word("TOKTIER_TLS_KEY")
    if bool(certificate) != bool(key) or (certificate and not ca):
        raise PluginOff(Off.SETTINGS, "TOKTIER_TLS_CERT and TOKTIER_TLS_KEY go together, and with TOKTIER_TLS_CA")
    return PluginSettings(
        address=address,
        model=word("TOKTIER_MODEL"),
        timeout_s=timeout_s,
        min_chars=int(number("TOKTIER_MIN_CHARS", 4_096, 1 << 30)),
        token_file=word("TOKTIER_TOKEN_FILE"),
        shadow_rate=number("TOKTIER_SHADOW_RATE", 0.01, 1),
        memory_bytes=int(number("TOKTIER_MEMORY_MB", 256, 1 << 20)) << 20,
        tls=TlsFiles(ca, certificate, key, word("TOKTIER_TLS_NAME")) if ca else None,
    )
