"""Tokenizers over HTTPS and from a hub: real servers on loopback, with certificates of their own, that misbehave."""

from __future__ import annotations

import gzip
import hashlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from certificates import Authority
from toktier_tier.core.errors import TierError
from toktier_tier.sources import TokenizerFiles, bounds, load_files, load_source, web

CONTENT = b'{"version": "1.0"}'
SHA256 = hashlib.sha256(CONTENT).hexdigest()
COMMIT = "a" * 40


class Site:
    """Answers by path: bytes, a status, or a place to go on to; `trouble` statuses come first."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.pages: dict[str, bytes | int | str] = {}
        self.trouble: list[int] = []
        self.asked: list[tuple[str, str]] = []
        self.pause_s = 0.0
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append((self.path, self.headers.get("authorization", "")))
                page = site.trouble.pop(0) if site.trouble else site.pages.get(self.path.partition("?")[0], 404)
                self.send_response(302 if isinstance(page, str) else page if isinstance(page, int) else 200)
                if isinstance(page, str):
                    self.send_header("location", page)
                self.end_headers()
                if isinstance(page, bytes):
                    for at in range(0, len(page), 1 << 16):
                        self.wfile.write(page[at : at + (1 << 16)])
                        time.sleep(site.pause_s)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "https" if certificate is not None else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The authority's certificate, and a server's with its key."""
    folder, authority = tmp_path_factory.mktemp("tls"), Authority()
    pair = authority.issue("web")
    (folder / "ca.pem").write_bytes(authority.certificate)
    (folder / "server.pem").write_bytes(pair.certificate + pair.key)
    return folder / "ca.pem", folder / "server.pem"


