"""Tokenizers made ready to serve, as the settings name them.

Guarantees: each snapshot is loaded and admitted once, however many names share it; what is returned has encoded a probe
as its reference does. A fast path that hasn't is off from the start. What isn't the tokenizer that the settings tell
isn't served at all (`snapshot.mismatch`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from .admission.apart import Apart
from .admission.apart_worker import PROBE
from .app import open_snapshot
from .children import Limits
from .core.errors import (
    InvalidPattern,
    InvalidRequest,
    InvalidTokenizer,
    StateCorrupt,
    TierError,
    UnsupportedTokenizer,
)
from .core.snapshot import Snapshot, SpecialTokenPolicy, parse_snapshot
from .encoders.reference import REFERENCE_VERSION
from .engine.chat_files import load_chat_template
from .engine.chat_template import ChatRenderer, Server
from .engine.folder import Loading
from .findings import Findings
from .folders import loading_for
from .gpu_service import Gpu, open_gpu
from .pods.held import PodSessions
from .sessions.registry import Registry, Served
from .sessions.service import SessionService
from .settings import TierSettings, TokenizerSettings, faults_allowed, injected_fault_rate
from .shadow.apart import ReferenceApart
from .shadow.evidence import Divergence, EvidenceFolder
from .shadow.faults import plant_wrong_ids
from .shadow.sampler import Sampler
from .shadow.verifier import Verifier
from .sources import default_cache_dir, load_files, load_source
from .tokenizer import TierTokenizer

log = logging.getLogger("toktier")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What there is to serve. Verifiers are by the first name of their tokenizer, `admissions` by the ids that the
    operator knows them by; `findings` are of these tokenizers; `loadings`, by name, what engines make of them."""

    registry: Registry
    renderers: dict[str, ChatRenderer]
    verifiers: dict[str, Verifier]
    admissions: Mapping[str, TierTokenizer] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    loadings: Mapping[str, Loading] = field(default_factory=dict)


class Tokenizers:
    """Opens what the settings name; what is the same file under the same policy is opened once.

    Raises `EncoderUnavailable` (`kernels.*`) where the settings require a GPU and none works.
    """

    def __init__(self, settings: TierSettings, findings: Findings | None = None) -> None:
        self._settings, self._findings = settings, findings or Findings()
        self._gpu = _gpu(settings)
        self._opened: dict[tuple[str, SpecialTokenPolicy], TierTokenizer] = {}

    def open(self, each: TokenizerSettings) -> TierTokenizer:
        """Raises `StateCorrupt` (`snapshot.mismatch`) for another tokenizer than `each` tells, and what
        `parse_snapshot` and `open_snapshot` raise."""
        data = _data_of(each)
        key = (hashlib.sha256(data).hexdigest(), each.special_tokens)
        found = self._opened.get(key)
        if found is None:
            snapshot = parse_snapshot(data, reference_version=REFERENCE_VERSION, policy=each.special_tokens)
            found = self._opened[key] = self._open(each, snapshot)
        _check_fingerprint(each, found.fingerprint)
        return found

    def _open(self, each: TokenizerSettings, snapshot: Snapshot) -> TierTokenizer:
        settings = self._settings
        _check_fingerprint(each, snapshot.fingerprint)  # before a campaign is run on it
        given = each.compiled_dir or settings.compiled_dir
        found = open_snapshot(
            snapshot,
            compiled_dir=Path(given) if given else default_cache_dir() / "compiled",
            unadmitted=settings.unadmitted,
            budget_s=settings.admission_s,
            gpu=self._gpu,
            name=each.name,
            apart=Apart(Limits(settings.admission_memory_bytes)),
        )
        if not encodes_as_its_reference(found):
            if found.quarantine():
                self._findings.probe_failed(found)
            log.error("tokenizer %s: its probe isn't encoded as by the reference, quarantined", each.name)
        return found


