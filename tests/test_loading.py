"""Each snapshot is loaded once, and serves by a fast path only once that has encoded a probe as the reference does."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from catalog import path_of
from toktier_tier import app, cli, loading
from toktier_tier.admission import apart
from toktier_tier.admission.apart import Apart
from toktier_tier.admission.compiled import CompiledSnapshot, EncoderVerdict, Verdict, save
from toktier_tier.children import Limits
from toktier_tier.core.errors import InvalidRequest, SnapshotNotFound, StateCorrupt, StateError, UnsupportedTokenizer
from toktier_tier.core.snapshot import SpecialTokenPolicy
from toktier_tier.encoders.candidates import GPU_NAME
from toktier_tier.findings import Finding, Findings
from toktier_tier.loading import PROBE, Tokenizers, encodes_as_its_reference, load
from toktier_tier.settings import ShadowSettings, TierSettings, TokenizerSettings
from toktier_tier.shadow.faults import plant_wrong_ids
from toktier_tier.sources import load_files
from toktier_tier.tokenizer import TierTokenizer
from workshop import (
    byte_level,
    byte_telltale,
    compile_with,
    family_reference,
    family_rule,
    family_tier,
    fresh_tokenizer,
    normalizers,
    replace,
    tokenizer_json,
)

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
    genuine = loading.open_snapshot

    def counted(*arguments: Any, **more: Any) -> Any:
        calls.append(arguments)
        return genuine(*arguments, **more)

    monkeypatch.setattr(loading, "open_snapshot", counted)
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
    monkeypatch.setattr(loading, "open_snapshot", lambda *_, **__: wrong)
    findings = Findings()
    found = Tokenizers(settings, findings).open(settings.tokenizers[0])
    assert found.quarantined
    told: list[Finding] = []
    findings.subscribe(told.append)
    assert told == [Finding(wrong, "probe", "gigatoken")]
    assert found.encode_text(PROBE).tolist() == family_tier(FAMILY).ids(PROBE)


def test_the_probe_is_encoded_as_by_the_reference() -> None:
    assert encodes_as_its_reference(fresh_tokenizer(family_tier(FAMILY)))


# --- what the operator says is there ----------------------------------------------------------------------------


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """As a bundle unpacks: a tokenizer.json with something beside it."""
    folder = tmp_path / "a-1" / "snapshot"
    folder.mkdir(parents=True)
    shutil.copyfile(path_of(FAMILY), folder / "tokenizer.json")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def one(source: Path, compiled: Path, unadmitted: str = "refuse", **more: Any) -> TierSettings:
    return TierSettings(
        (TokenizerSettings("m", str(source), compiled_dir=str(compiled), **more),), unadmitted=unadmitted
    )


def opened(settings: TierSettings) -> TierTokenizer:
    return Tokenizers(settings).open(settings.tokenizers[0])


@pytest.fixture
def no_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a campaign was run")

    monkeypatch.setattr(app, "admit_apart", refuse)


@pytest.mark.usefixtures("no_campaign")
def test_what_the_settings_tell_is_there_or_nothing_is_served(snapshot: Path, tmp_path: Path) -> None:
    tier = family_tier(FAMILY)
    save(tier.compiled, tmp_path / "c")
    right = {"sha256": load_files(str(snapshot)).sha256, "fingerprint": tier.compiled.fingerprint}
    found = opened(one(snapshot, tmp_path / "c", **right))
    assert (found.fingerprint, found.compiled.verdict, found.repairer is None) == (
        right["fingerprint"],
        Verdict.ADMITTED,
        False,
    )
    alone = hashlib.sha256(path_of(FAMILY).read_bytes()).hexdigest()
    assert opened(one(snapshot, tmp_path / "c", sha256=alone)).fingerprint == right["fingerprint"]
    for wrong in ({"sha256": "0" * 64}, {"fingerprint": "0" * 64}, {**right, "policy": "template"}):
        for unadmitted in ("admit", "reference", "refuse"):
            with pytest.raises(StateCorrupt) as caught:
                opened(one(snapshot, tmp_path / "c", unadmitted, **wrong))
            assert caught.value.code == "snapshot.mismatch"
    (snapshot / "chat_template.jinja").write_text("{{ messages }} and more")
    with pytest.raises(StateCorrupt):
        opened(one(snapshot, tmp_path / "c", **right))


def unfit(how: str, directory: Path) -> str:
    """A compiled snapshot that may not serve in `directory`; why."""
    compiled = family_tier(FAMILY).compiled
    match how:
        case "none":
            return "compiled.none"
        case "damaged":
            save(compiled, directory).write_bytes(b"{}")
            return "compiled.digest"
        case "reference":
            save(dataclasses.replace(compiled, reference_version="tokenizers==0.0.1"), directory)
            return "compiled.reference"
        case "encoder":
            made = compile_with(family_reference(FAMILY), family_rule(FAMILY), "gigatoken")
            verdict = EncoderVerdict("gigatoken", "0.0.1", Verdict.ADMITTED)
            save(dataclasses.replace(made, encoders={"gigatoken": verdict}), directory)
            return "compiled.encoder"
        case "rejected":
            save(dataclasses.replace(compiled, verdict=Verdict.REJECTED), directory)
            return "compiled.rejected"
        case "fingerprint":
            digest = save(dataclasses.replace(compiled, fingerprint="0" * 64), directory).name.partition(".")[0]
            (directory / f"{compiled.fingerprint}.ref").write_text(digest)
            return "compiled.fingerprint"
    raise AssertionError(how)


@pytest.mark.usefixtures("no_campaign")
@pytest.mark.parametrize("how", ["none", "damaged", "reference", "encoder", "rejected", "fingerprint"])
def test_without_a_fitting_compiled_snapshot_it_is_refused_or_the_reference_serves(
    how: str, snapshot: Path, tmp_path: Path
) -> None:
    why = unfit(how, tmp_path / "c")
    with pytest.raises(StateError) as caught:
        opened(one(snapshot, tmp_path / "c"))
    assert (caught.value.code, caught.value.details["reason"]) == ("snapshot.unadmitted", why)
    before = sorted(tmp_path.rglob("*.ref"))
    found = opened(one(snapshot, tmp_path / "c", "reference"))
    assert (found.compiled.verdict, found.compiled.reason) == (Verdict.REFERENCE_ONLY, "snapshot.unadmitted")
    assert (found.text_encoder, found.repairer, found.cores) == (None, None, None)
    assert found.encode_text(PROBE).tolist() == family_tier(FAMILY).ids(PROBE)
    assert sorted(tmp_path.rglob("*.ref")) == before  # nothing was compiled


def test_admissions_are_known_by_their_ids(snapshot: Path, tmp_path: Path) -> None:
    save(family_tier(FAMILY).compiled, tmp_path / "c")
    first = TokenizerSettings("m", str(snapshot), admission="a-1", compiled_dir=str(tmp_path / "c"))
    twin = dataclasses.replace(first, name="n", admission="b-3")
    shadow = ShadowSettings(process=False)
    found = load(TierSettings((first, twin), unadmitted="refuse", shadow=shadow))
    assert list(found.admissions) == ["a-1", "b-3"]
    assert found.admissions["a-1"] is found.admissions["b-3"] is found.registry.find("m").tokenizer
    assert [each.admission for each in found.registry] == ["a-1", "b-3"]
    other = TokenizerSettings("o", str(snapshot), policy="template", admission="a-1")
    with pytest.raises(InvalidRequest):
        load(TierSettings((first, other), unadmitted="reference", shadow=shadow))


@pytest.mark.parametrize(("allowed", "lies"), [("1", True), ("", False)])
def test_a_share_of_wrong_ids_is_injected_only_where_faults_are_allowed(
    allowed: str, lies: bool, snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKTIER_ALLOW_FAULTS", allowed)
    monkeypatch.setenv("TOKTIER_FAULT_RATE", "1")
    save(compile_with(family_reference(FAMILY), family_rule(FAMILY), "gigatoken"), tmp_path / "c")
    settings = dataclasses.replace(one(snapshot, tmp_path / "c"), shadow=ShadowSettings(process=False))
    (served,) = load(settings).registry
    assert (served.sessions.encode("Hello there").ids.tolist() != family_tier(FAMILY).ids("Hello there")) == lies
    (unadmitted,) = load(
        dataclasses.replace(settings, tokenizers=one(snapshot, tmp_path).tokenizers, unadmitted="reference")
    ).registry
    assert unadmitted.sessions.encode("Hello there").ids.tolist() == family_tier(FAMILY).ids("Hello there")
    monkeypatch.setenv("TOKTIER_FAULT_RATE", "2")
    if lies:
        with pytest.raises(InvalidRequest):
            load(settings)


# --- files that hurt --------------------------------------------------------------------------------------------

PLANTED = (sys.executable, str(Path(__file__).parent / "admission" / "planted_worker.py"))
SMALL = tokenizer_json(byte_telltale("ab e"), pre_tokenizer=byte_level())
STACKED = tokenizer_json(
    byte_telltale("ab e"),
    pre_tokenizer=byte_level(),
    normalizer=normalizers(*[replace("a", "a" * 10)] * 8),
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes that were started to try a file."""
    found: list[Any] = []

    class Counted(apart.Child):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            found.append(self)

    monkeypatch.setattr(apart, "Child", Counted)
    return found


