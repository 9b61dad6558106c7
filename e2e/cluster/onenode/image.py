"""Container images without a registry or a daemon: layers are tar files, an image is an archive of them.

The archive is what `docker load`, `ctr images import` and `buildah pull docker-archive:` read.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Layer:
    """A tar file, which may be compressed by gzip, and the SHA-256 of the tar that it was before."""

    path: Path
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Layer:
        with path.open("rb") as file:
            return cls(path, hashlib.file_digest(file, "sha256").hexdigest())

    @classmethod
    def kept(cls, path: Path) -> Layer | None:
        """What `keep` has left at `path`, if it has."""
        note = path.with_name(f"{path.name}.sha256")
        return cls(path, note.read_text()) if note.exists() else None

    def keep(self, path: Path) -> Layer:
        """The same layer compressed at `path`: a cluster that loads it writes less to its disk."""
        part = path.with_name(f"{path.name}.part")
        with part.open("wb") as file:
            subprocess.run(["gzip", "--no-name", "--stdout", self.path], check=True, stdout=file)
        part.rename(path)
        path.with_name(f"{path.name}.sha256").write_text(self.sha256)
        return Layer(path, self.sha256)

    @classmethod
    def of_files(cls, path: Path, files: Mapping[str, Path]) -> Layer:
        """A new layer of executable files by their paths in the image, the same bytes for the same files."""
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            for name, file in sorted(files.items()):
                member = tarfile.TarInfo(name)
                member.size, member.mode = file.stat().st_size, 0o755
                with file.open("rb") as content:
                    tar.addfile(member, content)
        return cls.of(path)


@dataclass(frozen=True, slots=True)
class Image:
    """`config` is Docker's: Entrypoint, Cmd, Env, User, ExposedPorts..."""

    layers: tuple[Layer, ...]
    config: Mapping[str, Any]

    def write(self, archive: Path, *names: str) -> None:
        """Whole or not at all. `names` are NAME:TAG."""
        described = {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": dict(self.config),
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.sha256}" for layer in self.layers]},
        }
        config = json.dumps(described, sort_keys=True).encode()
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        layers = [f"{layer.sha256}.tar" for layer in self.layers]
        manifest = json.dumps([{"Config": config_name, "RepoTags": list(names), "Layers": layers}]).encode()
        part = archive.with_name(archive.name + ".part")
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
            for layer, name in zip(self.layers, layers, strict=True):
                member = tarfile.TarInfo(name)
                member.size = layer.path.stat().st_size
                with layer.path.open("rb") as content:
                    tar.addfile(member, content)
            for name, data in ((config_name, config), ("manifest.json", manifest)):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        part.rename(archive)
