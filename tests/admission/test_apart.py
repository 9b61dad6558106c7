"""What ends the process that tries a tokenizer ends nothing else, and is told by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from toktier_tier.admission.apart import Apart, ChildFailed, admit_apart, derive_apart, load_apart
from toktier_tier.admission.campaign import Admission, admit, derive_rule
from toktier_tier.admission.compiled import EncoderVerdict, Verdict
from toktier_tier.admission.transfer import pack_admission, unpack_admission
from toktier_tier.children import Child, Ended, Limits, cpu_seconds, free_bytes
from toktier_tier.core.errors import EnvironmentFault, InvalidTokenizer, StateCorrupt, UnsupportedTokenizer
from toktier_tier.core.snapshot import Snapshot, parse_snapshot
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from workshop import byte_level, byte_telltale, tokenizer_json

PLANTED = (sys.executable, str(Path(__file__).with_name("planted_worker.py")))
LIMITS = Limits(memory_bytes=1 << 30, stall_cpu_s=60.0)


@cache
def small(largest: int | None = None) -> Snapshot:
    model = byte_telltale("ab e")
    if largest is not None:
        model["vocab"]["aa"] = largest
    return parse_snapshot(tokenizer_json(model, pre_tokenizer=byte_level()), reference_version=REFERENCE_VERSION)


def planted(*how: str, **limits: Any) -> Apart:
    return Apart(Limits(**{"memory_bytes": 1 << 30, "stall_cpu_s": 60.0, **limits}), (*PLANTED, *how))


def admitted(*candidates: str, snapshot: Snapshot | None = None, apart: Apart | None = None) -> Admission:
    return admit_apart(snapshot or small(), budget_s=0.02, seed=7, candidates=candidates, apart=apart or planted())


def verdict(name: str, **more: Any) -> EncoderVerdict:
    return admitted(name, **more).report.encoders[name]


# --- what comes of it -------------------------------------------------------------------------------------------


def test_it_finds_what_an_admission_in_this_process_finds_and_tells_how_far_it_is() -> None:
    told: list[str] = []
    options = {"budget_s": 0.02, "seed": 7, "candidates": (), "corpus": ["abba"]}
    found = admit_apart(small(), progress=lambda phase, done: told.append(phase), **options)
    here = admit(Reference(small()), **options)
    assert found.report.to_json() == here.report.to_json()
    assert found.compiled.to_bytes() == here.compiled.to_bytes()
    assert found.report == here.report
    assert told[0] == "load"
    assert {"rule: splits", "done"} <= set(told)
    assert derive_apart(small()) == derive_rule(Reference(small()))


def test_a_report_is_what_was_sent_or_nothing_and_no_message_makes_anything_else() -> None:
    found = admitted("gigatoken", "aborts")
    rule, compiled, rest = pack_admission(found)
    again = unpack_admission(small(), (rule, compiled, rest))
    assert (again.report, again.compiled) == (found.report, found.compiled)
    for other in (
        rest.replace(b'"seed": 1', b'"seed": 2'),
        rest.replace(b'"toktier_tier.admission.report", "Phase"', b'"subprocess", "Popen"'),
        rest.replace(b'"toktier_tier.admission.report", "Phase"', b'"toktier_tier.children", "Child"'),
    ):
        assert other != rest
        with pytest.raises(StateCorrupt) as caught:
            unpack_admission(small(), (rule, compiled, other))
        assert caught.value.code == "admission.transfer"


def test_what_the_reference_refuses_is_refused_with_its_code() -> None:
    data = tokenizer_json(byte_telltale("ab"), pre_tokenizer={"type": "NoSuchThing"})
    broken = parse_snapshot(data, reference_version=REFERENCE_VERSION)
    for use in (load_apart, derive_apart, admit_apart):
        with pytest.raises(InvalidTokenizer) as caught:
            use(broken)
        assert caught.value.code == "tokenizer.reference_refuses"


@pytest.mark.parametrize("name", ["aborts", "aborts-at-once"])
def test_a_candidate_that_ends_the_process_is_left_out_by_name(name: str) -> None:
    found = admitted(name, "gigatoken")
    assert (found.report.verdict, found.report.encoder) == (Verdict.ADMITTED, "gigatoken")
    assert found.compiled.encoders[name] == EncoderVerdict(
        name,
        "",
        Verdict.REFERENCE_ONLY,
        "encoder.killed_process: the process that tried it was ended by SIGABRT",
    )


def test_a_candidate_that_takes_all_memory_is_stopped_by_the_limit() -> None:
    found = verdict("allocates", apart=planted(memory_bytes=700 << 20))
    assert found.verdict is Verdict.REFERENCE_ONLY
    assert found.reason.startswith("encoder.killed_process: ")
    assert found.reason.endswith(" took more than the 734,003,200 bytes of memory that it may have")


def test_a_candidate_that_leaves_no_memory_to_others_is_not_mistaken_for_the_reference() -> None:
    found = admitted("leaks", apart=planted(memory_bytes=700 << 20))
    assert (found.report.verdict, found.report.encoder) == (Verdict.ADMITTED, "reference")
    assert found.report.encoders["leaks"].reason.startswith("encoder.killed_process: ")


def test_a_candidate_that_never_answers_is_stopped() -> None:
    found = verdict("loops", apart=planted(stall_cpu_s=3.0))
    assert found.reason == (
        "encoder.killed_process: the process that tried it made no progress in 3 s of processor time"
    )


def test_what_a_candidate_prints_goes_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    assert verdict("talks").verdict is Verdict.REJECTED
    assert capfd.readouterr() == ("", "")


def test_gigatoken_asked_for_a_table_up_to_the_largest_id_ends_a_child_only() -> None:
    far = small((1 << 32) - 2)
    found = verdict("gigatoken", snapshot=far, apart=planted("dense"))
    assert found.reason.startswith("encoder.killed_process: ")
    assert verdict("gigatoken", snapshot=far).reason.startswith("encoder.sparse_ids: ")


# --- the reference ----------------------------------------------------------------------------------------------


def test_a_file_on_which_the_reference_ends_the_process_is_refused_by_name() -> None:
    for use in (load_apart, derive_apart, admit_apart):
        with pytest.raises(UnsupportedTokenizer) as caught:
            use(small(), apart=planted("reference"))
        assert caught.value.code == "tokenizer.kills_process"
        assert "SIGABRT" in caught.value.message


def test_a_template_that_repeats_the_text_without_end_is_refused_by_name() -> None:
    again = [{"Sequence": {"id": "A", "type_id": 0}}] * 100_000
    pair = [*again[:1], {"Sequence": {"id": "B", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": again, "pair": pair, "special_tokens": {}}
    data = tokenizer_json(byte_telltale("ab e"), pre_tokenizer=byte_level(), post_processor=template)
    with pytest.raises(UnsupportedTokenizer) as caught:
        load_apart(parse_snapshot(data, reference_version=REFERENCE_VERSION), planted(memory_bytes=400 << 20))
    assert caught.value.code == "tokenizer.kills_process"
    assert "419,430,400 bytes" in caught.value.message


def test_a_process_that_somebody_else_ends_says_nothing_about_the_file() -> None:
    with pytest.raises(EnvironmentFault) as caught:
        load_apart(small(), planted("outside"))
    assert caught.value.code == "admission.process_killed"
    for apart in (planted("exit"), Apart(LIMITS, (sys.executable, "-c", "import sys; sys.exit(1)"))):
        with pytest.raises(EnvironmentFault) as caught:
            load_apart(small(), apart)
        assert caught.value.code == "admission.process_failed"
    with pytest.raises(EnvironmentFault) as caught:
        load_apart(small(), Apart(LIMITS, ("/no/such/program",)))
    assert caught.value.code == "admission.no_process"


def test_a_defect_of_our_own_is_told_by_type_and_place() -> None:
    with pytest.raises(ChildFailed) as caught:
        admitted("gigatoken", apart=planted("defect"))
    assert "KeyError" in str(caught.value)
    assert "planted_worker.py" in str(caught.value)
    assert "secret" not in str(caught.value)


# --- the process ------------------------------------------------------------------------------------------------


def test_the_child_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = f"""
import json, sys, os
from toktier_tier.admission import apart
from toktier_tier.core.snapshot import parse_snapshot
data = open({str(tmp_path / "t.json")!r}, "rb").read()
class Child(apart.Child):
    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        print(self.pid, flush=True)