def in_file(folder: Path, data: bytes, name: str = "tokenizer.json") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


@pytest.mark.usefixtures("no_campaign")
def test_what_is_known_needs_no_process_and_what_is_not_needs_one_once(tmp_path: Path, started: list[Any]) -> None:
    tier = family_tier(FAMILY)
    save(tier.compiled, tmp_path / "c")
    opened(one(path_of(FAMILY), tmp_path / "c"))
    assert started == []
    document = json.loads(path_of(FAMILY).read_bytes())
    other = in_file(tmp_path, json.dumps(document, indent=1).encode())  # the same tokenizer in other bytes
    for _ in range(2):
        assert opened(one(other, tmp_path / "c")).fingerprint == tier.compiled.fingerprint
        assert len(started) == 1
    plain = in_file(tmp_path, SMALL, "small.json")
    for _ in range(2):
        assert opened(one(plain, tmp_path / "c", "reference")).encode("ab e").tolist()
        assert len(started) == 2


def test_a_file_that_ends_the_process_is_refused_by_name_and_not_tried_again(
    tmp_path: Path, started: list[Any]
) -> None:
    path, lethal = in_file(tmp_path, SMALL), (*PLANTED, "reference")
    for memory_bytes, tries in ((1 << 30, 1), (1 << 30, 1), (1 << 29, 1), (1 << 31, 2)):
        with pytest.raises(UnsupportedTokenizer) as caught:
            app.open_tokenizer(path, compiled_dir=tmp_path / "c", apart=Apart(Limits(memory_bytes), lethal))
        assert caught.value.code == "tokenizer.kills_process"
        assert len(started) == tries
    found = app.open_tokenizer(path, compiled_dir=tmp_path / "c", apart=Apart(Limits(1 << 32), PLANTED), workers=1)
    assert found.encode("ab e").tolist() == found.reference.encode("ab e").tolist()


