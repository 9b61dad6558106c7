"""The process's environment, peering, and what events name."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from toktier_operator.cluster.kinds import CONFIG_MAP, JOB, TOKENIZER_ADMISSION, TOKTIER
from toktier_operator.cluster.observed import Observed
from toktier_operator.config import read
from toktier_operator.handlers.peering import has_precedence
from toktier_operator.handlers.sources import users_of
from toktier_operator.handlers.watching import keys_of
from toktier_operator.resources import names

NOW = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC)


def test_the_environment_is_read_whole() -> None:
    config = read(
        {
            "TOKTIER_TIER_IMAGE": "tier:1",
            "TOKTIER_NAMESPACES": "b, a,",
            "TOKTIER_PEERING": "p",
            "TOKTIER_PRIORITY": "-3",
            "TOKTIER_WEBHOOK_DIR": "/certs",
            "TOKTIER_WEBHOOK_PORT": "1",
            "TOKTIER_METRICS_PORT": "2",
            "TOKTIER_HEALTH_PORT": "3",
        }
    )
    assert config.namespaces == ("a", "b")
    assert (config.peering, config.priority, str(config.webhook_dir)) == ("p", -3, "/certs")
    assert (config.webhook_port, config.metrics_port, config.health_port) == (1, 2, 3)
    assert config.image_pull_policy == "IfNotPresent"


def test_two_replicas_of_one_environment_have_different_priorities() -> None:
    priorities = {read({"TOKTIER_TIER_IMAGE": "i"}).priority for _ in range(20)}
    assert len(priorities) == 20


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({}, "TOKTIER_TIER_IMAGE"),
        ({"TOKTIER_TIER_IMAGE": "i", "TOKTIER_IMAGE_PULL_POLICY": "Sometimes"}, "TOKTIER_IMAGE_PULL_POLICY"),
        ({"TOKTIER_TIER_IMAGE": "i", "TOKTIER_METRICS_PORT": "x"}, "TOKTIER_METRICS_PORT"),
        ({"TOKTIER_TIER_IMAGE": "i", "TOKTIER_HEALTH_PORT": "-1"}, "TOKTIER_HEALTH_PORT"),
    ],
)
def test_what_makes_no_sense_is_named(environ: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read(environ)


def peer(priority: int, seconds_ago: float, lifetime: int = 60) -> dict[str, Any]:
    seen = NOW - datetime.timedelta(seconds=seconds_ago)
    return {"priority": priority, "lastseen": seen.isoformat(), "lifetime": lifetime}


@pytest.mark.parametrize(
    ("peers", "frozen"),
    [
        ({}, False),
        ({"me": peer(5, 0)}, False),
        ({"me": peer(5, 0), "lower": peer(4, 0)}, False),
        ({"me": peer(5, 0), "higher": peer(6, 0)}, True),
        ({"me": peer(5, 0), "same": peer(5, 0)}, True),
        ({"me": peer(5, 0), "dead": peer(6, 61)}, False),
        ({"me": None, "higher": peer(6, 59)}, True),
    ],
)
def test_a_live_peer_of_the_same_or_a_higher_priority_freezes(peers: dict[str, Any], frozen: bool) -> None:
    assert has_precedence(peers, "me", 5, NOW) is frozen


def labelled(name: str, labels: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "n", "labels": labels, "resourceVersion": "1"}, **more}


def test_events_name_the_owner_and_who_depends_on_it() -> None:
    observed = Observed()
    for name, admission in (("t", "a"), ("u", "b")):
        observed.put(TOKTIER, labelled(name, {}, spec={"tokenizers": [{"admission": admission}]}))
    named = {str(key) for key in keys_of(TOKENIZER_ADMISSION, labelled("a", {}), observed)}
    assert named == {"TokenizerAdmission n/a", "TokTier n/t"}
    named = {str(key) for key in keys_of(JOB, labelled("a-admit-1", names.admission_labels("a")), observed)}
    assert named == {"TokenizerAdmission n/a"}
    assert keys_of(CONFIG_MAP, labelled("other", {}), observed) == set()


def test_a_report_names_the_admission_too() -> None:
    data = {"t-0.a-3": json.dumps({"id": "a-3"}), "t-1.odd": json.dumps({"id": "b-1"}), "t-2.x": "no json"}
    item = labelled(names.reports("t"), names.tier_labels("t"), data=data)
    named = {str(key) for key in keys_of(CONFIG_MAP, item, Observed())}
    assert named == {"TokTier n/t", "TokenizerAdmission n/a", "TokenizerAdmission n/b"}


def test_sources_know_who_reads_them() -> None:
    observed = Observed()
    for name, source in (
        ("a", {"configMap": {"name": "s"}}),
        ("b", {"configMap": {"name": "s"}}),
        ("c", {"https": {}}),
    ):
        observed.put(TOKENIZER_ADMISSION, labelled(name, {}, spec={"source": source}))
    assert users_of(observed, "configMap") == {("n", "s"): {"a", "b"}}
    assert users_of(observed, "secret") == {}


@pytest.mark.parametrize(
    ("id_", "found"),
    [("a-1", ("a", 1)), ("a-b-12", ("a-b", 12)), ("a-0", None), ("a", None), ("-1", None), ("a-01", None), ("", None)],
)
def test_ids_are_read_back(id_: str, found: tuple[str, int] | None) -> None:
    assert names.admission_of(id_) == found
    if found is not None:
        assert names.admission_id(*found) == id_


def test_names_of_runs_are_told_from_those_of_other_admissions() -> None:
    assert names.run_of("a", "a-admit-12") == 12
    assert names.run_of("a", "a-run-3") == 3
    assert names.run_of("a", "a-run-3-run-4") is None
    assert names.run_of("a", "a-0123456789abcdef-0") is None
    assert names.is_bundle_chunk("a", "a-0123456789abcdef-10")
    assert not names.is_bundle_chunk("a", "a-b-0123456789abcdef-0")
