"""What admission decided for one snapshot, in a file that names its own content.

Guarantees: a compiled snapshot is only ever used for the fingerprint, reference version and encoder versions it was
made for; a file whose bytes don't hash to its name is refused.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from ..core.boundaries import BoundaryRule, StageSummary, seal
from ..core.classes import Bools, Ranges, Settled, points_of
from ..core.errors import StateCorrupt
from ..encoders.candidates import GPU_NAME
from ..sources.cache import write_by_rename

COMPILED_FORMAT = "toktier-compiled/1"
DERIVER_VERSION = 3
"""Raised by one whenever the derivation of rules or the campaign changes. Another version's snapshots are made anew."""


class Verdict(Enum):
    ADMITTED = "Admitted"
    REFERENCE_ONLY = "ReferenceOnly"
    REJECTED = "Rejected"


@dataclass(frozen=True)
class EncoderVerdict:
    """What was found about one candidate. `unsafe` lists code point ranges (first, last) on which it differs."""

    name: str
    version: str
    verdict: Verdict
    reason: str = ""
    checks: int = 0
    divergences: int = 0
    unsafe: Ranges = ()

    def unsafe_points(self) -> Bools | None:
        if not self.unsafe:
            return None
        return points_of(self.unsafe)


@dataclass(frozen=True)
class TrustVerdict:
    """What was found about texts with untrusted spans.

    `Admitted`: the fast paths serve them; `ReferenceOnly`: the reference does, or nothing (reason `trust.unsupported`);
    `Rejected`: a fast path was caught at other IDs than those that are defined, so the reference serves them.
    """

    verdict: Verdict
    reason: str = ""
    checks: int = 0
    divergences: int = 0


def whole_name(name: str) -> str:
    """Under which the whole-file form of candidate `name` is listed."""
    return f"{name}/whole"


@dataclass(frozen=True)
class CompiledSnapshot:
    """Everything a tier needs beside the tokenizer.json: verdict, rule, encoders.

    encoder   the admitted encoder that serves: a candidate's name or `reference`
    encoders  verdicts by name; `<name>/whole` is a candidate's whole-file form, `toktier-kernels` the GPU path around
              the encoder that serves
    settled   what the normalizer leaves as it is: `always` and `alone` of `core.classes.Settled`; None: not applicable
    trust     None in files from before untrusted spans were tried: the reference serves them
    """

    fingerprint: str
    sha256: str
    reference_version: str
    verdict: Verdict
    reason: str
    rule: BoundaryRule
    encoder: str
    encoders: Mapping[str, EncoderVerdict] = field(default_factory=dict)
    longest_entry_chars: int = 1
    settled: tuple[Ranges, Ranges] | None = None
    trust: TrustVerdict | None = None

    @property
    def trust_admitted(self) -> bool:
        """Whether fast paths may serve texts with untrusted spans."""
        return self.verdict is Verdict.ADMITTED and self.trust is not None and self.trust.verdict is Verdict.ADMITTED

    @property
    def unsafe(self) -> Bools | None:
        chosen = self.encoders.get(self.encoder)
        return chosen.unsafe_points() if chosen else None

    @property
    def whole(self) -> EncoderVerdict | None:
        """The verdict on the serving encoder's whole-file form, if that was admitted."""
        found = self.encoders.get(whole_name(self.encoder))
        return found if found is not None and found.verdict is Verdict.ADMITTED else None

    def gpu(self, version: str) -> EncoderVerdict | None:
        """The verdict on the GPU path, whatever it is, if there is one and it holds for `version`."""
        found = self.encoders.get(GPU_NAME)
        return found if found is not None and found.version == version else None

    def settled_points(self) -> Settled | None:
        return Settled(*map(points_of, self.settled)) if self.settled is not None else None

    def to_bytes(self) -> bytes:
        rule = self.rule
        document: dict[str, Any] = {
            "format": COMPILED_FORMAT,
            "deriver": DERIVER_VERSION,
            "fingerprint": self.fingerprint,
            "sha256": self.sha256,
            "reference_version": self.reference_version,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "encoder": self.encoder,
            "longest_entry_chars": self.longest_entry_chars,
            "settled": self.settled,
            "encoders": {
                name: {**dataclasses.asdict(found), "verdict": found.verdict.value}
                for name, found in sorted(self.encoders.items())
            },
            "rule": {
                "kind": rule.kind,
                "reason": rule.reason,
                "detail": rule.detail,
                "digest": rule.digest,
                "left": _pack(rule.left),
                "right": _pack(rule.right),
                "table": [list(row) for row in rule.table],
                "excluded": sorted(rule.excluded),
                "adjacent": _pack(np.array(sorted(rule.adjacent), dtype="<u8").tobytes()),
                "images": dict(rule.images),
                "stages": [dataclasses.asdict(stage) for stage in rule.stages],
            },
        }
        if self.trust is not None:
            document["trust"] = {**dataclasses.asdict(self.trust), "verdict": self.trust.verdict.value}
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()


