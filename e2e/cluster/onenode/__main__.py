"""The cluster's command line, python -m onenode:

install                  everything that a cluster needs
up                       a cluster that is kept until `down`; prints its place
api                      the API tier alone, the same way
exec PLACE COMMAND...    in the cluster's network namespace, with KUBECONFIG, helm and kubectl
load PLACE ARCHIVE       an image
down PLACE
sweep                    remove what crashed runs have left
pytest ARGUMENTS...      in a new place, where the fixture `cluster` starts a cluster; or against KUBECONFIG's. Skipped,
                         with a word, where this isn't root or namespaces can't be made
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from onenode.api_tier import ApiTier
from onenode.binaries import HERE, NotInstalled, install, say
from onenode.cluster import Cluster
from onenode.place import OUTSIDE, VARIABLE, Place, sweep
from onenode.processes import ClusterFailed, die_with_parent


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["install"]:
            print(install())
        case ["up"]:
            return keep_up()
        case ["inside-up", path, lock]:
            say(f"{Cluster.of(Place(Path(path), int(lock)), install(), keep=True).up()}")
        case ["api"]:
            keep_api()
        case ["exec", path, *command] if command:
            return inside(Place(Path(path)), command)
        case ["load", path, archive]:
            Cluster.of(Place(Path(path)), install()).load_image(Path(archive))
        case ["down", path]:
            Place(Path(path)).remove()
        case ["sweep"]:
            print(*sweep(), sep="\n")
        case ["pytest", *rest]:
            return run_pytest(rest)
        case _:
            say(__doc__ or "")
            return 2
    return 0


def keep_up() -> int:
    install()
    sweep()
    place = Place.make(network=True)
    assert place.lock is not None
    command = [sys.executable, "-m", "onenode", "inside-up", str(place.path), str(place.lock)]
    code = inside(place, command, pass_fds=[place.lock])
    if code == 0:
        print(place.path)
    else:
        place.remove()
    return code


def keep_api() -> None:
    binaries = install(node=False)
    sweep()
    place = Place.make(network=False)
    try:
        say(f"{ApiTier.of(place, binaries, keep=True).up()}")
    except ClusterFailed:
        place.remove()
        raise
    print(place.path)


def run_pytest(arguments: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    if os.environ.get("KUBECONFIG"):
        return subprocess.run(command).returncode
    if (why := not_here()) is not None:
        say(
            f"SKIPPED: {why}, which a cluster needs; set KUBECONFIG to use one of yours. Not run: {' '.join(arguments)}"
        )
        return 0
    install()
    for name in sweep():
        say(f"Removed {name}, which a run had left")
    place = Place.make(network=True)
    try:
        return inside(place, command)
    finally:
        place.remove()


def not_here() -> str | None:
    """What this machine's administrator doesn't allow."""
    if os.geteuid() != 0:
        return "this isn't root"
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"namespaces can't be made ({tried.stderr.strip()})"


def inside(place: Place, command: Sequence[str], *, pass_fds: Sequence[int] = ()) -> int:
    """Its exit status. It ends with this process."""
    done = subprocess.run(
        [*place.entered, *command], env=environment(place), pass_fds=pass_fds, preexec_fn=die_with_parent
    )
    return done.returncode


def environment(place: Place) -> Mapping[str, str]:
    tools = install(node=False).tools
    kubeconfig = place.path / "pki" / "admin.kubeconfig"
    given = os.environ | {
        VARIABLE: str(place.path),
        OUTSIDE: f"/proc/{os.getpid()}/ns/net",  # this process waits for what it has started
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
    }
    return given | ({"KUBECONFIG": str(kubeconfig)} if kubeconfig.exists() else {})


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (NotInstalled, ClusterFailed) as error:
        sys.exit(str(error))