@pytest.fixture(autouse=True)
def surroundings(pem: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("SSL_CERT_FILE", str(pem[0]))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(web, "FIRST_WAIT_S", 0.01)


@pytest.fixture
def site(pem: tuple[Path, Path]) -> Iterator[Site]:
    found = Site(pem[1])
    yield found
    found.close()


@pytest.fixture
def plain() -> Iterator[Site]:
    found = Site()
    yield found
    found.close()


def code_of(spec: str, cache: Path) -> str:
    with pytest.raises(TierError) as caught:
        load_source(spec, cache_dir=cache)
    return caught.value.code


# --- https ----------------------------------------------------------------------------------------------------


def test_a_file_from_the_web_is_what_its_digest_says_and_is_kept(site: Site, tmp_path: Path) -> None:
    site.pages["/m@1/tokenizer.json"] = CONTENT
    spec = f"{site.url}/m@1/tokenizer.json#sha256={SHA256.upper()}"
    source = load_source(spec, cache_dir=tmp_path)
    assert (source.data, source.sha256, source.origin) == (CONTENT, SHA256, f"{site.url}/m@1/tokenizer.json")
    assert load_source(spec, cache_dir=tmp_path, offline=True).data == CONTENT
    assert len(site.asked) == 1
    site.pages["/m@1/tokenizer.json"] = b"{}"
    assert code_of(spec.replace(SHA256.upper(), "0" * 64), tmp_path) == "source.digest_mismatch"


def test_a_gzipped_file_has_the_digest_of_what_is_served(site: Site, tmp_path: Path) -> None:
    packed = gzip.compress(CONTENT)
    site.pages["/tokenizer.json.gz"] = packed
    spec = f"{site.url}/tokenizer.json.gz#sha256={hashlib.sha256(packed).hexdigest()}"
    for _ in range(2):
        assert load_source(spec, cache_dir=tmp_path).data == CONTENT
    assert len(site.asked) == 1


def test_a_folder_that_can_not_be_written_costs_the_cache_only(site: Site, tmp_path: Path) -> None:
    site.pages["/t"] = CONTENT
    (tmp_path / "file").touch()
    assert load_source(f"{site.url}/t#sha256={SHA256}", cache_dir=tmp_path / "file").data == CONTENT


def test_redirects_lead_to_https_only(site: Site, plain: Site, pem: tuple[Path, Path], tmp_path: Path) -> None:
    other = Site(pem[1])
    other.pages["/real"] = plain.pages["/real"] = CONTENT
    site.pages |= {"/a": "/b", "/b": f"{other.url}/real", "/down": f"{plain.url}/real", "/file": "file:///etc/passwd"}
    try:
        assert load_source(f"{site.url}/a#sha256={SHA256}", cache_dir=tmp_path / "1").data == CONTENT
        assert code_of(f"{site.url}/down#sha256={SHA256}", tmp_path / "2") == "source.fetch_failed"
        assert code_of(f"{site.url}/file#sha256={SHA256}", tmp_path / "2") == "source.fetch_failed"
        assert not plain.asked
        site.pages["/a"] = "/a"
        assert code_of(f"{site.url}/a#sha256={SHA256}", tmp_path / "2") == "source.fetch_failed"
    finally:
        other.close()


def test_trouble_that_passes_is_waited_out_and_what_does_not_is_told(site: Site, tmp_path: Path) -> None:
    site.pages["/t"] = CONTENT
    spec = f"{site.url}/t#sha256={SHA256}"
    site.trouble = [503, 429]
    assert load_source(spec, cache_dir=tmp_path / "a").data == CONTENT
    site.trouble = [503, 503, 503]
    assert code_of(spec, tmp_path / "b") == "source.fetch_failed"
    site.trouble, before = [403], len(site.asked)
    assert code_of(spec, tmp_path / "b") == "source.fetch_failed"
    assert len(site.asked) == before + 1
    site.trouble = [404]
    assert code_of(spec, tmp_path / "b") == "source.not_found"


def test_a_body_is_bounded_in_size_and_time(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.pages["/t"] = bytes(1 << 20)
    spec = f"{site.url}/t#sha256={SHA256}"
    with monkeypatch.context() as patched:
        patched.setattr(bounds, "MAX_MEMBER_BYTES", (1 << 20) - 1)
        assert code_of(spec, tmp_path) == "source.too_large"
    site.pause_s = 0.1
    monkeypatch.setattr(bounds, "FETCH_TIMEOUT_S", 0.2)
    began = time.monotonic()
    assert code_of(spec, tmp_path) == "source.fetch_failed"
    assert time.monotonic() - began < 1.5


def test_a_server_without_a_known_certificate_is_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.pem").write_bytes(Authority().certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "other.pem"))
    site.pages["/t"] = CONTENT
    assert code_of(f"{site.url}/t#sha256={SHA256}", tmp_path) == "source.fetch_failed"
    assert not site.asked


def test_what_stands_behind_the_question_mark_is_not_told(site: Site, tmp_path: Path) -> None:
    with pytest.raises(TierError) as caught:
        load_source(f"{site.url}/t?signature=secret#sha256={SHA256}", cache_dir=tmp_path)
    assert "secret" not in str(caught.value) + repr(caught.value.details)
    site.pages["/t"] = CONTENT
    assert "secret" not in load_source(f"{site.url}/t?signature=secret#sha256={SHA256}", cache_dir=tmp_path).origin


@pytest.mark.parametrize(
    "spec",
    [
        "https://example.invalid/t",
        f"https://user:word@example.invalid/t#sha256={SHA256}",
        f"https:///t#sha256={SHA256}",
        f"https://user@example.invalid/t#sha256={SHA256}",
        f"https://example.invalid/a b#sha256={SHA256}",
        f"https://example.invalid/t#part#sha256={SHA256}",
        f"http://example.invalid/t#sha256={SHA256}",
        f"https://example.invalid/t#sha256={SHA256[:-1]}",
    ],
)
def test_an_address_without_digest_or_with_credentials_is_no_specification(spec: str, tmp_path: Path) -> None:
    assert code_of(spec, tmp_path) == "source.bad_spec"


# --- the hub --------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(plain: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A repository `org/name` whose branch `main` is at `COMMIT`."""
    monkeypatch.setenv("HF_ENDPOINT", plain.url + "/")
    files = {
        "tokenizer.json": CONTENT,
        "tokenizer_config.json": b'{"chat_template": "x"}',
        "config.json": b"{}",
        "additional_chat_templates/rag.jinja": b"y",
        "model.safetensors": b"large",
        "sub/config.json": b"another",
    }
    about = {"sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
    for revision in ("main", COMMIT, "refs%2Fpr%2F1"):
        plain.pages[f"/api/models/org/name/revision/{revision}"] = json.dumps(about).encode()
    plain.pages |= {f"/org/name/resolve/{COMMIT}/{name}": data for name, data in files.items()}
    return plain


def test_a_revision_of_the_hub_is_resolved_to_its_commit_and_companions_travel_along(hub: Site, tmp_path: Path) -> None:
    found = load_files("hf:org/name@main", cache_dir=tmp_path)
    assert sorted(found.files) == [
        "additional_chat_templates/rag.jinja",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert found.tokenizer == CONTENT
    assert not any("safetensors" in path for path, _ in hub.asked)
    assert load_files("hf:org/name@refs/pr/1", cache_dir=tmp_path).sha256 == found.sha256


def test_a_commit_is_fetched_once(hub: Site, tmp_path: Path) -> None:
    first = load_files(f"hf:org/name@{COMMIT}", cache_dir=tmp_path)
    hub.asked.clear()
    assert load_source(f"hf:org/name@{COMMIT}", cache_dir=tmp_path).data == CONTENT
    assert load_files(f"hf:org/name@{COMMIT}", cache_dir=tmp_path, offline=True).files == first.files
    assert not hub.asked
    assert load_files("hf:org/name@main", cache_dir=tmp_path).files == first.files
    assert [path for path, _ in hub.asked] == ["/api/models/org/name/revision/main"]


def test_a_cached_tokenizer_alone_does_not_hide_its_companions(hub: Site, tmp_path: Path) -> None:
    load_source(f"hf:org/name@{COMMIT}", cache_dir=tmp_path)
    assert len(load_files(f"hf:org/name@{COMMIT}", cache_dir=tmp_path).files) == 4


def test_the_token_goes_to_the_hub_and_nowhere_else(
    hub: Site, pem: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    store = Site(pem[1])
    store.pages["/blob"] = CONTENT
    hub.pages[f"/org/name/resolve/{COMMIT}/tokenizer.json"] = f"{store.url}/blob?signed=1"
    try:
        assert load_source("hf:org/name@main", cache_dir=tmp_path).data == CONTENT
    finally:
        store.close()
    assert {authorization for _, authorization in hub.asked} == {"Bearer hf_secret"}
    assert store.asked == [("/blob?signed=1", "")]


@pytest.mark.parametrize(
    ("about", "code"),
    [
        (404, "source.not_found"),
        (401, "source.fetch_failed"),
        (b"<html>", "source.fetch_failed"),
        (b'{"sha": "../x", "siblings": []}', "source.fetch_failed"),
        (json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "vocab.json"}]}).encode(), "source.not_found"),
    ],
)
def test_an_answer_that_leads_nowhere_is_told_by_a_code(
    about: bytes | int, code: str, hub: Site, tmp_path: Path
) -> None:
    hub.pages["/api/models/org/name/revision/main"] = about
    assert code_of("hf:org/name@main", tmp_path) == code


def test_a_hub_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert code_of("hf:org/name@main", tmp_path) == "source.fetch_failed"


# --- folders --------------------------------------------------------------------------------------------------


def test_what_lies_beside_a_tokenizer_travels_along_and_changes_the_digest(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json.gz").write_bytes(gzip.compress(CONTENT))
    alone = load_files(str(tmp_path))
    assert (alone.sha256, alone.tokenizer) == (SHA256, CONTENT)
    (tmp_path / "model.safetensors").touch()
    assert load_files(str(tmp_path)).sha256 == SHA256
    (tmp_path / "chat_template.jinja").write_bytes(b"t")
    named = tmp_path / "additional_chat_templates"
    named.mkdir()
    (named / "rag.jinja").write_bytes(b"r")
    (named / "notes.txt").touch()
    found = load_files(str(tmp_path / "tokenizer.json.gz"))
    assert found.files == {
        "tokenizer.json": CONTENT,
        "chat_template.jinja": b"t",
        "additional_chat_templates/rag.jinja": b"r",
    }
    listed = [[name, hashlib.sha256(data).hexdigest()] for name, data in sorted(found.files.items())]
    assert found.sha256 == hashlib.sha256(json.dumps(listed, separators=(",", ":")).encode()).hexdigest()
    assert load_source(str(tmp_path)).sha256 == SHA256


def test_a_mounted_configmap_is_read_through_its_links(tmp_path: Path) -> None:
    data = tmp_path / "..2026_01_01"
    data.mkdir()
    for name in ("tokenizer.json", "config.json"):
        (data / name).write_bytes(CONTENT)
    (tmp_path / "..data").symlink_to(data.name)
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    assert sorted(load_files(str(tmp_path)).files) == ["config.json", "tokenizer.json"]
    assert sorted(load_files(str(tmp_path / "tokenizer.json")).files) == ["config.json", "tokenizer.json"]


@pytest.mark.parametrize("damage", [slice(0, -3), slice(0, 12)])
def test_a_damaged_gzip_file_is_refused(damage: slice, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json.gz").write_bytes(gzip.compress(CONTENT)[damage])
    assert code_of(str(tmp_path), tmp_path) == "source.bad_archive"


def test_a_gzip_bomb_is_refused_without_being_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_MEMBER_BYTES", 1 << 20)
    (tmp_path / "tokenizer.json.gz").write_bytes(gzip.compress(bytes(64 << 20)))
    assert code_of(str(tmp_path), tmp_path) == "source.too_large"


def test_only_what_belongs_to_a_tokenizer_is_taken() -> None:
    for name in ("../tokenizer.json", "config.json/x", "additional_chat_templates/../x.jinja", "/config.json"):
        with pytest.raises(ValueError, match="nothing else"):
            TokenizerFiles({"tokenizer.json": CONTENT, name: b""}, "here")
