"""A Job from its request to a pod that serves what it found; and what becomes of every way in which it can't."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from catalog import path_of
from toktier_tier import app
from toktier_tier.admission.campaign import Admission
from toktier_tier.admission.campaign import admit as genuine_admit
from toktier_tier.admission.compiled import DERIVER_VERSION
from toktier_tier.admission_job import running
from toktier_tier.admission_job.bundle import chunks_of, unpack
from toktier_tier.admission_job.publishing import objects_of
from toktier_tier.admission_job.request import read_request
from toktier_tier.admission_job.running import run
from toktier_tier.app import open_tokenizer
from toktier_tier.cli import main
from toktier_tier.core.errors import EnvironmentFault, InvalidRequest, UnsupportedTokenizer
from toktier_tier.core.snapshot import Snapshot
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from toktier_tier.sources import load_files
from workshop import byte_level, byte_telltale, token, tokenizer_json

Json = Any
FAMILY = "gpt2-novelai"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
SMALL = tokenizer_json(byte_telltale("ab <e"), pre_tokenizer=byte_level(), added=[token(400, "<x>")])
CAMPAIGNS: dict[Any, Admission] = {}
VERSION = REFERENCE_VERSION.partition("==")[2]


def asked(**more: Json) -> Json:
    return {
        "id": "gpt2-3",
        "name": "gpt2",
        "namespace": "models",
        "uid": "u",
        "run": 3,
        "source": {"path": "/nowhere"},
        "policy": "none",
        "reference_version": "",
        "encoders": [],
        "budget_s": 0.2,
        "seed": 1,
        "corpora": [],
        "known": None,
        "previous": None,
        "image": "registry/toktier:1",
        **more,
    }


def ran(work: Path, **more: Json) -> Json:
    work.mkdir(exist_ok=True)
    result = run(read_request(json.dumps(asked(**more))), work)
    assert json.loads((work / "result.json").read_text()) == result
    return result


@pytest.fixture
def campaigns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The same campaign isn't run twice in this module; the texts of each one's corpus, joined."""
    begun: list[str] = []

    def admit(snapshot: Snapshot, **more: Any) -> Admission:
        begun.append("".join(more["corpus"]))
        key = (snapshot.fingerprint, tuple(more["candidates"]), begun[-1])
        if key not in CAMPAIGNS:
            CAMPAIGNS[key] = genuine_admit(Reference(snapshot), **more)
        return CAMPAIGNS[key]

    monkeypatch.setattr(running, "admit_apart", admit)
    return begun


def small(folder: Path, data: bytes = SMALL, **beside: bytes) -> Json:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(data)
    for name, content in beside.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    return {"path": str(folder)}


def chunks(work: Path, folder: Path) -> str:
    """The bundle as the API server and a projected volume hand it on; its digest."""
    bundle = (work / "bundle.tar.gz").read_bytes()
    folder.mkdir(parents=True)
    for key, data in chunks_of(bundle):
        (folder / key).write_bytes(data)
    return hashlib.sha256(bundle).hexdigest()


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Json]:
    """A genuine tokenizer with a chat template, admitted with a candidate; the Job's folder and result."""
    folder = tmp_path_factory.mktemp("genuine")
    source = folder / "source"
    source.mkdir()
    (source / "tokenizer.json.gz").write_bytes(gzip.compress(path_of(FAMILY).read_bytes()))
    (source / "chat_template.jinja").write_text(TEMPLATE)
    (source / "tokenizer_config.json").write_text("{}")
    return folder, ran(folder / "work", source={"path": str(source)}, encoders=["gigatoken"])