def test_a_far_off_id_costs_the_candidates_only(tmp_path: Path) -> None:
    model = byte_telltale("ab e")
    model["vocab"]["aa"] = (1 << 32) - 2
    path = in_file(tmp_path, tokenizer_json(model, pre_tokenizer=byte_level()))
    for how, reason in (((), "encoder.sparse_ids: "), (("dense",), "encoder.killed_process: ")):
        given = Apart(Limits(1 << 30), (*PLANTED, *how))
        found = app.open_tokenizer(path, compiled_dir=tmp_path / reason, apart=given, workers=1)
        assert found.compiled.encoders["gigatoken"].reason.startswith(reason)
        assert found.encode("aab").tolist() == [(1 << 32) - 2, found.reference.id_of("b")]


def test_a_file_that_is_refused_is_not_served_by_any_name_and_the_others_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(family_tier(FAMILY).compiled, tmp_path / "c")
    bad = TokenizerSettings("bad", str(in_file(tmp_path, STACKED)), models=("a/bad",))
    good = TokenizerSettings("good", str(path_of(FAMILY)))
    settings = TierSettings((bad, good), compiled_dir=str(tmp_path / "c"), shadow=ShadowSettings(process=False))
    registry = load(settings).registry
    assert [each.name for each in registry] == ["good"]
    for name in ("bad", "a/bad"):
        with pytest.raises(SnapshotNotFound) as caught:
            registry.find(name)
        assert caught.value.code == "snapshot.refused"
        assert "[tokenizer.text_growth]" in caught.value.message
    with pytest.raises(SnapshotNotFound) as caught:
        registry.find()  # two are asked for: the one that is left isn't meant by everybody
    assert caught.value.code == "snapshot.name_required"
    assert registry.find("good").name == "good"
    assert any("bad isn't served: [tokenizer.text_growth]" in record.getMessage() for record in caplog.records)
    with pytest.raises(UnsupportedTokenizer):
        load(dataclasses.replace(settings, tokenizers=(bad,)))
    with pytest.raises(UnsupportedTokenizer):
        load(dataclasses.replace(settings, tokenizers=(dataclasses.replace(bad, admission="a-1"), good)))
    with pytest.raises(InvalidRequest):
        load(dataclasses.replace(settings, tokenizers=(bad, dataclasses.replace(good, models=("a/bad",)))))


