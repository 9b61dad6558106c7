"""Files over HTTP: one GET, bounded in size and time, tried again where that may help.

Guarantees: a redirect is followed to https, or within the origin that was asked first, at most `MAX_REDIRECTS` times;
an `authorization` goes to that origin only; what an address says behind `?` is in no error.

Proxies and certificates are those of the HTTP client's own variables (`HTTPS_PROXY`, `SSL_CERT_FILE`).
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from toktier_tier.core.errors import SourceUnavailable

from . import bounds
from .bounds import DIGEST, bad_spec, check_size, unpacked, verify
from .cache import cached_tokenizer, store_tokenizer
from .files import TOKENIZER, TokenizerFiles

MAX_REDIRECTS = 5
CONNECT_S, SILENT_S = 15.0, 60.0
TRIES = 3
FIRST_WAIT_S = 0.5
_WEB = re.compile(r"(?P<url>https://[^\s/?#@]+(?:[/?][^\s#]*)?)" + DIGEST)
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


def load_from_web(spec: str, cache_dir: Path, offline: bool) -> TokenizerFiles:
    """`https://...#sha256=HEX`: the digest is of the bytes as they are served, gzipped or not."""
    match = _WEB.fullmatch(spec)
    if match is None or not httpx.URL(match["url"]).host:
        raise bad_spec(spec)
    url, sha256 = match["url"], match["sha256"].lower()
    data = cached_tokenizer(sha256, cache_dir=cache_dir)
    if data is None:
        if offline:
            raise SourceUnavailable("source.offline", f"{shown(url)} isn't cached")
        data = fetch(url)
        verify(data, sha256, shown(url))
        _remember(data, cache_dir)
    return TokenizerFiles({TOKENIZER: unpacked(data, shown(url))}, shown(url))


def _remember(data: bytes, cache_dir: Path) -> None:
    """A pod has nowhere to keep it: no reason to fail."""
    try:
        store_tokenizer(data, cache_dir=cache_dir)
    except SourceUnavailable as error:
        if error.code != "source.cache_failed":
            raise


def fetch(url: str, headers: Mapping[str, str] | None = None) -> bytes:
    """The body of a GET. Raises `source.not_found` (404, 410), `source.too_large` and `source.fetch_failed`."""
    deadline = time.monotonic() + bounds.FETCH_TIMEOUT_S
    timeout = httpx.Timeout(SILENT_S, connect=CONNECT_S)
    try:
        with httpx.Client(timeout=timeout, follow_redirects=False) as client:
            for left in reversed(range(TRIES)):
                try:
                    return _follow(client, httpx.URL(url), headers or {}, deadline)
                except _Passing as error:
                    reason = str(error)
                    if not left:
                        break
                time.sleep(FIRST_WAIT_S * 2 ** (TRIES - 1 - left))
    except (httpx.InvalidURL, ssl.SSLError, OSError) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
    raise SourceUnavailable("source.fetch_failed", f"can't fetch {shown(url)}: {reason}")


def shown(url: str) -> str:
    """Without a query: it may hold a signature."""
    return url.partition("?")[0]


class _Passing(Exception):
    """What may be over when asked again."""


def _follow(client: httpx.Client, first: httpx.URL, headers: Mapping[str, str], deadline: float) -> bytes:
    url = first
    for _ in range(MAX_REDIRECTS + 1):
        same = _origin(url) == _origin(first)
        sent = {"accept-encoding": "identity"} | {
            name: value for name, value in headers.items() if same or name != "authorization"
        }
        try:
            with client.stream("GET", url, headers=sent) as answer:
                if answer.has_redirect_location:
                    url = _redirected(url, answer, first)
                    continue
                _check_status(answer)
                return _body(answer, deadline)
        except httpx.TransportError as error:
            raise _Passing(f"{type(error).__name__}: {error}"[:200]) from error
    raise SourceUnavailable("source.fetch_failed", f"can't fetch {shown(str(first))}: too many redirects")


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _redirected(url: httpx.URL, answer: httpx.Response, first: httpx.URL) -> httpx.URL:
    target = url.join(answer.headers.get("location", ""))
    if target.scheme == "https" or _origin(target) == _origin(first):
        return target
    message = f"{shown(str(first))} leads to {target.scheme}://{target.host}, which isn't https"
    raise SourceUnavailable("source.fetch_failed", message)


def _check_status(answer: httpx.Response) -> None:
    status, url = answer.status_code, shown(str(answer.request.url))
    if status in (404, 410):
        raise SourceUnavailable("source.not_found", f"{url} isn't there ({status})", status=status)
    if status in _TRY_AGAIN:
        raise _Passing(f"status {status}")
    if status != 200:
        message = f"{url} answers {status}" + (": it asks for credentials" if status in (401, 403) else "")
        raise SourceUnavailable("source.fetch_failed", message, status=status)


def _body(answer: httpx.Response, deadline: float) -> bytes:
    body, url = bytearray(), shown(str(answer.request.url))
    length = answer.headers.get("content-length", "")
    if length.isascii() and length.isdecimal():
        check_size(int(length), url)
    for part in answer.iter_raw():
        body += part
        check_size(len(body), url)
        if time.monotonic() > deadline:
            message = f"{url} took longer than {bounds.FETCH_TIMEOUT_S:g} s"
            raise SourceUnavailable("source.fetch_failed", message)
    return bytes(body)