def _gpu(settings: TierSettings) -> Gpu | None:
    given = settings.gpu
    return open_gpu(
        given.mode,
        device=given.device,
        threshold_chars=given.threshold_chars,
        memory_bytes=given.memory_bytes,
        admission_s=given.admission_s,
    )


def _data_of(each: TokenizerSettings) -> bytes:
    """The tokenizer.json, once it is what the settings tell, with what lies beside it or by itself."""
    if not each.sha256:
        return load_source(each.source).data
    files = load_files(each.source)
    if each.sha256 not in (files.sha256, hashlib.sha256(files.tokenizer).hexdigest()):
        _mismatch(each, "sha256", each.sha256, files.sha256)
    return files.tokenizer


def _check_fingerprint(each: TokenizerSettings, fingerprint: str) -> None:
    if each.fingerprint not in ("", fingerprint):
        _mismatch(each, "fingerprint", each.fingerprint, fingerprint)


def _mismatch(each: TokenizerSettings, what: str, told: str, found: str) -> NoReturn:
    message = f"tokenizer {each.name}: its {what} is {found[:16]}..., the settings tell {told[:16]}..."
    raise StateCorrupt("snapshot.mismatch", message, tokenizer=each.name, told=told, found=found)


def encodes_as_its_reference(tokenizer: TierTokenizer) -> bool:
    try:
        return bool(tokenizer.encode_text(PROBE).tolist() == tokenizer.reference.encode_text(PROBE).tolist())
    except Exception as error:
        log.error("the probe failed: %s", type(error).__name__)
        return False


def load(settings: TierSettings) -> Loaded:
    """Takes seconds to minutes. Raises the coded errors of sources, snapshots and templates.

    A tokenizer whose file is refused isn't served, and the others are: requests for it get `snapshot.refused`. Its
    error is raised if it is from an operator's admission, whose rollout goes by what is ready, or if all are refused.
    """
    findings = Findings()
    refused: dict[TokenizerSettings, TierError] = {}
    tokenizers, verifiers = Tokenizers(settings, findings), _Verifiers(settings, findings)
    served: list[Served] = []
    admissions: dict[str, TierTokenizer] = {}
    for each in settings.tokenizers:
        try:
            tokenizer = tokenizers.open(each)
        except (InvalidTokenizer, UnsupportedTokenizer, InvalidPattern) as error:
            if each.admission:
                raise
            log.error("tokenizer %s isn't served: %s", each.name, error)
            refused[each] = error
            continue
        if each.admission and admissions.setdefault(each.admission, tokenizer) is not tokenizer:
            raise InvalidRequest("settings.value", f"admission {each.admission} is of two snapshots")
        served.append(_served(settings, each, tokenizer, verifiers, served))
    if not served:
        raise next(iter(refused.values()))
    registry = Registry(served, {name: error for each, error in refused.items() for name in (each.name, *each.models)})
    opened = [each for each in settings.tokenizers if each not in refused]
    loadings = {each.name: loading_for(each, registry.find(each.name).tokenizer.reference) for each in opened}
    templates = [each for each in opened if each.chat_template]
    found = {each.name: _renderer(each, registry, loadings[each.name]) for each in templates}
    renderers = {name: renderer for name, renderer in found.items() if renderer is not None}
    return Loaded(registry, renderers, verifiers.by_name, admissions, findings, loadings)


