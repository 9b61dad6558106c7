"""A long agent session, and texts of the kinds that agents send, from the real files of this machine.

Guarantees: the same machine (its files and interpreter) and seed give the same turns and texts; importing reads
nothing. Text from files never holds a special-token literal, so the markers of a session are its structure and
nothing else. What is written is Qwen3's chat template as an agent loop meets it: every request ends in a generation
prompt, tool calls only add to it, and the next query strips the reasoning since the last one out of the tail.
"""

from __future__ import annotations

import difflib
import gzip
import inspect
import json
import os
import random
import re
import shutil
import stat
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

__all__ = ["MARKERS", "Append", "TailEdit", "Turn", "chat_text", "plain_text", "render", "turns"]

MARKERS = (
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
"""All that a session's structure consists of; Qwen3 has each as an added token."""

_LITERAL = re.compile(r"<\|[^<>|\s]*\|>|</?(?:think|tool_call|tool_response|s|unk|pad|bos|eos|mask)>|\[/?INST\]")
_PROMPT = "<|im_start|>assistant\n<think>\n"
_CHARS_PER_TURN = 3_500
_MIN_BODY_CHARS = 120


@dataclass(frozen=True, slots=True)
class Append:
    """The next request's text is the last one's with `delta` behind it."""

    delta: str


@dataclass(frozen=True, slots=True)
class TailEdit:
    """The next request's text is the last one's with `replacement` in place of its last `drop_chars` characters."""

    drop_chars: int
    replacement: str


Turn = Append | TailEdit


def turns(seed: int, count: int, total_chars: int) -> Iterator[Turn]:
    """`count` turns from the empty text to one of at least `total_chars` characters, the first an `Append`."""
    if count < 1:
        raise ValueError("a session has at least one turn")
    material = _Material(f"session/{seed}")
    targets = _targets(material.random, count, total_chars)
    opening = _system() + _message("user", material.query(targets[0] // 4)) + _PROMPT
    yield Append(opening)
    session = _Session(material, len(opening))
    for target in targets[1:]:
        yield session.next(target)


def render(session: Iterable[Turn]) -> str:
    """The text that the turns lead to."""
    parts: list[str] = []
    for turn in session:
        if isinstance(turn, Append):
            parts.append(turn.delta)
            continue
        drop = turn.drop_chars
        while drop:
            last = parts.pop()
            if len(last) > drop:
                parts.append(last[:-drop])
            drop = max(drop - len(last), 0)
        parts.append(turn.replacement)
    return "".join(parts)


def chat_text(chars: int, seed: int) -> str:
    """A session's text of exactly `chars` characters; beyond a few thousand, over a thousand markers per million."""
    return render(turns(seed, max(chars // _CHARS_PER_TURN, 1), chars))[:chars]


def plain_text(chars: int, seed: int) -> str:
    """Exactly `chars` characters of code, JSON, output, prose and many scripts, with no special-token literal."""
    material = _Material(f"plain/{seed}")
    text = material.filled(chars + chars // 50, lambda left: material.passage(min(left, 6_000)) + "\n\n")
    return _without_literals(text)[:chars]


class _Session:
    """The exchange since the last query, which the next query rewrites.

    since_chars   length of what stands behind the last query's `<|im_start|>assistant\\n`
    stripped      the same without reasoning
    """

    def __init__(self, material: _Material, chars: int) -> None:
        self._material, self._random = material, material.random
        self._chars = chars
        self._begin_exchange()

    def _begin_exchange(self) -> None:
        self._steps = self._random.choice((0, 0, 0, 1, 2, 2, 3, 4, 5, 7))
        self._since_chars, self._stripped = len("<think>\n"), ""

    def next(self, target_chars: int) -> Turn:
        """The turn that brings the text to at least `target_chars`."""
        if self._steps:
            self._steps -= 1
            delta = self._step(max(target_chars - self._chars, _MIN_BODY_CHARS))
            self._chars += len(delta)
            return Append(delta)
        kept = self._chars - self._since_chars
        replacement = self._answer(max(target_chars - kept - len(self._stripped), _MIN_BODY_CHARS))
        turn = TailEdit(self._since_chars, replacement)
        self._chars = kept + len(replacement)
        self._begin_exchange()
        return turn

    def _step(self, chars: int) -> str:
        """Reasoning, a tool call, what the tool gave, and the next generation prompt."""
        reasoning = self._material.prose(min(chars // 6, self._random.randrange(80, 1_500)))
        seen = self._material.observation(max(chars - len(reasoning), _MIN_BODY_CHARS))
        call = json.dumps({"name": seen.name, "arguments": seen.arguments}, ensure_ascii=False)
        said = f"{self._material.remark(seen)}\n<tool_call>\n{call}\n</tool_call><|im_end|>\n" + _message(
            "user", f"<tool_response>\n{seen.output}\n</tool_response>"
        )
        self._stripped += f"{said}<|im_start|>assistant\n"
        delta = f"{reasoning}\n</think>\n\n{said}{_PROMPT}"
        self._since_chars += len(delta)
        return delta

    def _answer(self, chars: int) -> str:
        """The exchange without reasoning, its final answer, the next query and generation prompt."""
        answer = self._material.answer(min(chars // 2, self._random.randrange(200, 3_000)))
        query = self._material.query(max(chars - len(answer), _MIN_BODY_CHARS))
        return f"{self._stripped}{answer}<|im_end|>\n{_message('user', query)}{_PROMPT}"


def _message(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def _targets(chance: random.Random, count: int, total_chars: int) -> list[int]:
    """Text lengths after each turn: many small steps and a few large ones."""
    first = min(8_000, total_chars // 8)
    weights = [min(chance.lognormvariate(0.0, 1.0), 15.0) for _ in range(count - 1)]
    scale = (total_chars - first) / (sum(weights) or 1.0)
    targets, sum_ = [first if weights else total_chars], float(first)
    for weight in weights:
        sum_ += weight * scale
        targets.append(int(sum_))
    targets[-1] = total_chars
    return targets


def _system() -> str:
    """A system prompt with tools: functions of the standard library, by signature and docstring."""
    functions = [getattr(shutil, name) for name in sorted(shutil.__all__)[:12]] + [subprocess.run]
    tools = [_tool(function) for function in functions if inspect.isfunction(function)]
    content = (
        "You are a coding agent. Work step by step, read before you write, and run the tests.\n\n# Tools\n\n"
        "You may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        + "\n".join(tools)
        + "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n<tool_call>\n"
        '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )
    return _message("system", content)


def _tool(function: Callable[..., object]) -> str:
    names = [*inspect.signature(function).parameters]
    parameters = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    about = {"name": function.__name__, "description": inspect.getdoc(function) or "", "parameters": parameters}
    return _without_literals(json.dumps({"type": "function", "function": about}))


@dataclass(frozen=True, slots=True)
class _Observation:
    """A tool call and what it gave."""

    name: str
    arguments: Mapping[str, object]
    output: str


class _Material:
    """Texts of asked-for sizes, drawn from this machine's files in an order that the seed decides."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)

    def filled(self, chars: int, make: Callable[[int], str]) -> str:
        """`chars` characters out of as many calls of `make(how many are left)` as it takes."""
        parts, size = [], 0
        while size < chars:
            parts.append(make(chars - size))
            size += len(parts[-1])
        return "".join(parts)[:chars]

    def cut(self, text: str, chars: int) -> str:
        """At most `chars` characters of `text` from the start of one of its lines."""
        if len(text) <= chars:
            return text
        start = text.rfind("\n", 0, self.random.randrange(len(text) - chars + 1)) + 1
        return text[start : start + chars]

    def passage(self, chars: int) -> str:
        make = self.random.choice((self.prose, self.code, self.code, self.data, self.output, self.foreign))
        return self.filled(self.random.randrange(min(40, chars), chars + 1), make)

    def prose(self, chars: int) -> str:
        """English about Python: the language's own help topics."""
        return self.filled(chars, lambda left: self.cut(self.random.choice(_topics()), left) + "\n")

    def foreign(self, chars: int) -> str:
        """The same short text in other scripts, or a manual page in another language where one is installed."""
        pages = _manual_pages()
        if pages and self.random.random() < 0.3:
            return self.cut(_read(self.random.choice(pages)), chars)
        texts = ARTICLE_1.strip().split("\n\n")
        return self.filled(chars, lambda left: f"{self.random.choice(EMOJI)} {self.random.choice(texts)}\n")

    def code(self, chars: int) -> str:
        return self.filled(chars, lambda left: self.cut(_read(self.random.choice(_sources())), left) + "\n")

    def data(self, chars: int) -> str:
        """JSON, compact or indented, with and without escapes."""
        document = self.random.choice(_documents())
        indent, ascii_only = self.random.choice((None, 1, 2, 4)), self.random.random() < 0.5
        text = _without_literals(json.dumps(document, indent=indent, ensure_ascii=ascii_only))
        return text if len(text) <= chars else self.cut(text, chars)

    def output(self, chars: int) -> str:
        """What commands print."""
        kind = self.random.randrange(4)
        if kind == 0:
            return self._listing(chars)
        if kind == 1:
            return self._matches(chars)
        if kind == 2:
            return self._difference(chars)
        tables = [path for path in _TABLES if path.is_file()]
        return self.cut(_read(self.random.choice(tables)), chars) if tables else self._listing(chars)

    def observation(self, chars: int) -> _Observation:
        """A tool call whose arguments and output have about `chars` characters, and no fewer."""
        path = str(self.random.choice(_sources()))
        kind = self.random.choices(range(6), weights=(30, 12, 15, 25, 8, 10))[0]
        if kind == 0:
            numbered = enumerate(self.filled(chars, self.code).split("\n"), self.random.randrange(1, 900))
            return _Observation("read_file", {"path": path}, "\n".join(f"{at:>6}\t{line}" for at, line in numbered))
        if kind == 1:
            return _Observation("read_file", {"path": path, "limit": chars}, self.filled(chars, self.code))
        if kind == 2:
            return _Observation("query", {"format": "json", "limit_chars": chars}, self.filled(chars, self.data))
        if kind == 3:
            command = f"ls -l {Path(path).parent} && grep -n 'def ' {path} && git diff"
            return _Observation("run", {"command": command, "timeout_s": 60}, self.filled(chars, self.output))
        if kind == 4:
            return _Observation("fetch", {"locale": "any", "max_chars": chars}, self.filled(chars, self.foreign))
        written = {"path": path, "content": self.filled(chars, self.code)}
        return _Observation("write_file", written, f"{len(written['content'])} characters written to {path}")

    def remark(self, seen: _Observation) -> str:
        word = self.random.choice(("Let me", "I'll", "Next I'd", "First, I'm going to", "OK — I'll now"))
        return f"{word} call `{seen.name}` on {', '.join(sorted(seen.arguments))}."

    def answer(self, chars: int) -> str:
        code = self.code(chars // 2)
        return f"Done {self.random.choice(EMOJI)}\n\n{self.prose(chars // 2)}\n\n```python\n{code}\n```"

    def query(self, chars: int) -> str:
        """A question, in one language in four another than English, with something pasted below if it is long."""
        ask = self.foreign if self.random.random() < 0.25 else self.prose
        question = self.filled(min(chars, self.random.randrange(100, 900)), ask)
        return f"{question}\n\n{self.filled(max(chars - len(question), 0), self.passage)}"

    def _listing(self, chars: int) -> str:
        folder = self.random.choice(_sources()).parent
        return self.cut("".join(_listing_line(path) for path in _sources() if path.parent == folder), chars)

    def _matches(self, chars: int) -> str:
        path, word = self.random.choice(_sources()), self.random.choice(("def ", "self.", "raise", "import", "# "))
        lines = enumerate(_read(path).split("\n"), 1)
        return self.cut("".join(f"{path}:{at}:{line}\n" for at, line in lines if word in line), chars) or f"{path}: 0\n"

    def _difference(self, chars: int) -> str:
        path = self.random.choice(_sources())
        old = self.cut(_read(path), 2 * chars).splitlines(keepends=True)[:400]
        new = [line.replace("self", "this") for line in old if not line.startswith("#")]
        changes = difflib.unified_diff(old, new, f"a/{path.name}", f"b/{path.name}")
        return self.cut("".join(changes), chars) or f"nothing to compare in {path}\n"


_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}
_TABLES = tuple(map(Path, ("/etc/services", "/var/lib/dpkg/status", "/etc/protocols", "/usr/share/i18n/SUPPORTED")))


@cache
def _sources() -> list[Path]:
    """The standard library, without its tests."""
    found: list[Path] = []
    for folder, folders, files in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        found += [Path(folder, name) for name in files if name.endswith(".py")]
    return [path for path in sorted(found) if path.stat().st_size > 200]


@cache
def _manual_pages() -> list[Path]:
    """Those of languages: `ja/man1/ls.1.gz`, not `man1/ls.1.gz`."""
    return [path for path in sorted(Path("/usr/share/man").glob("*/man?/*.gz")) if path.is_file()]


@cache
def _topics() -> list[str]:
    from pydoc_data.topics import topics

    return [_without_literals(text) for _, text in sorted(topics.items())]


@cache
def _documents() -> list[object]:
    """Real data that an agent might see as JSON."""
    from encodings.aliases import aliases
    from html.entities import html5
    from locale import locale_alias
    from opcode import opmap

    packages = sorted(metadata.distributions(), key=lambda found: found.metadata["Name"].lower())
    about = [
        {"name": found.metadata["Name"], "version": found.version, "requires": found.requires, "files": _files(found)}
        for found in packages
    ]
    return [sysconfig.get_config_vars(), about, aliases, html5, locale_alias, opmap]


def _files(found: metadata.Distribution) -> list[dict[str, object]]:
    return [{"path": str(file), "size": file.size, "hash": str(file.hash)} for file in (found.files or [])[:40]]


@cache
def _read(path: Path) -> str:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return _without_literals(data.decode("utf-8", errors="replace"))


def _listing_line(path: Path) -> str:
    found = path.stat()
    date = time.strftime("%b %d %H:%M", time.gmtime(found.st_mtime))
    return f"{stat.filemode(found.st_mode)} {found.st_nlink} root root {found.st_size:>8} {date} {path.name}\n"


def _without_literals(text: str) -> str:
    while _LITERAL.search(text):
        text = _LITERAL.sub("", text)
    return text


EMOJI = ("🚀", "✅", "⚠️", "👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "👍🏽", "❤️", "🧪🔬", "1️⃣", "🏳️‍🌈")

# Universal Declaration of Human Rights, article 1 (United Nations, public domain).
ARTICLE_1 = """
All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience and
should act towards one another in a spirit of brotherhood.

Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y
conciencia, deben comportarse fraternalmente los unos con los otros.

Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de
conscience et doivent agir les uns envers les autres dans un esprit de fraternité.

Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt und
sollen einander im Geist der Brüderlichkeit begegnen.

Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền. Mọi con người đều
được tạo hoá ban cho lý trí và lương tâm và cần phải đối xử với nhau trong tình bằng hữu.

Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana sahiptirler ve birbirlerine
karşı kardeşlik zihniyeti ile hareket etmelidirler.

Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью и должны
поступать в отношении друг друга в духе братства.

Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Είναι προικισμένοι με λογική
και συνείδηση, και οφείλουν να συμπεριφέρονται μεταξύ τους με πνεύμα αδελφοσύνης.

כל בני אדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו בתבונה ובמצפון, לפיכך חובה עליהם לנהוג איש ברעהו
ברוח של אחוה.

يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. وقد وهبوا عقلاً وضميرًا وعليهم أن يعامل بعضهم بعضًا بروح
الإخاء.

सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है । उन्हें बुद्धि और
अन्तरात्मा की देन प्राप्त है और परस्पर उन्हें भाईचारे के भाव से बर्ताव करना चाहिए ।

সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে। তাঁদের বিবেক এবং বুদ্ধি আছে; সুতরাং সকলেরই
একে অপরের প্রতি ভ্রাতৃত্বসুলভ মনোভাব নিয়ে আচরণ করা উচিত।

மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்; அவர்கள் மதிப்பிலும், உரிமைகளிலும் சமமானவர்கள், அவர்கள்
நியாயத்தையும் மனச்சாட்சியையும் இயற்பண்பாகப் பெற்றவர்கள். அவர்கள் ஒருவருடனொருவர் சகோதர உணர்வுப் பாங்கில்
நடந்துகொள்ளல் வேண்டும்.

มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม
และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ

ყოველი ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით. მათ მინიჭებული აქვთ გონება და
სინდისი და ერთმანეთის მიმართ უნდა ექცეოდნენ ძმობის სულისკვეთებით.

Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։ Նրանք ունեն բանականություն ու
խիղճ և միմյանց պետք է եղբայրաբար վերաբերվեն։

የሰው፡ልጅ፡ሁሉ፡ሲወለድ፡ነጻና፡በክብርና፡በመብትም፡እኩልነት፡ያለው፡ነው።፡የተፈጥሮ፡ማስተዋልና፡ሕሊና፡ስላለው፡አንዱ፡ሌላውን፡በወንድማማችነት፡መንፈስ፡መመልከት፡ይገባዋል።

모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천부적으로 이성과 양심을
부여받았으며 서로 형제애의 정신으로 행동하여야 한다.

すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。人間は、
理性と良心とを授けられており、互いに同胞の精神をもって行動しなければならない。

人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。

人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心，並應以兄弟關係的精神相對待。

មនុស្សទាំងអស់ កើតមកមានសេរីភាព និងសមភាព ក្នុងផ្នែកសេចក្ដីថ្លៃថ្នូរនិងសិទ្ធិ។ មនុស្ស
មានវិចារណញ្ញាណនិងសតិសម្បជញ្ញៈជាប់ពីកំណើត ហើយគប្បីប្រព្រឹត្ដចំពោះគ្នាទៅវិញទៅមកក្នុងស្មារតីភាតរភាពជាបងប្អូន។

လူတိုင်းသည် တူညီ လွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် လည်းကောင်း၊ တူညီလွတ်လပ်သော အခွင့်အရေးများဖြင့် လည်းကောင်း၊
မွေးဖွားလာသူများ ဖြစ်သည်။ ထိုသူတို့၌ ပိုင်းခြား ဝေဖန်တတ်သော ဉာဏ်နှင့် ကျင့်ဝတ် သိတတ်သော စိတ်တို့ရှိကြ၍
ထိုသူတို့သည် အချင်းချင်း မေတ္တာထား၍ ဆက်ဆံကျင့်သုံးသင့်၏။

සියලු මනුෂ්‍යයෝ නිදහස්ව උපත ලබා ඇත. ගරුත්වයෙන් හා අයිතිවාසිකම්වලින් සමාන වෙති. යුක්ති අයුක්ති පිළිබඳ හැඟීමෙන් හා
හෘදය සාක්ෂියෙන් යුත් ඔවුන්, ඔවුනොවුන්ට සැළකිය යුත්තේ සහෝදරත්වය පිළිබඳ හැඟීමෙනි.
"""
