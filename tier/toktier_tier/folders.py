"""The files beside a tokenizer.json that decide what an engine makes of it, read from where the settings name them.

Guarantee: a folder or repository is believed only with all its deciding files at hand; where they can't be had, or two
places say different things, the verdict is a refusal (`engine.folder`), and texts and chats go on as text.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from .core.errors import SourceUnavailable
from .encoders.reference import Reference
from .engine.chat_template import PassThrough
from .engine.folder import CONFIG, FOLDER_FILES, TOKENIZER, Loading, loading_of, tokens_of
from .settings import TokenizerSettings
from .sources import load_files
from .sources.local import companions_in, read_file

log = logging.getLogger("toktier")


def loading_for(each: TokenizerSettings, reference: Reference) -> Loading:
    """What an engine makes of the tokenizer's source, and of the model's directory where that is another place."""
    verdict = _decide(each, reference)
    if verdict.refusal is not None:
        reason, detail = verdict.refusal.reason, verdict.refusal.detail
        log.error("tokenizer %s: texts and chats go on as text, %s (%s)", each.name, reason, detail)
    return verdict


def _decide(each: TokenizerSettings, reference: Reference) -> Loading:
    files = _files_of(each.source)
    if files is None:
        return Loading(PassThrough("folder.unknown", "the files beside the tokenizer.json can't be had"))
    data, folder = reference.snapshot.data, _folder_of(each.source)
    names = None if folder is None else os.listdir(folder)
    verdict = loading_of({**files, TOKENIZER: data}, tokens_of(reference.added_tokens()), names)
    model = Path(each.chat_template) if each.chat_template else None
    if verdict.refusal is not None or model is None or (folder is not None and _is(model, folder)):
        return verdict
    other = _of_model(model, data, reference)
    if other is None:
        return verdict
    if other.refusal is None and CONFIG in files and other.prefix != verdict.prefix:
        return Loading(PassThrough("folder.contradiction", "source and model directory add different tokens"))
    return other


def _files_of(source: str) -> Mapping[str, bytes] | None:
    """The tokenizer.json and its companions; None if a repository's can't be had."""
    try:
        return load_files(source).files
    except SourceUnavailable:
        try:
            files = load_files(source, offline=True).files
        except SourceUnavailable:
            return None
        return files if CONFIG in files else None


def _of_model(directory: Path, data: bytes, reference: Reference) -> Loading | None:
    """None for a directory that no tokenizer could be loaded from."""
    own = directory / TOKENIZER
    beside = companions_in(str(directory))
    if not own.is_file() and CONFIG not in beside:
        return None
    if own.is_file() and not _equal(read_file(str(own)), data):
        return Loading(PassThrough("folder.contradiction", "the model directory has another tokenizer.json"))
    files = {name: content for name, content in beside.items() if name in FOLDER_FILES}
    return loading_of({**files, TOKENIZER: data}, tokens_of(reference.added_tokens()), os.listdir(directory))


def _equal(one: bytes, other: bytes) -> bool:
    try:
        return one == other or json.loads(one) == json.loads(other)
    except ValueError:
        return False


def _folder_of(source: str) -> Path | None:
    """The folder on this machine that a source is, or lies in."""
    path = Path(source).expanduser()
    try:
        return path if path.is_dir() else path.parent if path.is_file() else None
    except OSError:
        return None


def _is(one: Path, other: Path) -> bool:
    return one.is_dir() and one.samefile(other)
