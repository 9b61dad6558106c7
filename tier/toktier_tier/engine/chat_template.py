"""A chat body to the prompt text whose IDs SGLang 0.5.23 would compute, or a reason why SGLang should render it itself.

1. `Rendered.ids` are exactly the prompt IDs of SGLang's own chat route for that body, given a tokenizer with the same
   `encode` as SGLang's. Where that isn't certain, `PassThrough` is returned: the body then goes to SGLang as text.
2. A template is run as `apply_chat_template` of transformers runs it: the same sandbox, filters, globals, tags and
   names. Neither transformers nor SGLang is needed for that.
3. A template can't reach the interpreter through the sandbox, nor make a prompt beyond `max_chars`; one that fails
   gives a code. It can loop long: templates come with the model and are as trusted as it.

Source: transformers 5.19 (`utils/chat_template_utils.py`), SGLang 0.5.23 (`parser/{jinja_template_utils,
template_manager,template_detection,conversation}.py`, `entrypoints/openai/{serving_chat,chat_encoding}.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .chat_request import BAD_REQUEST, MULTIMODAL, ChatRequest, ContentFormat, Refusal, understand

__all__ = ["ChatRenderer", "PassThrough", "Rendered", "Server", "content_format_of"]

TEMPLATE_ERROR = "chat.template_error"
UNSUPPORTED_TEMPLATE = "chat.unsupported_template"
TEMPLATE_KWARGS = "chat.template_kwargs"
REASONING_EFFORT = "chat.reasoning_effort"
CONTINUATION = "chat.continuation"
TOO_LONG = "chat.too_long"

MAX_CHARS = 64 * 2**20

# Whatever a template's expressions raise; SGLang catches Exception at the same place.
_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)

# Names that `apply_chat_template` takes for itself or passes on as its own: they never reach the template as given.
_TAKEN_NAMES = frozenset(
    (
        *("self", "conversation", "conversations", "messages", "tools", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors"),
        *("return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    )
)

# Models and parsers for which SGLang encodes chats without Jinja, or after changing the request.
_PARSERS_THAT_ENCODE = frozenset({"deepseekv41", "deepseekv4", "deepseekv32", "kimi_k3"})
_ARCHITECTURES_THAT_ENCODE = ("DeepseekV41", "DeepseekV4", "KimiK3", "InklingForConditionalGeneration", "MossVL")
_MODEL_TYPES_WITH_OWN_PROMPTS = frozenset(
    (
        *("deepseek_v41", "minimax_m3_vl", "internvl_chat", "deepseek_vl_v2", "multi_modality", "phi4mm", "minicpmv"),
        *("minicpmo", "moss_vl", "deepseek-ocr", "unlimited-ocr", "paddleocr_vl", "whisper"),
    )
)
_PATHS_WITH_OWN_PROMPTS = re.compile(
    r"\bpoints\b|moss.*vl|internvl|janus|vicuna|llava|deepseek.*vl2|minicpm-[vo]|phi-4-multimodal|deepseek-ocr"
    r"|unlimited|paddleocr|whisper",
    re.IGNORECASE,
)
# Reasoning parsers that put a literal of their own before a continued answer ("auto" may come to be one).
_PARSERS_THAT_OPEN_ANSWERS = frozenset({"auto", "beam", "response_template"})


@dataclass(frozen=True, slots=True)
class Server:
    """What the SGLang server was started with, as far as a prompt's text depends on it.

    `model_path` is given only where SGLang chooses the template itself (no `--chat-template`): it then goes by the
    path's name first. `empty_text_ids`: what its tokenizer makes of "" (`/v1/tokenize` tells); where a tokenizer.json
    has no post-processor but SGLang lets the tokenizer's class add BOS, () is as good, save for a multimodal model.
    """

    empty_text_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    multimodal: bool = False
    model_path: str = ""
    model_type: str = ""
    architecture: str = ""
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    default_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rendered:
    """`text` is encoded once, `continuation`, if any, apart; the prompt is the IDs of both, one after the other.

    No special tokens are to be added to either: SGLang adds some to `text` only where its tokenizer has none to add,
    and takes the BOS that it adds to a continuation away again.

    `message_ends_chars`: ascending positions in `text`, each the length of the template's render of the first k
    messages for some k, where that render is a prefix of `text`. Not all k: see `ChatRenderer`.
    """

    add_special_tokens: ClassVar[bool] = False

    text: str
    message_ends_chars: tuple[int, ...] = ()
    continuation: str | None = None

    def ids(self, encode: Callable[[str], Sequence[int]]) -> list[int]:
        """The prompt, by an `encode` that adds no special tokens."""
        ids = list(encode(self.text))
        return ids if self.continuation is None else ids + list(encode(self.continuation))


@dataclass(frozen=True, slots=True)
class PassThrough:
    """The body should go to SGLang as text; `reason` is a code, `detail` has no user text."""

    reason: str
    detail: str


class ChatRenderer:
    """Bodies of `/v1/chat/completions` to prompt texts, by one template. Safe to share between threads.

    A template that can't be compiled, or a server that renders otherwise, isn't an error: every body then passes
    through, with the reason that `refusal` tells. `message_ends` is for how many k, from all messages downwards,
    the end is looked for; each costs one more render. `clock` is what `strftime_now` tells.
    """

    def __init__(
        self,
        template: str,
        *,
        special_tokens: Mapping[str, str],
        server: Server = Server(),
        content_format: ContentFormat | None = None,
        message_ends: int = 0,
        max_chars: int = MAX_CHARS,
        clock: Callable[[], datetime] = datetime.now,
        untrusted_roles: Collection[str] = (),
    ) -> None:
        self.untrusted_roles = frozenset(untrusted_roles)
        self._source = template
        self._special_tokens = dict(special_tokens)
        self._server = server
        self._message_ends = message_ends
        self._max_chars = max_chars
        self._content_format = content_format_of(template) if content_format is None else content_format
        self.refusal = _refusal_of(server, template)
        self._template: jinja2.Template | None = None
        if self.refusal is None:
            try:
                self._template = _Sandbox(max_chars, clock).from_string(template)
            except _FAULTS as error:
                self.refusal = PassThrough(TEMPLATE_ERROR, type(error).__name__)

    def render(self, body: Mapping[str, Any], generation: bool | None = None) -> Rendered | PassThrough:
        """The text of a body whose JSON was decoded by `decode_json`. Nothing in `body` is changed.

        `generation` is the `add_generation_prompt` of SGLang's `/v1/tokenize`: the messages are rendered as they are,
        an answer at their end included, with or without the beginning of the next one. None: as for a completion.
        """
        if self.refusal is not None:
            return self.refusal
        try:
            request = understand(
                body,
                content_format=self._content_format,
                default_variables=self._server.default_template_kwargs,
                as_given=generation is not None,
            )
            return self._rendered(request, generation is not False)
        except Refusal as refusal:
            return PassThrough(refusal.reason, refusal.detail)

    def _rendered(self, request: ChatRequest, generation: bool) -> Rendered:
        if not request.messages:
            raise Refusal(TEMPLATE_ERROR, "no message before the one to continue")
        if not _TAKEN_NAMES.isdisjoint(request.variables):
            raise Refusal(TEMPLATE_KWARGS, "chat_template_kwargs with a name that isn't the template's")
        if request.effort == "low" and _has_low_effort(self._source):
            raise Refusal(REASONING_EFFORT, "a template with a switch for low effort")
        if request.continuation is not None:
            self._check_continuation(request.continuation)
        variables = self._special_tokens | {"documents": None} | request.variables
        documents = variables["documents"]
        if documents is not None and not (
            isinstance(documents, list) and all(isinstance(document, dict) for document in documents)
        ):
            raise Refusal(TEMPLATE_KWARGS, "documents that aren't a list of objects")
        text, tools = self._with_tools(request, variables | {"add_generation_prompt": generation})
        try:
            (text + (request.continuation or "")).encode("utf-8")
        except UnicodeEncodeError as error:
            raise Refusal(BAD_REQUEST, "a lone surrogate") from error
        ends = self._ends(text, request.messages, variables | {"tools": tools})
        return Rendered(text, ends, request.continuation)

    def _check_continuation(self, text: str) -> None:
        """SGLang encodes it with special tokens and drops a BOS in front, whether it added that or the text has it."""
        server = self._server
        bos, eos = (self._special_tokens.get(name) for name in ("bos_token", "eos_token"))
        if server.reasoning_parser in _PARSERS_THAT_OPEN_ANSWERS:
            raise Refusal(CONTINUATION, "a reasoning parser that opens answers")
        if server.empty_text_ids and (server.empty_text_ids != (server.bos_id,) or bos == eos):
            raise Refusal(CONTINUATION, "a tokenizer that adds more than BOS")
        if bos is not None and bos in text:
            raise Refusal(CONTINUATION, "BOS in the text to continue")

    def _with_tools(
        self, request: ChatRequest, variables: Mapping[str, Any]
    ) -> tuple[str, list[dict[str, Any]] | None]:
        """The text, and the form of the tools that it was made with: as they are, or the bare functions."""
        try:
            return self._run(request.messages, {**variables, "tools": request.tools}), request.tools
        except _FAULTS as error:
            if request.tools is None:
                raise Refusal(TEMPLATE_ERROR, type(error).__name__) from error
        bare = [tool["function"] for tool in request.tools]
        try:
            return self._run(request.messages, {**variables, "tools": bare}), bare
        except _FAULTS as error:
            raise Refusal(TEMPLATE_ERROR, type(error).__name__) from error

    def _ends(self, text: str, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> tuple[int, ...]:
        ends: set[int] = set()
        for count in range(len(messages), max(len(messages) - self._message_ends, 0), -1):
            try:
                prefix = self._run(messages[:count], {**variables, "add_generation_prompt": False})
            except (*_FAULTS, Refusal):
                continue
            if text.startswith(prefix):
                ends.add(len(prefix))
        return tuple(sorted(ends))

    def _run(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        assert self._template is not None
        pieces, chars = [], 0
        for piece in self._template.generate(messages=messages, **variables):
            chars += len(piece)
            if chars > self._max_chars:
                raise Refusal(TOO_LONG, "a prompt beyond the limit")
            pieces.append(piece)
        return "".join(pieces)


def content_format_of(template: str) -> ContentFormat:
    """Parts if a loop of the template goes over a message's content, or it speaks of media; else text."""
    if any(word in template for word in ("image", "audio", "video", "vision")):
        return "parts"
    try:
        tree = parse_template(template)
    except _FAULTS:
        return "string"
    return "parts" if any(_is_content(loop.iter) for loop in tree.find_all(nodes.For)) else "string"