apart.Child = Child
limits = apart.Limits(1 << 30)
apart.admit_apart(parse_snapshot(data, reference_version=""), budget_s=0.02, candidates=["loops"],
    apart=apart.Apart(limits, {PLANTED!r}), progress=lambda phase, done: print(phase, flush=True))
"""
    (tmp_path / "t.json").write_bytes(small().data)
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert parent.stdout.readline() == "load\n"  # it is confined by then
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until = time.monotonic() + 60
    while _alive(child):
        assert time.monotonic() < until
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_child_is_ended_with_its_descendants_and_from_any_thread() -> None:
    script = """
import subprocess, sys
pid = str(subprocess.Popen(["sleep", "600"]).pid).encode()
sys.stdout.buffer.write(bytes([1, len(pid), *[0] * 7]) + pid)
sys.stdout.flush()
sys.stdin.read()
"""
    child = Child([sys.executable, "-c", script], alone=True)
    answer = child.receive()
    assert answer is not None
    assert child.receive(0.01) is None
    threading.Timer(0.2, child.end).start()
    with pytest.raises((Ended, ValueError)):
        child.progressing(Limits(), 1 << 30)
    child.end()
    until = time.monotonic() + 60
    while _alive(int(answer[1])):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_kernel_that_lets_a_child_take_more_is_helped_out() -> None:
    script = "import time; taken = bytearray(700 << 20); time.sleep(600)"  # not confined
    child = Child([sys.executable, "-c", script], alone=True)
    with pytest.raises(Ended) as caught:
        child.progressing(Limits(), 100 << 20)
    assert caught.value.how == "memory"
    assert not _alive(child.pid)


def test_memory_that_may_be_taken_is_what_is_free_at_most() -> None:
    assert 0 < Limits().allowed_bytes() <= free_bytes()
    assert Limits(memory_bytes=5).allowed_bytes() == 5
    assert cpu_seconds(os.getpid()) > 0
    assert cpu_seconds(1 << 30) == 0
