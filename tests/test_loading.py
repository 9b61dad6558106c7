"""Each snapshot is loaded once, and serves by a fast path only once that has encoded a probe as the reference does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from catalog import path_of
from toktier_tier import loading
from toktier_tier.admission.compiled import save
from toktier_tier.core.snapshot import SpecialTokenPolicy
from toktier_tier.loading import PROBE, Tokenizers, encodes_as_its_reference
from toktier_tier.settings import TierSettings, TokenizerSettings
from toktier_tier.shadow.faults import plant_wrong_ids
from workshop import compile_with, family_reference, family_rule, family_tier, fresh_tokenizer

FAMILY = "gpt2-novelai"


@pytest.fixture
def settings(tmp_path: Path) -> TierSettings:
    for policy in SpecialTokenPolicy:
        save(family_tier(FAMILY, policy=policy).compiled, tmp_path / "compiled")
    copy = tmp_path / "copy.json"
    shutil.copyfile(path_of(FAMILY), copy)
    sources = {"one": path_of(FAMILY), "again": path_of(FAMILY), "copy": copy}
    tokenizers = tuple(TokenizerSettings(name, str(source)) for name, source in sources.items())
    return TierSettings(tokenizers, compiled_dir=str(tmp_path / "compiled"))


def test_one_snapshot_is_loaded_once_whatever_it_is_called(
    settings: TierSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    genuine = loading.open_tokenizer

    def counted(*arguments: Any, **more: Any) -> Any:
        calls.append(arguments)
        return genuine(*arguments, **more)

    monkeypatch.setattr(loading, "open_tokenizer", counted)
    tokenizers = Tokenizers(settings)
    found = [tokenizers.open(each) for each in settings.tokenizers]
    assert found[0] is found[1] is found[2]
    assert len(calls) == 1
    template = TokenizerSettings("template", str(path_of(FAMILY)), policy="template")  # another snapshot
    assert tokenizers.open(template).fingerprint != found[0].fingerprint
    assert len(calls) == 2


def test_a_fast_path_that_misses_the_probe_is_off_from_the_start(
    settings: TierSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compile_with(family_reference(FAMILY), family_rule(FAMILY), "gigatoken")
    wrong = loading.TierTokenizer(family_reference(FAMILY), compiled, workers=1)
    plant_wrong_ids(wrong, rate=1.0, seed=1, allow=True)
    assert not encodes_as_its_reference(wrong)
    monkeypatch.setattr(loading, "open_tokenizer", lambda *_, **__: wrong)
    found = Tokenizers(settings).open(settings.tokenizers[0])
    assert found.quarantined
    assert found.encode_text(PROBE).tolist() == family_tier(FAMILY).ids(PROBE)


def test_the_probe_is_encoded_as_by_the_reference() -> None:
    assert encodes_as_its_reference(fresh_tokenizer(family_tier(FAMILY)))
