"""What SGLang loads by the entry point `toktier-sglang` of the group `sglang.srt.plugins`.

Two of SGLang's functions are wrapped, both between a text and its IDs:

    TokenizerManager._tokenize_texts   /generate, /v1/completions, embeddings; a coroutine on the event loop
    parallel_prompt_encode             the text that a chat template rendered; on a thread pool

and TokenizerManager.__init__, after which the tokenizer is known. Chat prompts that SGLang makes otherwise (templates
by name, encoders in Python, ones whose text can't be encoded again) don't come by here. With several tokenizer workers
SGLang loads no plugins in them; `worker_app` stands in for its app there.

Guarantee: without `TOKTIER_ADDRESS` nothing is imported or wrapped. Nothing raised here reaches SGLang.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from .reasons import Off, Own, PluginOff
from .settings import PluginSettings, read_settings

if TYPE_CHECKING:
    from .bridge import Bridge

MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
ENCODE = "sglang.srt.entrypoints.openai.parallel_prompt_encode.parallel_prompt_encode"
APP_VARIABLE, WORKER_APP = "SGLANG_HTTP_SERVER_APP_PATH", "toktier_sglang.worker_app:app"
log = logging.getLogger("toktier_sglang")

Encode = Callable[..., list[int]]
Tokenize = Callable[..., Awaitable[tuple[Any, Any]]]


class Hooks:
    """The wrappers. A bridge per tokenizer; a tokenizer without one is left alone."""

    def __init__(self, settings: PluginSettings) -> None:
        self._settings = settings
        self._bridges: list[tuple[Any, Bridge]] = []

    def attach(self, _result: None, manager: Any, *_args: Any, **_options: Any) -> None:
        """After TokenizerManager.__init__."""
        try:
            tokenizer = manager.tokenizer
            if tokenizer is None:
                raise PluginOff(Off.NO_TOKENIZER, "SGLang runs without a tokenizer")
            if self.bridge_of(tokenizer) is None:
                from .bridge import Bridge
                from .counts import Counts
                from .own import OwnTokenizer

                own = OwnTokenizer(tokenizer, getattr(manager.server_args, "revision", None))
                bridge = Bridge(self._settings, own, Counts(bool(manager.enable_metrics)))
                bridge.start()
                self._bridges.append((tokenizer, bridge))
        except PluginOff as found:
            log.error("TokTier is off, SGLang tokenizes by itself [%s]: %s", found.code.value, found.detail)
        except Exception:
            log.exception("TokTier is off, SGLang tokenizes by itself [%s]", Off.FAILED.value)

    def bridge_of(self, tokenizer: Any) -> Bridge | None:
        return next((bridge for known, bridge in self._bridges if known is tokenizer), None)

    async def tokenize(self, original: Tokenize, manager: Any, texts: Any, *args: Any, **options: Any) -> Any:
        """Around TokenizerManager._tokenize_texts(texts, is_cross_encoder=False) → (IDs, token type IDs)."""
        bridge = self.bridge_of(manager.tokenizer)
        if bridge is None:
            return await original(manager, texts, *args, **options)
        from .own import Call

        pairs = bool(args[0]) if args else bool(options.get("is_cross_encoder"))
        if pairs:
            bridge.counts.by_own(Call.TEXT, Own.PAIRS)
        elif len(args) > 1 or set(options) - {"is_cross_encoder"} or manager.model_config.is_embedding_gemma:
            bridge.counts.by_own(Call.TEXT, Own.OPTIONS)  # that model gets one more token behind
        elif isinstance(texts, list):
            bridge.counts.by_own(Call.TEXT, Own.BATCH)
        else:
            ids = await bridge.ids_on_loop(Call.TEXT, texts)
            if ids is not None:
                return ids, None
        return await original(manager, texts, *args, **options)

    def encode(self, original: Encode, tokenizer: Any, text: Any, *args: Any, **options: Any) -> list[int]:
        """Around parallel_prompt_encode(tokenizer, text, encode_kwargs=None) → IDs."""
        bridge = self.bridge_of(tokenizer)
        if bridge is not None:
            from .own import Call, chat_call

            call = chat_call(args[0] if args else options.get("encode_kwargs"))
            if call is None or len(args) > 1 or set(options) - {"encode_kwargs"}:
                bridge.counts.by_own(Call.CHAT, Own.OPTIONS)
            elif _on_event_loop():
                bridge.counts.by_own(call, Own.EVENT_LOOP)
            else:
                ids = bridge.ids(call, text)
                if ids is not None:
                    return ids
        return original(tokenizer, text, *args, **options)


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def register() -> None:
    """The entry point. Called in each of SGLang's processes; only those with a TokenizerManager go on from there."""
    try:
        settings = read_settings(os.environ)
        if settings is None:
            return
        targets = _targets()
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        hooks = Hooks(settings)
        for target, hook, kind in (
            (targets[0], hooks.attach, HookType.AFTER),
            (targets[1], hooks.tokenize, HookType.AROUND),
            (targets[2], hooks.encode, HookType.AROUND),
        ):
            HookRegistry.register(target, hook, kind)
    except PluginOff as found:
        log.error("TokTier is off, SGLang tokenizes by itself [%s]: %s", found.code.value, found.detail)
        return
    os.environ.setdefault(APP_VARIABLE, WORKER_APP)


def _targets() -> tuple[str, str, str]:
    """What to wrap. Raises `PluginOff` unless all of it is there, with the arguments that are known here."""
    try:
        from sglang.srt.entrypoints.openai.parallel_prompt_encode import parallel_prompt_encode
        from sglang.srt.managers.tokenizer_manager import TokenizerManager

        tokenize = TokenizerManager._tokenize_texts
    except (ImportError, AttributeError) as error:
        raise PluginOff(Off.SGLANG, str(error)) from None
    known = (
        (tokenize, ["self", "texts", "is_cross_encoder"]),
        (parallel_prompt_encode, ["tokenizer", "text", "encode_kwargs"]),
    )
    for function, names in known:
        found = list(inspect.signature(function).parameters)
        if found != names:
            raise PluginOff(Off.SGLANG, f"{function.__qualname__} takes {', '.join(found)}")
    if not inspect.iscoroutinefunction(tokenize):
        raise PluginOff(Off.SGLANG, "_tokenize_texts is no coroutine")
    return f"{MANAGER}.__init__", f"{MANAGER}._tokenize_texts", ENCODE
