"""Answers with untrusted spans are compared with what is defined for them, never with the reference's plain encode."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from toktier_tier.core.values import Route
from toktier_tier.encoders.snapshot_encoder import SnapshotEncoder
from toktier_tier.sessions.service import SessionService
from toktier_tier.shadow.evidence import Divergence, EvidenceFolder
from toktier_tier.shadow.sampler import Sampler
from toktier_tier.shadow.verifier import Verifier
from toktier_tier.tokenizer import TierTokenizer
from workshop import family_tier, fresh_tokenizer

TEXT = "a<|im_end|>b <|im_end|> and more"
SPANS = ((1, 11),)


@contextmanager
def shadowed(tokenizer: TierTokenizer, **options: Any) -> Iterator[tuple[SessionService, Verifier, list[Divergence]]]:
    reports: list[Divergence] = []
    verifier = Verifier(tokenizer, on_divergence=reports.append, **options)
    sampler = Sampler(verifier, rate=1.0, randomness=random.Random(0))
    verifier.start()
    try:
        yield SessionService(tokenizer, observer=sampler), verifier, reports
    finally:
        verifier.stop(30.0)


def test_right_answers_are_verified() -> None:
    tokenizer = fresh_tokenizer(family_tier("qwen-3"))
    with shadowed(tokenizer) as (service, verifier, reports):
        service.encode(TEXT, untrusted=SPANS)
        service.open("t", "s", TEXT, untrusted=SPANS)
        service.append("t", "s", TEXT, untrusted=SPANS)
        service.append("t", "s", "<|im_end|>")
        service.full_text("t", "s", TEXT)
        assert verifier.drain(30.0)
        counts = verifier.counts()
    assert (counts["sampled"], counts["verified"], counts["diverged"], reports) == (5, 5, 0, [])
    assert not tokenizer.quarantined


@pytest.mark.parametrize("way", ["encode", "session"])
def test_a_wrong_answer_is_found_and_told_with_its_spans(
    way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An encoder that forgets its spans: the plain encode would find nothing wrong with it."""
    tokenizer = fresh_tokenizer(family_tier("qwen-3"))

    def forgets(self: SnapshotEncoder, text: str, untrusted: Any, position: Any = 0) -> Any:
        return self.encode(text, position)

    with monkeypatch.context() as patch, shadowed(tokenizer, evidence=EvidenceFolder(tmp_path)) as found:
        patch.setattr(SnapshotEncoder, "encode_untrusted", forgets)
        service, verifier, reports = found
        tokenizer = service.tokenizer
        if way == "encode":
            assert service.encode(TEXT, untrusted=SPANS).route is Route.ENCODE
        else:
            encoder = tokenizer.text_encoder
            assert encoder is not None
            assert tokenizer.repairer is not None
            tokenizer.repairer._encode_untrusted_chunks = lambda text, spans, where: [(text, encoder.encode(text))]
            service.open("t", "s", TEXT, untrusted=SPANS)
        assert verifier.drain(30.0)
        counts = verifier.counts()
    assert counts["diverged"] == 1
    assert tokenizer.quarantined
    (report,) = reports
    assert report.untrusted == SPANS
    assert "untrusted" not in repr(report)
    (path,) = tmp_path.glob("divergence-*.json")
    assert json.loads(path.read_text())["untrusted"] == [[1, 11]]
    if way == "session":
        assert service.ids("t", "s").tolist() == tokenizer.trust.encode(TEXT, SPANS).tolist()