def from_bytes(data: bytes) -> CompiledSnapshot:
    """Raises `StateCorrupt` (`compiled.*`) for anything `to_bytes` of this version didn't write."""
    try:
        document: dict[str, Any] = json.loads(data)
        if document["format"] != COMPILED_FORMAT or document["deriver"] != DERIVER_VERSION:
            raise StateCorrupt("compiled.other_version", "compiled by another version")
        raw = document["rule"]
        rule = seal(
            BoundaryRule(
                raw["kind"],
                left=_unpack(raw["left"]),
                right=_unpack(raw["right"]),
                table=tuple(bytes(row) for row in raw["table"]),
                excluded=frozenset(raw["excluded"]),
                adjacent=frozenset(np.frombuffer(_unpack(raw["adjacent"]), dtype="<u8").tolist()),
                images=raw["images"],
                reason=raw["reason"],
                detail=raw["detail"],
                stages=tuple(StageSummary(**stage) for stage in raw["stages"]),
            )
        )
        if rule.digest != raw["digest"]:
            raise StateCorrupt("compiled.rule_digest", "the rule isn't the one that was written")
        encoders = {
            name: EncoderVerdict(
                **{
                    **found,
                    "verdict": Verdict(found["verdict"]),
                    "unsafe": _ranges(found["unsafe"]),
                }
            )
            for name, found in document["encoders"].items()
        }
        return CompiledSnapshot(
            document["fingerprint"],
            document["sha256"],
            document["reference_version"],
            Verdict(document["verdict"]),
            document["reason"],
            rule,
            document["encoder"],
            encoders,
            int(document["longest_entry_chars"]),
            _settled(document["settled"]),
            _trust(document.get("trust")),
        )
    except StateCorrupt:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error, OverflowError, RecursionError) as error:
        raise StateCorrupt("compiled.malformed", "not a compiled snapshot") from error


def _ranges(raw: list[list[int]]) -> Ranges:
    return tuple((int(first), int(last)) for first, last in raw)


def _settled(raw: Any) -> tuple[Ranges, Ranges] | None:
    if raw is None:
        return None
    always, alone = raw
    return _ranges(always), _ranges(alone)


def _trust(raw: Any) -> TrustVerdict | None:
    if raw is None:
        return None
    reason, checks, divergences = raw["reason"], raw["checks"], raw["divergences"]
    if not isinstance(reason, str) or type(checks) is not int or type(divergences) is not int:
        raise ValueError("a verdict's fields have other types")
    return TrustVerdict(Verdict(raw["verdict"]), reason, checks, divergences)


def save(compiled: CompiledSnapshot, directory: Path) -> Path:
    """Write `<sha256 of the content>.compiled.json` and point `<fingerprint>.ref` at it; both by rename."""
    data = compiled.to_bytes()
    digest = hashlib.sha256(data).hexdigest()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{digest}.compiled.json"
    write_by_rename(path, data)
    write_by_rename(directory / f"{compiled.fingerprint}.ref", digest.encode())
    return path


def load(directory: Path, fingerprint: str) -> CompiledSnapshot | None:
    """The compiled snapshot on file for `fingerprint`; None if there is none. Raises `StateCorrupt` if damaged."""
    try:
        digest = (directory / f"{fingerprint}.ref").read_text().strip()
        data = (directory / f"{digest}.compiled.json").read_bytes()
    except FileNotFoundError:
        return None
    if hashlib.sha256(data).hexdigest() != digest:
        raise StateCorrupt("compiled.digest", "the file's content doesn't hash to its name")
    compiled = from_bytes(data)
    if compiled.fingerprint != fingerprint:
        raise StateCorrupt("compiled.fingerprint", "the file is another snapshot's")
    return compiled


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def _unpack(text: str) -> bytes:
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.b64decode(text, validate=True), 64 << 20)
    if unpacker.unconsumed_tail:
        raise ValueError("too large")
    return data