def test_a_genuine_tokenizer_is_admitted_and_everything_is_told(genuine: tuple[Path, Json]) -> None:
    folder, result = genuine
    assert (result["outcome"], result["verdict"], result["error"]) == ("Completed", "Admitted", None)
    assert (result["encoder"], result["policy"], result["chatTemplate"]) == ("gigatoken", "none", True)
    assert result["sha256"] == load_files(str(folder / "source")).sha256
    assert result["toolchain"]["reference"] == REFERENCE_VERSION
    assert result["toolchain"]["deriver"] == str(DERIVER_VERSION)
    assert result["toolchain"]["encoders"] == {"gigatoken": "0.10.0"}
    assert [each["name"] for each in result["encoders"]] == ["gigatoken", "gigatoken/whole"]
    assert result["encoders"][0]["unsafeCodePoints"] > 0
    assert result["rule"]["kind"] == "classes"
    assert result["checks"] > 100_000
    assert result["divergences"] == 0
    bundle = (folder / "work" / "bundle.tar.gz").read_bytes()
    digest = hashlib.sha256(bundle).hexdigest()
    assert result["bundle"] == {"sha256": digest, "sizeBytes": len(bundle), "configMaps": [f"gpt2-{digest[:16]}-0"]}
    assert json.loads((folder / "work" / "report.json").read_text())["verdict"] == "Admitted"


def test_a_pod_serves_by_what_the_job_found_without_a_campaign_of_its_own(
    genuine: tuple[Path, Json], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, result = genuine
    digest = chunks(folder / "work", tmp_path / "bundles" / "gpt2-3")
    (tmp_path / "snapshots").mkdir()
    monkeypatch.setenv("TOKTIER_BUNDLES", json.dumps({"gpt2-3": digest}))
    assert main(["snapshots", "unpack", str(tmp_path / "bundles"), str(tmp_path / "snapshots")]) == 0
    monkeypatch.setattr(app, "admit_apart", None)
    home = tmp_path / "snapshots" / "gpt2-3"
    tokenizer = open_tokenizer(home / "snapshot", compiled_dir=home / "compiled", workers=1)
    assert tokenizer.fingerprint == result["fingerprint"]
    assert tokenizer.repairer is not None
    assert tokenizer.compiled.encoder == "gigatoken"
    text = "def f(x):\n    return 'naïve 中文 🙂'"
    assert tokenizer.encode(text).tolist() == tokenizer.reference.encode(text).tolist()
    assert (home / "snapshot" / "chat_template.jinja").read_text() == TEMPLATE
    assert load_files(str(home / "snapshot")).sha256 == result["sha256"]


def test_what_the_job_publishes_fits_into_configmaps(genuine: tuple[Path, Json]) -> None:
    folder, result = genuine
    objects = objects_of(read_request(json.dumps(asked())), folder / "work")
    names = [each["metadata"]["name"] for each in objects]
    assert names == [*result["bundle"]["configMaps"], "gpt2-run-3"]


def test_the_same_tokenizer_gives_the_same_bundle(tmp_path: Path) -> None:
    source = small(tmp_path / "a", config__json=b"{}")
    first = ran(tmp_path / "one", source=source)
    second = ran(tmp_path / "two", source=small(tmp_path / "b", config__json=b"{}"), name="other", id="other-3")
    assert first["bundle"]["sha256"] == second["bundle"]["sha256"]
    assert (tmp_path / "one" / "bundle.tar.gz").read_bytes() == (tmp_path / "two" / "bundle.tar.gz").read_bytes()


def test_what_is_known_is_not_examined_again_and_anything_else_is(tmp_path: Path, campaigns: list[str]) -> None:
    source = small(tmp_path / "a")
    first = ran(tmp_path / "work", source=source)
    known = {key: first[key] for key in ("sha256", "policy", "toolchain")}
    again = ran(tmp_path / "work", source=source, known=known)
    assert (again["outcome"], again["bundle"], again["verdict"]) == ("Unchanged", None, "")
    assert again["sha256"] == first["sha256"]
    assert len(campaigns) == 1
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"result.json"}
    others = [
        {"known": {**known, "toolchain": {**known["toolchain"], "deriver": str(DERIVER_VERSION - 1)}}},
        {"known": {**known, "toolchain": {**known["toolchain"], "reference": "tokenizers==0.0.1"}}},
        {"known": known, "policy": "template"},
        {"known": {**known, "toolchain": {**known["toolchain"], "encoders": {"fastokens": "0.3.5"}}}},
        {"known": known, "source": small(tmp_path / "b", config__json=b"{}")},
    ]
    for count, other in enumerate(others, 2):
        assert ran(tmp_path / "work", **{"source": source, **other})["outcome"] == "Completed"
        assert len(campaigns) == count