class _Verifiers:
    """One for each tokenizer, whatever its names."""

    def __init__(self, settings: TierSettings, findings: Findings) -> None:
        self._settings, self.findings = settings, findings
        self._by_fingerprint: dict[str, Verifier] = {}
        self.by_name: dict[str, Verifier] = {}

    def of(self, name: str, tokenizer: TierTokenizer) -> Verifier:
        found = self._by_fingerprint.get(tokenizer.fingerprint)
        if found is not None:
            return found
        shadow = self._settings.shadow
        if shadow.fault_rate:
            plant_wrong_ids(tokenizer, rate=shadow.fault_rate, seed=0, allow=faults_allowed())
        elif (rate := injected_fault_rate()) and tokenizer.cores is not None and not tokenizer.quarantined:
            log.error("tokenizer %s: wrong IDs are planted on purpose, in a share of %s", name, rate)
            plant_wrong_ids(tokenizer, rate=rate, seed=0, allow=faults_allowed())

        def diverged(found: Divergence) -> None:
            log.error("tokenizer %s: quarantined, %r", name, found)
            self.findings.diverged(tokenizer, found)

        found = self._by_fingerprint[tokenizer.fingerprint] = self.by_name[name] = Verifier(
            tokenizer,
            queue_samples=shadow.queue,
            queue_bytes=shadow.queue_bytes,
            apart=ReferenceApart(tokenizer.reference.snapshot) if shadow.process and shadow.rate else None,
            evidence=EvidenceFolder(Path(shadow.samples) if shadow.samples else None, redact=shadow.redact),
            on_divergence=diverged,
        )
        return found


def _served(
    settings: TierSettings,
    each: TokenizerSettings,
    tokenizer: TierTokenizer,
    verifiers: _Verifiers,
    others: Sequence[Served],
) -> Served:
    """With several pods, the names of one snapshot share its sessions: other pods know it by its fingerprint."""
    limits, several = settings.sessions, settings.pods.several
    if several:
        twin = next((other for other in others if other.tokenizer is tokenizer), None)
        if twin is not None:
            return Served(each.name, each.models, tokenizer, twin.sessions, each.admission)
    sampler = Sampler(verifiers.of(each.name, tokenizer), rate=settings.shadow.rate, randomness=random.Random())

    def mistrusted(reason: str) -> None:
        log.error("tokenizer %s: quarantined, %s", each.name, reason)
        verifiers.findings.witness_failed(tokenizer)

    kind = PodSessions if several else SessionService
    sessions = kind(
        tokenizer,
        budget_bytes=limits.budget_bytes,
        tenant_budget_bytes=limits.tenant_budget_bytes or None,
        ttl_s=limits.ttl_s,
        keep_text=limits.keep_text,
        max_text_chars=limits.max_text_chars,
        observer=sampler,
        on_quarantine=mistrusted,
    )
    return Served(each.name, each.models, tokenizer, sessions, each.admission)


def _renderer(each: TokenizerSettings, registry: Registry, loading: Loading) -> ChatRenderer | None:
    """None where SGLang would know a special token that the tokenizer.json doesn't: it then matches in text."""
    template = load_chat_template(Path(each.chat_template))
    reference = registry.find(each.name).tokenizer.reference
    known = {token.content for token in reference.added_tokens()}
    unknown = sorted(set(template.special_tokens.values()) - known)
    if unknown:
        log.error("tokenizer %s: chats go on as text, %s are no added tokens", each.name, unknown[:5])
        return None
    prefix, suffix = reference.fixed_template() if loading.prefix is None else (loading.prefix, ())
    bos = template.special_tokens.get("bos_token", "")
    model = _model_config(Path(each.chat_template))
    return ChatRenderer(
        template.text,
        special_tokens=template.special_tokens,
        server=Server(
            empty_text_ids=prefix + suffix,
            bos_id=reference.id_of(bos) if bos else None,
            model_type=str(model.get("model_type", "")),
            architecture=str(next(iter(model.get("architectures") or ()), "")),
            reasoning_parser=each.reasoning_parser or None,
            tool_call_parser=each.tool_call_parser or None,
        ),
        content_format=template.content_format,
        untrusted_roles=each.untrusted_roles,
        message_ends=0,
    )


def _model_config(directory: Path) -> dict[str, Any]:
    """The model's config.json, if it lies there: some models' chats SGLang encodes in its own way."""
    try:
        document = json.loads((directory / "config.json").read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidTokenizer("chat.config", f"the model's config.json can't be read: {error}"[:200]) from None
    return document if isinstance(document, dict) else {}