def parse_template(template: str) -> nodes.Template:
    """Its tree, by the grammar that transformers knows. Raises jinja2.TemplateError, RecursionError."""
    return _Sandbox(MAX_CHARS, datetime.now).parse(template)


def _is_content(node: nodes.Node) -> bool:
    """`message.content` (or of `msg`, `m`), through filters, tests and slices."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        if node.node is None:
            return False
        node = node.node
    if isinstance(node, nodes.Getitem):
        named = isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    else:
        named = isinstance(node, nodes.Getattr) and node.attr == "content"
    if not named or not isinstance(node, nodes.Getitem | nodes.Getattr):
        return False
    holder = node.node
    return isinstance(holder, nodes.Name) and holder.ctx == "load" and holder.name in ("message", "msg", "m")


def _refusal_of(server: Server, template: str) -> PassThrough | None:
    """Why no body can be rendered for this server, if so."""
    parser, architecture = server.tool_call_parser, server.architecture
    if (
        parser in _PARSERS_THAT_ENCODE
        or (parser == "auto" and "｜DSML｜" in template)
        or any(part in architecture for part in _ARCHITECTURES_THAT_ENCODE)
        or server.model_type in _MODEL_TYPES_WITH_OWN_PROMPTS
        or _PATHS_WITH_OWN_PROMPTS.search(server.model_path)
    ):
        return PassThrough(UNSUPPORTED_TEMPLATE, "SGLang doesn't use the template for this model")
    if server.reasoning_parser in ("hunyuan", "auto") and all(
        word in template for word in ("reasoning_effort", "reasoning_mode_token", "no_think")
    ):
        return PassThrough(UNSUPPORTED_TEMPLATE, "SGLang changes the reasoning effort for this parser")
    if _is_glm_5_3(template):
        return PassThrough(UNSUPPORTED_TEMPLATE, "SGLang renders this template in Python")
    if "chat_template" in server.default_template_kwargs:
        return PassThrough(TEMPLATE_KWARGS, "the server's defaults replace the template")
    if server.multimodal and server.empty_text_ids:
        return PassThrough(MULTIMODAL, "SGLang encodes the decoded prompt again")
    return None


def _is_glm_5_3(template: str) -> bool:
    signs = ("[gMASK]<sop>", "Reasoning Effort:", "<tool_call>", "<arg_key>", "<arg_value>")
    return all(sign in template for sign in signs) and "enable_thinking" not in template


def _has_low_effort(template: str) -> bool:
    return "low_effort" in template and "truncate_history_thinking" in template


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: marks what an assistant said, and prints it."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A call block, not a plain scope: what is set or broken off inside behaves as in transformers.
        return nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller: Callable[[], str]) -> str:
        return caller()


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as transformers sets it up; a product that would be longer than any prompt isn't computed."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, max_chars: int, clock: Callable[[], datetime]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self._max_chars = max_chars
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: clock().strftime(form)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            if abs(right) * left.bit_length() > 4096:
                raise Refusal(TOO_LONG, "a power beyond the limit")
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                sized = isinstance(value, str | list | tuple) and isinstance(times, int)
                if sized and len(value) * times > self._max_chars:
                    raise Refusal(TOO_LONG, "a repeated text beyond the limit")
        return super().call_binop(context, operator, left, right)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without the escapes for HTML that Jinja's own filter makes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> Iterator[str]:
    raise jinja2.TemplateError(message)