def test_the_command_line_refuses_by_code_or_gives_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(in_file(tmp_path, STACKED))
    for command in ("admit", "explain"):
        assert cli.main([command, path]) == 2
        assert "tokenizer.text_growth" in capsys.readouterr().err
    monkeypatch.setattr(apart, "COMMAND", (*PLANTED, "reference"))
    in_file(tmp_path, SMALL)
    for command in ("admit", "explain"):
        assert cli.main([command, path, "--memory", "1GiB"]) == 2
        assert "tokenizer.kills_process" in capsys.readouterr().err
    monkeypatch.setattr(apart, "COMMAND", PLANTED)
    given = ["admit", path, "--memory", "1024MiB", "--compiled", str(tmp_path / "c"), "--encoders", "gigatoken"]
    assert cli.main([*given, "--report", str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["encoders"]["gigatoken"]["verdict"] == "Admitted"
    with pytest.raises(SystemExit):
        cli.main(["explain", path, "--memory", "much"])


def test_the_command_line_tries_the_gpu_path_on_what_was_admitted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def admit_gpu(reference: Any, compiled: CompiledSnapshot, backend: str, **_: Any) -> CompiledSnapshot:
        assert reference.encode_text("ab").tolist()
        verdict = EncoderVerdict(GPU_NAME, backend, Verdict.ADMITTED)
        return dataclasses.replace(compiled, encoders={**compiled.encoders, GPU_NAME: verdict})

    monkeypatch.setattr(cli, "open_gpu", lambda mode: SimpleNamespace(backend=f"device, {mode}"))
    monkeypatch.setattr(cli, "admit_gpu", admit_gpu)
    monkeypatch.setattr(apart, "COMMAND", PLANTED)
    path, report = str(in_file(tmp_path, SMALL)), tmp_path / "r.json"
    given = ["admit", path, "--memory", "1GiB", "--compiled", str(tmp_path / "c"), "--report", str(report)]
    assert cli.main([*given, "--encoders", "gigatoken", "--gpu", "required"]) == 0
    told = json.loads(report.read_text())
    assert told["encoders"][GPU_NAME]["version"] == "device, required"
    assert (tmp_path / "c" / f"{told['compiled']}.compiled.json").exists()
