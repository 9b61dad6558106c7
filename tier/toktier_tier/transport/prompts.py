"""From a request's body to the token IDs that SGLang would make of it, by way of a session.

Guarantee: a `Prompt`'s IDs equal SGLang's own for that body: the text its template renders, encoded whole by the
reference's rules. Where the tier can't be sure, the answer is a `PassThrough` with a reason: then the body goes on as
it is, and SGLang tokenizes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np

from ..core.errors import InvalidRequest, SessionBusy, UnsupportedTokenizer
from ..core.repair import TemplateIds
from ..core.trust import NO_SPANS, Spans
from ..core.values import Ids, Patch, Reason
from ..engine.chat_template import ChatRenderer, PassThrough, Rendered
from ..engine.chat_trust import has_untrusted, untrusted_spans
from ..engine.folder import Loading
from ..engine.ids import CheckedIds, check_ids
from ..engine.sglang_http import one_text
from ..sessions.affinity import chat_key, text_key
from ..sessions.lookup import NAMED, Chain, ContentIndex, blocks, chain_of, packed, unpacked
from ..sessions.registry import Registry, Served
from ..sessions.table import SessionKey
from ..telemetry import Telemetry
from .elsewhere import Elsewhere
from .messages import ROUTES, ROUTES_BACK, bytes_of, ids_of, message_ranges, ranges_of
from .tenants import OWN_TENANT
from .v1 import toktier_pb2 as pb
from .work import Work

EXPLICIT = ("session_id", "prompt_cache_key")
"""Members of a body that name a session, in order."""
LONGEST_NAME_CHARS = 256
"""Of a session as a client names it; a longer one goes by its digest."""
NO_TEMPLATE = PassThrough("chat.no_template", "this tokenizer is served without a chat template")
DISAGREES = PassThrough("chat.engine_disagrees", "the engine makes other IDs of chats than this template does")
TEXTS_DISAGREE = PassThrough("text.engine_disagrees", "the engine makes other IDs of texts than this tokenizer does")
NO_FIXED_SPECIALS = PassThrough("text.special_tokens", "what the tokenizer adds to a text isn't known to be fixed")


@dataclass(frozen=True, slots=True)
class Prompt:
    """IDs to hand over, what the engine is chosen by (a request's name, else the session; tenant excluded) and how the
    IDs came about."""

    ids: CheckedIds
    placed: str
    patch: Patch


class Model:
    """One served tokenizer with what requests need beside its sessions.

    agrees, agrees_on_texts    False once the engine was seen to make other IDs of chats, or of texts
    refusal                    why the engine's IDs aren't known from the files, so that nothing is encoded for it
    specials                   the fixed tokens that the engine adds around a text; None if they aren't fixed
    """

    def __init__(self, served: Served, renderer: ChatRenderer | None, loading: Loading) -> None:
        self.served, self.renderer = served, renderer
        self.agrees = self.agrees_on_texts = True
        self.refusal = loading.refusal
        self.specials: TemplateIds | None
        if loading.prefix is not None:
            self.specials = TemplateIds(loading.prefix)
            return
        try:
            self.specials = TemplateIds(*served.tokenizer.reference.fixed_template())
        except UnsupportedTokenizer:
            self.specials = None

    @property
    def keeps_texts(self) -> PassThrough | None:
        """Why texts go on as text, if so."""
        if self.refusal is not None:
            return self.refusal
        if self.specials is None:
            return NO_FIXED_SPECIALS
        return None if self.agrees_on_texts else TEXTS_DISAGREE

    @property
    def keeps_chats(self) -> PassThrough | None:
        return self.refusal or (None if self.agrees else DISAGREES)

    def text_ids(self, ids: Ids) -> Ids:
        """A session's IDs without what its tokenizer's policy puts around them: SGLang decides that by the request."""
        return self.served.tokenizer.template.within(ids)


class Prompts:
    """Thread-safe as far as its parts are; one per tier.

    pods        the tier's other pods, if there are any: who owns a conversation is asked for its IDs
    loadings    by name what engines make of the tokenizers' files; the file alone decides where there is none
    """

    def __init__(
        self,
        registry: Registry,
        renderers: Mapping[str, ChatRenderer],
        work: Work,
        telemetry: Telemetry,
        index: ContentIndex | None = None,
        pods: Elsewhere | None = None,
        loadings: Mapping[str, Loading] = MappingProxyType({}),
    ) -> None:
        self.registry = registry
        self._models = {
            served.name: Model(served, renderers.get(served.name), loadings.get(served.name, Loading()))
            for served in registry
        }
        self.work, self._telemetry = work, telemetry
        self._index = index if index is not None else ContentIndex()  # an empty one is false
        self._pods = pods

    def models(self) -> Iterable[Model]:
        return self._models.values()

    def model(self, fields: Mapping[str, Any]) -> Model:
        """Raises `SnapshotNotFound`."""
        name = fields.get("model")
        return self._models[self.registry.find(name if isinstance(name, str) else "").name]

    async def chat(
        self,
        fields: Mapping[str, Any],
        tenant: str,
        named: str,
        size: int,
        generation: bool | None = None,
        *,
        special: bool = False,
    ) -> Prompt | PassThrough:
        """Of a chat body of `size` bytes; `named` is a session that a header names, `generation` as `render` has it;
        `special`: with the tokenizer's default special tokens around what the template gives.
        """
        model = self.model(fields)
        renderer = model.renderer
        if renderer is None:
            return NO_TEMPLATE
        found: tuple[Rendered, Spans] | PassThrough | None
        with self._telemetry.span("render"):
            found = model.keeps_chats
            if found is None:
                found = await self.work.for_size(size, lambda: _rendered(renderer, fields, generation))
        if isinstance(found, PassThrough):
            if has_untrusted(fields, renderer.untrusted_roles):
                raise InvalidRequest("trust.passed_through", f"untrusted text can't go on as text ({found.reason})")
            return found
        rendered, untrusted = found
        chars = len(rendered.text)
        prompt = await self._text(
            model,
            "chat",
            rendered.text,
            tenant,
            named or _explicit(fields),
            lambda: _messages(fields),
            lambda chain: chat_key(fields["messages"], chain, chars),
            untrusted,
        )
        if rendered.continuation is not None:
            return await self._continued(model, rendered.continuation, prompt)
        return self._with_specials(model, prompt) if special else prompt

    async def text(self, fields: Mapping[str, Any], key: str, tenant: str, named: str) -> Prompt | PassThrough:
        """Of a body whose text is its member `key`, encoded with the tokenizer's default special tokens."""
        model = self.model(fields)
        text = one_text(fields.get(key))
        if text is None:
            return PassThrough("text.not_one_text", f"{key!r} isn't one text")
        if model.keeps_texts is not None:
            return model.keeps_texts
        session = named or _explicit(fields)
        prompt = await self._text(model, "text", text, tenant, session, lambda: blocks(text), text_key)
        return self._with_specials(model, prompt)

    def _with_specials(self, model: Model, prompt: Prompt) -> Prompt | PassThrough:
        if model.specials is None:
            return NO_FIXED_SPECIALS
        if not (model.specials.prefix or model.specials.suffix):
            return prompt
        return Prompt(self._checked(model, model.specials.around(prompt.ids.array)), prompt.placed, prompt.patch)

    async def encoded(self, fields: Mapping[str, Any], text: str, *, special: bool) -> list[int]:
        """The IDs of a text by itself, with the default special tokens or without."""
        model = self.model(fields)
        specials = model.specials if special else TemplateIds()
        kept = model.refusal or (None if model.agrees_on_texts else TEXTS_DISAGREE)
        if kept is not None or specials is None:
            kept = kept or NO_FIXED_SPECIALS
            raise UnsupportedTokenizer(kept.reason, kept.detail)
        patch = await self.work.run(model.served, len(text), lambda wait: model.served.sessions.encode(text))
        ids: list[int] = specials.around(model.text_ids(patch.ids)).tolist()
        return ids

    async def encode_all(self, request: pb.EncodeAllRequest, tenant: str) -> pb.EncodeAllResponse:
        """Of a text that another pod has placed here. Raises `EnvironmentFault` (`session.moved`) if it belongs
        elsewhere by now.
        """
        served = self.registry.find(request.model)
        session, chain = request.session, unpacked(request.chain)
        if self._pods is not None:
            await self._pods.stay(self._key(served, tenant, session, chain, request.key), request.key)
        session = session or self._find(served, tenant, chain, request.key)
        untrusted = ranges_of(request.untrusted)
        patch, ids = await self._encoded(served, "EncodeAll", tenant, session, request.text, untrusted)
        return pb.EncodeAllResponse(
            ids=bytes_of(ids),
            session=session,
            revision=patch.revision,
            route=ROUTES[patch.route],
            reason=patch.reason,
        )

    def adopt(self, served: Served, tenant: str, session: str, chain: Chain) -> None:
        """Another pod's session, found by content, is here from now on."""
        self._index.adopt(tenant, served.tokenizer.fingerprint, session, chain)

    async def _text(
        self,
        model: Model,
        method: str,
        text: str,
        tenant: str,
        named: str,
        parts: Callable[[], Iterator[bytes]],
        place: Callable[[Chain], str | None],
        untrusted: Spans = NO_SPANS,
    ) -> Prompt:
        """`named`: the session that the request names: the conversation is looked for under that name, otherwise among
        all, by `parts` of its content. With several pods, the name or `place` tells what it is placed by.
        """
        served, key = model.served, ""
        if named:
            key = f"{NAMED}{named}" if len(named) <= LONGEST_NAME_CHARS else f"{NAMED}{_digest(named)}"
        with self._telemetry.span("find session"):
            named_parts = (key.encode("utf-8", "surrogatepass"),) if named else ()
            chain = await self.work.for_size(len(text), lambda: chain_of(itertools.chain(named_parts, parts())))
        if self._pods is not None:
            key = key or place(chain) or ""
            if key and tenant != OWN_TENANT:
                found = await self._ask(self._pods, served, tenant, text, chain, key, untrusted)
                if found is not None:
                    return self._prompt(model, *found, key)
        session = self._find(served, tenant, chain, key)
        patch, ids = await self._encoded(served, method, tenant, session, text, untrusted)
        return self._prompt(model, session, patch, ids, key)

    async def _encoded(
        self, served: Served, method: str, tenant: str, session: str, text: str, untrusted: Sequence[tuple[int, int]]
    ) -> tuple[Patch, Ids]:
        """All IDs of `text` as the session's new text, and the patch that led to them."""
        begun = perf_counter()
        sessions = served.sessions

        def encode(wait: bool) -> tuple[Patch, Ids]:
            patch = sessions.full_text(tenant, session, text, wait=wait, untrusted=untrusted, whole=True)
            assert patch.whole is not None
            return patch, patch.whole

        patch, ids = await self.work.run(served, len(text) // 16, encode)
        self._telemetry.answered(served, method, patch, len(text), perf_counter() - begun)
        return patch, ids

    async def _ask(
        self,
        pods: Elsewhere,
        served: Served,
        tenant: str,
        text: str,
        chain: Chain,
        key: str,
        untrusted: Spans,
    ) -> tuple[str, Patch, Ids] | None:
        """The session, patch and IDs of another pod; None if the text is encoded here."""
        request = pb.EncodeAllRequest(
            model=served.tokenizer.fingerprint,
            text=text,
            chain=packed(chain),
            key=key,
            untrusted=message_ranges(untrusted),
        )
        with self._telemetry.span("ask owner"):
            at = self._key(served, tenant, "", chain, key)
            data = await pods.ask("EncodeAll", at, key, request.SerializeToString())
        if data is None:
            return None
        answer = pb.EncodeAllResponse.FromString(data)
        ids = ids_of(answer.ids)
        route, reason = ROUTES_BACK[answer.route], Reason(answer.reason)
        return answer.session, Patch(0, ids, 0, len(ids), answer.revision, route, reason), ids

    def _key(self, served: Served, tenant: str, session: str, chain: Chain, key: str) -> SessionKey:
        """Of the session that a request goes on with, as far as is known here."""
        fingerprint = served.tokenizer.fingerprint
        named = key if key.startswith(NAMED) else ""
        return SessionKey(tenant, fingerprint, session or self._index.find(tenant, fingerprint, chain) or named)

    def _find(self, served: Served, tenant: str, chain: Chain, key: str) -> str:
        claim = self._index.claim(tenant, served.tokenizer.fingerprint, chain, key)
        if claim.parent is not None:
            with suppress(SessionBusy):  # then it is encoded anew: nobody waits here
                served.sessions.fork(tenant, claim.parent, claim.session, wait=False)
        return claim.session

    def _prompt(self, model: Model, session: str, patch: Patch, ids: Ids, key: str) -> Prompt:
        placed = key if key.startswith(NAMED) else session
        return Prompt(self._checked(model, model.text_ids(ids)), placed, patch)

    async def _continued(self, model: Model, continuation: str, prompt: Prompt) -> Prompt:
        """The cut-off answer, encoded apart, behind the rest."""
        tail = await self.work.run(
            model.served, len(continuation), lambda wait: model.served.sessions.encode(continuation)
        )
        joined = np.concatenate([prompt.ids.array, model.text_ids(tail.ids)])
        return Prompt(self._checked(model, joined), prompt.placed, prompt.patch)

    @staticmethod
    def _checked(model: Model, ids: Ids | Sequence[int]) -> CheckedIds:
        return check_ids(ids, model.served.tokenizer.reference.id_limit)


def _rendered(
    renderer: ChatRenderer, fields: Mapping[str, Any], generation: bool | None
) -> tuple[Rendered, Spans] | PassThrough:
    found = renderer.render(fields, generation)
    if isinstance(found, PassThrough):
        return found
    render = partial(renderer.render, generation=generation)
    return found, untrusted_spans(render, fields, found.text, renderer.untrusted_roles)


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


def _explicit(fields: Mapping[str, Any]) -> str:
    for key in EXPLICIT:
        value = fields.get(key)
        if isinstance(value, str) and value:
            return f"{key}/{value}"
    return ""


def _messages(fields: Mapping[str, Any]) -> Iterator[bytes]:
    """What decides a chat's text, in order: all but the messages first, then each of them."""
    other = {key: fields[key] for key in ("tools", "tool_choice", "chat_template_kwargs") if key in fields}
    yield json.dumps(other, sort_keys=True).encode()
    for message in fields["messages"]:
        yield json.dumps(message, sort_keys=True).encode()