def test_the_diff_to_what_serves_is_told_and_a_damaged_one_costs_only_itself(
    tmp_path: Path, campaigns: list[str]
) -> None:
    ran(tmp_path / "work", source=small(tmp_path / "a", config__json=b"{}"))
    chunks(tmp_path / "work", tmp_path / "previous")
    changed = tokenizer_json(byte_telltale("ab <e"), pre_tokenizer=byte_level(), added=[token(400, "<y>")])
    result = ran(tmp_path / "work", source=small(tmp_path / "b", changed), previous=str(tmp_path / "previous"))
    diff = result["diff"]
    assert (diff["addedTokens"], diff["removedTokens"], diff["changedIds"]) == (1, 1, 0)
    assert 0 < diff["differing"] < diff["texts"]
    assert {example["text"] for example in diff["examples"]} == {"<x>", "<y>"}
    assert "config.json, tokenizer.json" in diff["summary"]
    report = json.loads((tmp_path / "work" / "report.json").read_text())
    assert report["diff"]["tokens"] == {"added": ["<y>"], "removed": ["<x>"], "renumbered": []}
    bundled = unpack((tmp_path / "work" / "bundle.tar.gz").read_bytes())["report.json"]
    assert "diff" not in json.loads(bundled)  # a bundle is of its snapshot alone
    (tmp_path / "previous" / "bundle.000").write_bytes(b"damaged")
    result = ran(tmp_path / "work", source=small(tmp_path / "b"), previous=str(tmp_path / "previous"))
    assert result["outcome"] == "Completed"
    assert "bundle.bad_archive" in result["diff"]["summary"]


@pytest.mark.parametrize("wanted", [VERSION, REFERENCE_VERSION])
def test_the_images_own_reference_may_be_asked_for(wanted: str, tmp_path: Path, campaigns: list[str]) -> None:
    assert ran(tmp_path, source=small(tmp_path / "a"), reference_version=wanted)["outcome"] == "Completed"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"reference_version": "0.0.1"}, "admission.reference_version"),
        ({"encoders": ["nobody"]}, "encoder.unknown"),
        ({"source": {"path": "/nowhere"}}, "source.not_found"),
        ({"source": {"spec": "hf:no revision"}}, "source.bad_spec"),
        ({"source": {"spec": "sglang-grpc://nowhere"}}, "source.bad_spec"),
        ({"corpora": ["/nowhere"]}, "admission.corpus"),
        ({"data": b"{"}, "tokenizer.not_json"),
        ({"data": b'{"model": {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.5}}'}, "tokenizer.dropout"),
        ({"data": b"\x1f\x8b\x08"}, "source.bad_archive"),
    ],
)
def test_whatever_has_a_code_is_a_result(more: Json, code: str, tmp_path: Path) -> None:
    (tmp_path / "bundle.tar.gz").touch()
    data = more.pop("data", SMALL)
    result = ran(tmp_path, **{"source": small(tmp_path / "a", data), **more})
    assert (result["outcome"], result["error"]["code"], result["bundle"]) == ("Failed", code, None)
    assert result["error"]["message"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "result.json"]


