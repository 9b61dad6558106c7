"""The peer's process: serves `toktier` 0.3.0 to `peer_toktier` over JSON lines, and times it in here.

Runs in the peer's own virtual environment (`python -m bench.peer_worker`), so it imports nothing of the tier. Texts
come in files. Only tokenizer.json decides IDs; the two configuration files that the peer insists on are the smallest
that it accepts, and its manifest is restated with the digests of the files at hand.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from bench.timing import PRIMER, Appender, keep_out_of_collections, time_encodes

FAMILY = "qwen3_8b"


def load(tokenizer_json: Path, scratch: Path) -> Any:
    """A fresh `toktier.Tokenizer` of `tokenizer_json`, fetched from a folder instead of a model hub."""
    import toktier
    from toktier.artifacts.manifest import ArtifactManifest
    from toktier.artifacts.sources import LocalDirectorySource
    from toktier.artifacts.store import ArtifactStore

    shipped = Path(toktier.__file__).parent / "artifacts" / "tables" / "artifact_manifest.v1.json"
    entry = json.loads(shipped.read_text())[FAMILY]
    contents = {
        "tokenizer.json": tokenizer_json.read_bytes(),
        "tokenizer_config.json": b'{"tokenizer_class": "Qwen2Tokenizer"}',
        "config.json": b'{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936,'
        b' "bos_token_id": 151643, "eos_token_id": 151645}',
    }
    entry["files"] = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for name, content in contents.items()
    }
    manifest = ArtifactManifest.from_mapping({FAMILY: entry}, source=scratch)
    folder = scratch / manifest.get(FAMILY).directory_name
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    ArtifactStore(manifest, source=LocalDirectorySource(scratch)).ensure(FAMILY)
    return toktier.load(FAMILY, manifest=manifest, device="cpu")


class _Session:
    """`timing.Session` by `Session.append_patch`, the peer's cheapest append."""

    def __init__(self, tokenizer: Any, context: str) -> None:
        self._context_manager = tokenizer.session(session_id="bench")  # one name: a new session overwrites the last
        self.session = self._context_manager.__enter__()
        self.session.append_patch(context)
        self.append = self.session.append_patch


class Worker:
    """The requests: one method each, its arguments as in the JSON, its answer a JSON object."""

    def __init__(self, tokenizer_json: str, scratch: str) -> None:
        self._paths = Path(tokenizer_json), Path(scratch)
        self._tokenizer = self._fresh()
        self._appender: Appender | None = None

    def _fresh(self) -> Any:
        tokenizer = load(*self._paths)
        tokenizer.encode(PRIMER, lookup="off")
        return tokenizer

    def open(self, context: str) -> dict[str, Any]:
        keep_out_of_collections()
        self._appender = Appender(lambda text: _Session(self._tokenizer, text), _read(context))
        return {}

    def append(self, deltas: str) -> dict[str, Any]:
        assert self._appender is not None
        times = self._appender.run(json.loads(Path(deltas).read_bytes()))
        return {"times_ns": times, "pending": self._appender.pending, "route": self._route()}

    def ids(self, out: str) -> dict[str, Any]:
        assert self._appender is not None
        session: Any = self._appender.session
        np.save(out, np.array(session.session.ids, dtype=np.uint32))
        return {}

    def encode(self, text: str, out: str, count: int, fresh: bool) -> dict[str, Any]:
        """Full encodes, the store not asked (it would answer a text it has seen without encoding it)."""
        if fresh:
            self._tokenizer = self._fresh()
        tokenizer = self._tokenizer
        content = _read(text)
        times, encoding = time_encodes(
            lambda text: tokenizer.encode(text, lookup="off"), [content] * count, prewarm=False
        )
        np.save(out, np.array(encoding.ids, dtype=np.uint32))
        return {"times_ns": times, "route": self._route()}

    def _route(self) -> str:
        said = self._tokenizer.explain(summary=True)
        return f"{said['last_execution_backend']}: {said['last_execution_path']}"


def _read(path: str) -> str:
    return Path(path).read_bytes().decode()


def main() -> None:
    """Answer one JSON line per line on stdin until it ends; nothing else reaches stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(*sys.argv[1:3])
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("call"))(**request)
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
