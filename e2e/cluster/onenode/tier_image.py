"""The image of the repository's Dockerfile, of tier and operator, without a registry or a daemon.

    python -m onenode.tier_image OUT.tar [NAME:TAG]...

Three layers: Debian with Python, what pyproject.toml depends on, and the project itself. The first two are kept under
`~/.cache/toktier/image`, the second by what is asked for there, so that after a change of the code alone only the
third, of a few MB, is made anew. Needs root and mmdebstrap where one of the first two isn't there.
"""

from __future__ import annotations

import configparser
import hashlib
import importlib.util
import io
import json
import os
import py_compile
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

from onenode.binaries import CACHE, PACKAGES, ROOT, NotInstalled, only_one, say
from onenode.image import Image, Layer

SUITE = "bookworm"
PYTHON = "3.11"  # the suite's
MAGIC = (3495).to_bytes(2, "little") + b"\r\n"
"""Of that Python's bytecode."""
DEBIAN = ("python3", "ca-certificates")  # not python3-minimal: it lacks asyncio
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
EXTRAS = ("tier", "operator")
USER = 65532
HOME = "/opt/toktier"
CONFIG = {
    "User": f"{USER}:{USER}",
    "Env": [f"PATH={HOME}/bin:/usr/local/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1", "HOME=/tmp"],
    "ExposedPorts": {"8080/tcp": {}, "50051/tcp": {}},
    "Entrypoint": ["toktierctl"],
    "Cmd": ["serve", "/etc/toktier/tier.yaml"],
}
# Runs in the new root, with the wheels of pip and of all dependencies in /wheels.
INSTALL = f"""
groupadd --gid {USER} toktier
useradd --uid {USER} --gid {USER} --no-create-home --home-dir /tmp --shell /usr/sbin/nologin toktier
python3 -m venv --without-pip {HOME}
PYTHONPATH=$(echo /wheels/pip-*.whl) {HOME}/bin/python -m pip install --quiet --no-index --find-links /wheels "$@"
"""


def build(archive: Path, *names: str) -> None:
    """Write the image as `names` to `archive`, whole or not at all."""
    folder = CACHE / "image"
    folder.mkdir(parents=True, exist_ok=True)
    with only_one(folder):
        base = _base(folder)
        dependencies = _dependencies(folder, base)
    with tempfile.TemporaryDirectory() as work:
        Image((base, dependencies, _project(Path(work))), CONFIG).write(archive, *names)


def dependencies_of(project: Path) -> list[str]:
    """What the image's extras of a pyproject.toml ask for."""
    declared = tomllib.loads(project.read_text())["project"]
    extras = declared["optional-dependencies"]
    return sorted({*declared["dependencies"], *(each for extra in EXTRAS for each in extras[extra])})


def _base(folder: Path) -> Layer:
    path = folder / f"debian-{_digest(SUITE, DEBIAN, LEFT_OUT)}.tar.gz"
    if found := Layer.kept(path):
        return found
    mmdebstrap = PACKAGES["mmdebstrap"]
    if os.geteuid() != 0 or not Path(mmdebstrap).exists():
        raise NotInstalled("the image needs root, and Debian's package mmdebstrap, the first time")
    say("Making the image's base")
    left_out = [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
    left_out.append("--dpkgopt=path-include=/usr/share/doc/*/copyright")
    command = [mmdebstrap, "--quiet", "--format=tar", "--variant=minbase", f"--include={','.join(DEBIAN)}", *left_out]
    with tempfile.TemporaryDirectory(dir=folder) as work:
        tar = Path(work) / "debian.tar"
        subprocess.run([*command, SUITE, str(tar)], check=True)
        return Layer.of(tar).keep(path)


def _dependencies(folder: Path, base: Layer) -> Layer:
    wanted = dependencies_of(ROOT / "pyproject.toml")
    path = folder / f"dependencies-{_digest(wanted, base.sha256, INSTALL)}.tar.gz"
    if found := Layer.kept(path):
        return found
    if os.geteuid() != 0:
        raise NotInstalled("the image needs root where the project's dependencies have changed")
    say("Installing the image's dependencies")
    with tempfile.TemporaryDirectory(dir=folder) as work:
        root, tar = Path(work) / "root", Path(work) / "dependencies.tar"
        root.mkdir()
        subprocess.run(["tar", "--extract", "--file", base.path, "--directory", root], check=True)
        # Fetched out here, by the pip that works here, for the image's Python.
        only = ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", *only, "--dest", f"{root}/wheels"]
        subprocess.run([*pip, "pip", *wanted], check=True, stdout=sys.stderr)
        inside = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "chroot", str(root)]
        subprocess.run([*inside, "sh", "-euc", INSTALL, "sh", *wanted], check=True, stdout=sys.stderr)
        changed = [HOME.lstrip("/"), *(f"etc/{name}" for name in ("passwd", "group", "shadow", "gshadow"))]
        subprocess.run(["tar", "--create", "--file", tar, "--directory", root, *changed], check=True)
        return Layer.of(tar).keep(path)


def _project(work: Path) -> Layer:
    """The project's own wheel, where pip would have put it."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*pip, work, ROOT], check=True, stdout=sys.stderr)
    (found,) = work.glob("*.whl")
    wheel = zipfile.ZipFile(found)
    packages = f"{HOME.lstrip('/')}/lib/python{PYTHON}/site-packages"
    files = {f"{packages}/{name}": (wheel.read(name), 0o644) for name in wheel.namelist()}
    (declared,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    for command, target in _scripts(wheel.read(declared).decode()).items():
        module, function = target.split(":")
        script = f"#!{HOME}/bin/python\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        files[f"{HOME.lstrip('/')}/bin/{command}"] = script.encode(), 0o755
    if importlib.util.MAGIC_NUMBER == MAGIC:  # else each start compiles it
        files |= _compiled(files, work)
    path = work / "project.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, (data, mode) in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), mode
            tar.addfile(member, io.BytesIO(data))
    return Layer.of(path)


def _scripts(entry_points: str) -> dict[str, str]:
    parser = configparser.ConfigParser(delimiters="=")
    parser.read_string(entry_points)
    return dict(parser["console_scripts"])


def _compiled(files: dict[str, tuple[bytes, int]], work: Path) -> dict[str, tuple[bytes, int]]:
    """Bytecode that doesn't ask whether the source is older: neither changes in an image."""
    found, target = {}, work / "compiled"
    for name, (data, _) in files.items():
        if name.endswith(".py"):
            source = work / "source"
            source.write_bytes(data)
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(source), str(target), dfile=f"/{name}", doraise=True, invalidation_mode=mode)
            folder, _, module = name.rpartition("/")
            cached = f"{folder}/__pycache__/{module.removesuffix('.py')}.cpython-{PYTHON.replace('.', '')}.pyc"
            found[cached] = target.read_bytes(), 0o644
    return found


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


if __name__ == "__main__":
    try:
        build(Path(sys.argv[1]).absolute(), *(sys.argv[2:] or ["toktier:dev"]))
    except NotInstalled as error:
        sys.exit(str(error))
    print(sys.argv[1])
