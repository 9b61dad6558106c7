"""A bundle comes out as it went in, or not at all; nothing hostile is written anywhere."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from toktier_tier.admission_job import bundle as module
from toktier_tier.admission_job.bundle import bundle_files, chunk_names, chunks_of, joined, pack, unpack
from toktier_tier.admission_job.unpacking import read_bundles, unpack_all
from toktier_tier.core.errors import InvalidRequest, StateCorrupt
from toktier_tier.sources import TokenizerFiles
from workshop import build_tier, byte_level, byte_telltale, tokenizer_json

TOKENIZER = tokenizer_json(byte_telltale("ab <"), pre_tokenizer=byte_level())
REPORT = '{"a": 1}'


@pytest.fixture(scope="module")
def content() -> dict[str, bytes]:
    files = {
        "tokenizer.json": TOKENIZER,
        "config.json": b"{}",
        "additional_chat_templates/rag.jinja": b"x",
    }
    return bundle_files(TokenizerFiles(files, "here"), build_tier(TOKENIZER).compiled, REPORT)


def put(bundle: bytes, folder: Path) -> str:
    """Its chunks as a mounted volume has them; its digest."""
    data = folder / "..2026"
    data.mkdir(parents=True)
    (folder / "..data").symlink_to(data.name)
    for key, chunk in chunks_of(bundle):
        (data / key).write_bytes(chunk)
        (folder / key).symlink_to(f"..data/{key}")
    return hashlib.sha256(bundle).hexdigest()


def tar_of(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.USTAR_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", format=format) as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


GOOD = [("snapshot/tokenizer.json", TOKENIZER), ("report.json", b"{}")]


def with_member(name: str, data: bytes = b"x", *, type: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    odd = tarfile.TarInfo(name)
    odd.type, odd.linkname = type, link
    return tar_of((odd, data), *((tarfile.TarInfo(each), text) for each, text in GOOD))


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(StateCorrupt) as caught:
        call()
    return caught.value.code


# --- bundles --------------------------------------------------------------------------------------------------


def test_the_same_files_give_the_same_bytes_and_come_out_again(content: dict[str, bytes]) -> None:
    names = list(content)
    random.Random(1).shuffle(names)
    first = pack(content)
    assert pack({name: content[name] for name in names}) == first
    assert unpack(first) == content
    assert sorted(content)[-3:] == [
        "snapshot/additional_chat_templates/rag.jinja",
        "snapshot/config.json",
        "snapshot/tokenizer.json",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/evil",
        "snapshot/../../evil",
        "snapshot//tokenizer.json",
        "./snapshot/tokenizer.json",
        "snapshot/model.safetensors",
        "compiled/x.ref",
        "compiled/" + "a" * 64 + ".so",
        "snapshot",
        "report.json/x",
    ],
)
def test_a_name_that_a_bundle_does_not_have_is_refused(name: str, tmp_path: Path) -> None:
    digest = put(with_member(name), tmp_path / "in" / "a-1")
    (tmp_path / "out").mkdir()
    assert code_of(lambda: unpack_all({"a-1": digest}, tmp_path / "in", tmp_path / "out")) == "bundle.bad_member"
    assert list((tmp_path / "out").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}


@pytest.mark.parametrize(
    ("type", "link"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.LNKTYPE, "report.json"),
        (tarfile.DIRTYPE, ""),
        (tarfile.FIFOTYPE, ""),
        (tarfile.CHRTYPE, ""),
        (tarfile.GNUTYPE_SPARSE, ""),
    ],
)
def test_what_is_no_plain_file_is_refused(type: bytes, link: str) -> None:
    bundle = with_member("snapshot/config.json", b"", type=type, link=link)
    assert code_of(lambda: unpack(bundle)) in ("bundle.bad_member", "bundle.bad_archive")


def test_a_sparse_file_is_not_blown_up() -> None:
    huge = tarfile.TarInfo("snapshot/config.json")
    huge.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.size": str(1 << 40),
        "GNU.sparse.map": "0,1",
    }
    bundle = tar_of((huge, b"x"), format=tarfile.PAX_FORMAT)
    assert code_of(lambda: unpack(bundle)) == "bundle.bad_member"


def test_a_name_that_stands_twice_is_refused() -> None:
    assert code_of(lambda: unpack(with_member("report.json"))) == "bundle.bad_member"


def test_a_bomb_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONTENT_BYTES", 1 << 20)
    bomb = with_member("snapshot/config.json", bytes(8 << 20))
    assert len(bomb) < 20_000
    assert code_of(lambda: unpack(bomb)) == "bundle.too_large"


def test_too_many_files_are_refused() -> None:
    names = [f"snapshot/additional_chat_templates/{at}.jinja" for at in range(200)]
    bundle = tar_of(*((tarfile.TarInfo(name), b"") for name in names))
    assert code_of(lambda: unpack(bundle)) == "bundle.too_large"


def test_every_cut_and_every_kind_of_damage_has_a_code(content: dict[str, bytes]) -> None:
    bundle, draw = pack(content), random.Random(2)
    for at in [0, 1, 10, len(bundle) // 2, len(bundle) - 1]:
        assert code_of(lambda at=at: unpack(bundle[:at])) == "bundle.bad_archive"  # type: ignore[misc]
    assert code_of(lambda: unpack(bundle + b"x")) == "bundle.bad_archive"
    assert code_of(lambda: unpack(bundle + gzip.compress(b"more"))) == "bundle.bad_archive"
    inner, codes = gzip.decompress(bundle), set()
    for _ in range(200):
        damaged = bytearray(inner)
        for _ in range(3):
            damaged[draw.randrange(1024)] = draw.randrange(256)
        try:
            unpack(gzip.compress(bytes(damaged), 1))
        except StateCorrupt as error:
            codes.add(error.code)
    assert codes == {"bundle.bad_archive"}
    for missing in ("snapshot/tokenizer.json", "report.json"):
        rest = {name: data for name, data in content.items() if name != missing}
        assert code_of(lambda rest=rest: unpack(pack(rest))) == "bundle.bad_archive"  # type: ignore[misc]


def test_more_than_a_pod_could_be_given_is_refused(content: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BUNDLE_BYTES", 100)
    with pytest.raises(InvalidRequest, match="100 at most") as caught:
        pack(content)
    assert caught.value.code == "bundle.too_large"
    with pytest.raises(InvalidRequest):
        pack({**content, "snapshot/model.safetensors": b""})


# --- chunks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 899_999, 900_000, 900_001, 9_900_007])
def test_chunks_join_to_the_bundle(size: int, tmp_path: Path) -> None:
    bundle = random.Random(size).randbytes(size)
    digest = put(bundle, tmp_path / "a")
    chunks = chunks_of(bundle)
    assert max(len(chunk) for _, chunk in chunks) <= 900_000
    assert [key for key, _ in chunks] == [f"bundle.{at:03}" for at in range(len(chunks))]
    assert joined(tmp_path / "a") == bundle
    assert chunk_names("qwen", digest, 2) == [f"qwen-{digest[:16]}-0", f"qwen-{digest[:16]}-1"]


def test_a_missing_chunk_is_told(tmp_path: Path) -> None:
    put(bytes(2_000_000), tmp_path / "a")
    (tmp_path / "a" / "bundle.001").unlink()
    assert code_of(lambda: joined(tmp_path / "a")) == "bundle.missing"
    assert code_of(lambda: joined(tmp_path / "none")) == "bundle.missing"
    (tmp_path / "empty").mkdir()
    assert code_of(lambda: joined(tmp_path / "empty")) == "bundle.missing"


def test_more_chunks_than_a_bundle_has_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BUNDLE_BYTES", 1_800_000)
    put(bytes(1_800_001), tmp_path / "a")
    assert code_of(lambda: joined(tmp_path / "a")) == "bundle.too_large"


# --- unpacking ------------------------------------------------------------------------------------------------


def test_every_bundle_is_unpacked_in_place_of_what_was_there(content: dict[str, bytes], tmp_path: Path) -> None:
    other = {**content, "report.json": b"other"}
    digests = {id: put(pack(each), tmp_path / "in" / id) for id, each in (("a-1", content), ("b-2", other))}
    left = tmp_path / "out" / "a-1" / "compiled"
    left.mkdir(parents=True)
    (left / "old").touch()
    for _ in range(2):
        unpack_all(read_bundles(json.dumps(digests)), tmp_path / "in", tmp_path / "out")
        for id, each in (("a-1", content), ("b-2", other)):
            folder = tmp_path / "out" / id
            found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
            assert found == each
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a-1", "b-2"}


def test_another_bundle_than_the_pod_was_given_is_refused(content: dict[str, bytes], tmp_path: Path) -> None:
    put(pack(content), tmp_path / "in" / "a-1")
    (tmp_path / "out").mkdir()
    assert code_of(lambda: unpack_all({"a-1": "0" * 64}, tmp_path / "in", tmp_path / "out")) == "bundle.digest_mismatch"
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"../x": "%s"}' % ("0" * 64), '{"": "%s"}' % ("0" * 64), '{"a-1": "0"}', '{"a-1": null}'],
)
def test_a_list_of_bundles_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_bundles(text)
    assert caught.value.code == "bundle.bad_request"
