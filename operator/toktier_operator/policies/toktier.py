"""Which snapshot of each tokenizer a TokTier's pods are to have, and under which image. Pure.

Rules, for each tokenizer of the spec:

 1. What its admission has as `current` is wanted, once the pods' image is one that it was admitted with.
 2. What `stable` has is kept instead while that isn't so, and where `current` is quarantined: a snapshot that was found
    wrong never replaces another. Without another it is served, by the reference (`quarantined` tells the pods).
 3. One that has neither holds everything up: what serves goes on serving, with the tokenizers that it has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..api.admission_status import AdmissionStatus, Snapshot
from ..api.conditions import AdmissionCondition, AdmissionReason, TierReason
from ..api.rollout import Composition, Rollout, Served
from ..api.toktier_spec import Tokenizer, TokTierSpec, Unadmitted


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a tokenizer isn't served as its newest admission says; waiting: whether everything waits for it."""

    admission: str
    reason: TierReason
    message: str
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """wanted: None while nothing can be served yet. held: whether it is only what served before."""

    wanted: Composition | None
    problems: tuple[Problem, ...] = ()
    held: bool = False


@dataclass(frozen=True, slots=True)
class _Option:
    served: Served
    images: frozenset[str]


def choose(
    spec: TokTierSpec,
    admissions: Mapping[str, AdmissionStatus],
    quarantined: frozenset[str],
    rollout: Rollout | None,
    image: str,
) -> Choice:
    """`admissions`: those that exist, by name. image: the operator's, which `spec.image` takes the place of."""
    problems = tuple(
        problem
        for name in dict.fromkeys(each.admission for each in spec.tokenizers)
        if (problem := _problem(name, admissions.get(name), quarantined, spec.unadmitted)) is not None
    )
    stable = rollout.stable if rollout is not None else None
    options = [_options(each, spec, admissions.get(each.admission), quarantined, stable) for each in spec.tokenizers]
    lacking = {each.admission for each, found in zip(spec.tokenizers, options, strict=True) if not found}
    if lacking:
        problems = tuple(replace(each, waiting=each.admission in lacking) for each in problems)
        return Choice(_kept(rollout, quarantined), problems, held=True)
    chosen = spec.image or _image(options, image, stable)
    if chosen is None:
        names = sorted({each.admission for each in spec.tokenizers})
        message = f"{', '.join(names)}: no image that all of them are admitted with"
        waits = Problem(names[0], TierReason.WAITING_FOR_IMAGE, message, waiting=True)
        return Choice(_kept(rollout, quarantined), (*problems, waits), held=True)
    tokenizers = tuple(
        next((one.served for one in found if spec.image or chosen in one.images), found[0].served) for found in options
    )
    if chosen != image and not spec.image:
        late = sorted({each.id for each, found in zip(tokenizers, options, strict=True) if not _has(found, image)})
        message = f"{', '.join(late)}: not admitted with the image {image} yet"
        problems = (*problems, Problem(tokenizers[0].admission, TierReason.WAITING_FOR_IMAGE, message))
    return Choice(Composition(chosen, tokenizers), problems)


def _kept(rollout: Rollout | None, quarantined: frozenset[str]) -> Composition | None:
    if rollout is None:
        return None
    wrong = (rollout.target.ids - rollout.stable.ids) & quarantined
    return rollout.stable if wrong else rollout.target


def _has(options: list[_Option], image: str) -> bool:
    return any(image in one.images for one in options)


def _image(options: list[list[_Option]], image: str, stable: Composition | None) -> str | None:
    """The operator's if all have it, else the one that serves, else any that all have."""
    common = frozenset.intersection(*(frozenset().union(*(one.images for one in found)) for found in options))
    for each in (image, stable.image if stable is not None else "", *sorted(common)):
        if each in common:
            return each
    return None


