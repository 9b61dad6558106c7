"""SGLang's HTTP app for its tokenizer workers: the same one, with the plugin's hooks in place.

`SGLANG_HTTP_SERVER_APP_PATH` names this module in place of SGLang's own where the plugin is used: with several
tokenizer workers (`--tokenizer-worker-num`) each is a fresh process that imports the app and loads no plugins.
"""

from __future__ import annotations

import logging

from sglang.srt.entrypoints.http_server import app
from sglang.srt.plugins.hook_registry import HookRegistry

from .plugin import log, register

__all__ = ["app"]

log.setLevel(logging.INFO)  # in these processes SGLang leaves the root logger at WARNING
register()
HookRegistry.apply_hooks()