@pytest.mark.parametrize("code", ["tokenizer.kills_process", "admission.process_killed"])
def test_a_file_that_ends_the_campaigns_process_is_a_result_and_a_machine_that_does_is_none(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def admit(*_: Any, **__: Any) -> Admission:
        kind = UnsupportedTokenizer if code.startswith("tokenizer.") else EnvironmentFault
        raise kind(code, "the process ended")

    monkeypatch.setattr(running, "admit_apart", admit)
    if code.startswith("tokenizer."):
        assert ran(tmp_path, source=small(tmp_path / "a"))["error"]["code"] == code
        return
    with pytest.raises(EnvironmentFault):
        ran(tmp_path, source=small(tmp_path / "a"))
    assert not (tmp_path / "result.json").exists()


def test_a_tokenizer_without_a_rule_is_bundled_all_the_same(tmp_path: Path) -> None:
    data = tokenizer_json(byte_telltale("ab"), normalizer={"type": "StripAccents"})
    result = ran(tmp_path, source=small(tmp_path / "a", data))
    assert (result["verdict"], result["rule"]["kind"]) == ("ReferenceOnly", "none")
    assert result["reason"]
    assert result["bundle"] is not None
    assert not result["chatTemplate"]


def test_a_config_that_a_pod_could_not_read_means_no_chats(tmp_path: Path, campaigns: list[str]) -> None:
    source = small(tmp_path / "a", chat_template__jinja=TEMPLATE.encode(), config__json=b"{")
    assert not ran(tmp_path, source=source)["chatTemplate"]
    (tmp_path / "a" / "config.json").write_bytes(b"{}")
    assert ran(tmp_path, source=source)["chatTemplate"]


def test_corpora_are_drawn_from(tmp_path: Path, campaigns: list[str]) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "empty.txt").touch()
    (corpus / "odd.txt").write_bytes(b"abba \xff <x> " * 50)
    (corpus / "other.md").write_text("no")
    assert ran(tmp_path, source=small(tmp_path / "a"), corpora=[str(corpus)])["verdict"] == "Admitted"
    assert campaigns == ["abba \ufffd <x> " * 50]


@cache
def command() -> tuple[str, ...]:
    return (sys.executable, "-m", "toktier_tier", "admission", "run", "--work")


def test_the_command_line_runs_a_request_and_tells_a_machines_failure_apart(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    given = {**os.environ, "TOKTIER_ADMISSION_REQUEST": json.dumps(asked(source=small(tmp_path / "a")))}
    assert subprocess.run([*command(), str(work)], env=given, timeout=120).returncode == 0
    assert json.loads((work / "result.json").read_text())["verdict"] == "Admitted"
    failing = {**given, "TOKTIER_ADMISSION_REQUEST": json.dumps(asked())}
    assert subprocess.run([*command(), str(work)], env=failing, timeout=120).returncode == 0
    assert json.loads((work / "result.json").read_text())["outcome"] == "Failed"
    nowhere = subprocess.run([*command(), str(tmp_path / "none")], env=failing, timeout=120, stderr=subprocess.DEVNULL)
    assert nowhere.returncode == 1
    broken = subprocess.run([*command(), str(work)], env={**given, "TOKTIER_ADMISSION_REQUEST": "{"}, timeout=120)
    assert broken.returncode == 2


def test_publishing_needs_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("TOKTIER_ADMISSION_REQUEST", json.dumps(asked()))
    assert main(["admission", "publish", "--work", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    "more",
    [
        {"id": "gpt2-4"},
        {"name": "../x", "id": "../x-3"},
        {"namespace": "a/b"},
        {"run": 0},
        {"run": True},
        {"policy": "both"},
        {"source": {}},
        {"source": {"path": "/a", "spec": "hf:a@b"}},
        {"source": "hf:a@b"},
        {"encoders": "gigatoken", "budget_s": 0},
        {"encoders": [1]},
        {"budget_s": float("inf")},
        {"budget_s": float("nan")},
        {"budget_s": "soon"},
        {"seed": "1"},
        {"known": {"sha256": "x"}},
        {"known": []},
        {"corpora": [3]},
        {"previous": 1},
    ],
)
def test_a_request_that_is_none_is_refused(more: Json) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_request(json.dumps(asked(**more)))
    assert caught.value.code == "admission.bad_request"
