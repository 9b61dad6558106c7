"""Rechecking a patch's certificate with nothing but the texts, the old IDs and the rule.

Guarantee: if `verify_certificate` returns, the IDs that the patch keeps are kept rightly: the kept text is the
same in both versions, and trusted in the same places, it ends (and begins again) at boundaries of the very rule that
was admitted, and the witness IDs are those that the old answer had there. With `encode`, the patch's own IDs are
computed again too, and so is the number of old IDs that it skips.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from .boundaries import BoundaryRule
from .errors import CertificateInvalid
from .pipeline import Position
from .trust import NO_SPANS, Spans, clipped
from .values import Ids, Patch


def verify_certificate(
    patch: Patch,
    *,
    fingerprint: str,
    rule: BoundaryRule,
    old_text: str,
    new_text: str,
    old_ids: Ids,
    encode: Callable[[str, Position], Ids] | None = None,
    old_untrusted: Spans = NO_SPANS,
    new_untrusted: Spans = NO_SPANS,
    encode_untrusted: Callable[[str, Spans, Position], Ids] | None = None,
) -> None:
    """Raises `CertificateInvalid` with the condition that fails; `old_ids` include the template's tokens.

    The untrusted spans are those of the whole texts; where there are any, `encode` goes with `encode_untrusted`.
    """
    certificate = patch.certificate
    if certificate is None:
        _fail("certificate.missing", "the patch replaces everything or nothing and carries no certificate")
    if certificate.fingerprint != fingerprint or certificate.rule_digest != rule.digest:
        _fail("certificate.other_rule", "the certificate is about another snapshot or rule")
    window, boundary, resume = certificate.window_chars, certificate.boundary_chars, certificate.resume_chars
    if certificate.text_chars != len(new_text) or not 0 <= window <= boundary <= resume <= len(new_text):
        _fail("certificate.positions", "the positions don't fit the text")
    kept_behind = len(new_text) - resume
    old_resume = len(old_text) - kept_behind
    if old_resume < boundary or old_text[:boundary] != new_text[:boundary]:
        _fail("certificate.text", "the text left of the boundary isn't the same")
    if old_text[old_resume:] != new_text[resume:]:
        _fail("certificate.text", "the text right of the window isn't the same")
    if clipped(old_untrusted, 0, boundary) != clipped(new_untrusted, 0, boundary) or clipped(
        old_untrusted, old_resume, len(old_text)
    ) != clipped(new_untrusted, resume, len(new_text)):
        _fail("certificate.untrusted", "the kept text isn't trusted in the same places")
    for text, position in (
        (new_text, window),
        (new_text, boundary),
        (old_text, boundary),
        (new_text, resume),
        (old_text, old_resume),
    ):
        if 0 < position < len(text) and not rule.holds(text[position - 1], text[position]):
            _fail("certificate.boundary", "a position is no boundary of the rule")
    overlap = certificate.overlap_tokens
    witness = old_ids[patch.keep - overlap : patch.keep] if 0 <= overlap <= patch.keep else old_ids[:0]
    if len(witness) != overlap or _digest(witness) != certificate.overlap_digest:
        _fail("certificate.witness", "the witness IDs aren't those of the old answer")
    if patch.total != patch.keep + len(patch.ids) + len(old_ids) - patch.resume:
        _fail("certificate.total", "the patch's parts don't add up")
    if encode is not None:
        position = Position.CONTINUATION if window else Position.TEXT_START

        def encoded(text: str, untrusted: Spans) -> Ids:
            if not untrusted:
                return encode(text, position)
            if encode_untrusted is None:
                _fail("certificate.untrusted", "nothing was given that encodes untrusted text")
            return encode_untrusted(text, untrusted, position)

        again = encoded(new_text[window:resume], clipped(new_untrusted, window, resume))
        if again.tobytes() != np.concatenate([witness, patch.ids]).tobytes():
            _fail("certificate.ids", "encoding the window again gives other IDs")
        replaced = encoded(old_text[window:old_resume], clipped(old_untrusted, window, old_resume))
        if replaced.tobytes() != old_ids[patch.keep - overlap : patch.resume].tobytes():
            _fail("certificate.ids", "the old text of the window doesn't give the IDs that are replaced")


def _digest(ids: Ids) -> bytes:
    return hashlib.blake2b(ids.tobytes(), digest_size=16).digest()


def _fail(code: str, why: str) -> NoReturn:
    raise CertificateInvalid(code, why)