def _options(
    tokenizer: Tokenizer,
    spec: TokTierSpec,
    admission: AdmissionStatus | None,
    quarantined: frozenset[str],
    stable: Composition | None,
) -> list[_Option]:
    """Best first."""
    current = admission.current if admission is not None else None
    before = next(
        (each for each in (stable.tokenizers if stable is not None else ()) if each.admission == tokenizer.admission),
        None,
    )
    if admission is None:
        before = None  # it was deleted, and its bundles with it
    found: list[_Option] = []
    allowed = current is not None and (current.accelerated or spec.unadmitted is Unadmitted.REFERENCE_ONLY)
    if current is not None and current.bundle is not None and allowed:
        images = {current.image}
        if before is not None and before.id == current.id and stable is not None:
            images.add(stable.image)
        newest = _served(tokenizer, current, accelerated=current.accelerated and not held_back(admission))
        if current.id not in quarantined or before is None or before.id == current.id:
            found.append(_Option(newest, frozenset(images)))
    if before is not None and stable is not None and (current is None or before.id != current.id):
        found.append(_Option(_renamed(before, tokenizer), frozenset({stable.image})))
    return found


def held_back(admission: AdmissionStatus | None) -> bool:
    """Whether the admission itself says that its snapshot, though admitted, is for the reference alone for now."""
    return admission is not None and any(
        each.type == AdmissionCondition.ADMITTED and each.reason == AdmissionReason.REFERENCE_ONLY
        for each in admission.conditions
    )


def _served(tokenizer: Tokenizer, current: Snapshot, *, accelerated: bool) -> Served:
    assert current.bundle is not None
    return _renamed(
        Served(
            name="",
            admission=tokenizer.admission,
            id=current.id,
            bundle=current.bundle.sha256,
            config_maps=current.bundle.config_maps,
            sha256=current.sha256,
            fingerprint=current.fingerprint,
            policy=current.policy,
            accelerated=accelerated,
            template=current.chat_template,
        ),
        tokenizer,
    )


def _renamed(served: Served, tokenizer: Tokenizer) -> Served:
    return replace(
        served,
        name=tokenizer.served_name,
        render=tokenizer.chat,
        models=tokenizer.models,
        reasoning_parser=tokenizer.reasoning_parser,
        tool_call_parser=tokenizer.tool_call_parser,
        untrusted_roles=tokenizer.untrusted_roles,
    )


def _problem(
    name: str, admission: AdmissionStatus | None, quarantined: frozenset[str], unadmitted: Unadmitted
) -> Problem | None:
    if admission is None:
        return Problem(name, TierReason.ADMISSION_MISSING, f"there is no TokenizerAdmission {name}")
    current = admission.current
    if current is None or current.bundle is None:
        return Problem(name, TierReason.ADMISSION_PENDING, f"{name} has no verdict that can be served yet")
    if not current.accelerated:
        why = f": {current.reason}" if current.reason else ""
        if unadmitted is Unadmitted.REFUSE:
            return Problem(name, TierReason.REFUSED, f"{current.id} isn't admitted, and unadmitted is Refuse{why}")
        return Problem(name, TierReason.REFERENCE_ONLY, f"{current.id} is served by the reference alone{why}")
    if held_back(admission):
        message = f"{current.id} is served by the reference alone while a newer snapshot is rejected"
        return Problem(name, TierReason.REFERENCE_ONLY, message)
    if current.id in quarantined:
        return Problem(name, TierReason.QUARANTINED, f"{current.id} is quarantined: it takes a new admission")
    return None


def reported_ids(toktier: str, reports: Mapping[str, str]) -> frozenset[str]:
    """Of which admissions the pods of a TokTier told that they found wrong IDs: by the keys, whatever stands there."""
    pattern = re.compile(rf"{re.escape(toktier)}-[0-9]+\.(.+)")
    return frozenset(match[1] for key in reports if (match := pattern.fullmatch(key)))


def quarantined_ids(
    admissions: Mapping[str, AdmissionStatus], reported: frozenset[str], control: str, rollout: Rollout | None
) -> frozenset[str]:
    """Ids whose fast paths are off in this TokTier's pods. What `control` says already stays while pods may have it."""
    told = {status.quarantine.id for status in admissions.values() if status.quarantine is not None}
    in_use = rollout.ids if rollout is not None else frozenset()
    newest = {status.current.id for status in admissions.values() if status.current is not None}
    return frozenset((told | reported | read_control(control)) & (in_use | newest))


def write_control(ids: frozenset[str]) -> str:
    return json.dumps(sorted(ids))


def read_control(text: str) -> frozenset[str]:
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return frozenset()
    return frozenset(each for each in found if isinstance(each, str)) if isinstance(found, list) else frozenset()
