"""Three pods as processes under load, and what befalls pods: killed, drained, rolled, cut off, short of disk.

After each fault every session's IDs are the reference's, no state is lost that wasn't the lost pod's, and whatever
was refused has a code. What was seen is printed and written to build/pods-faults.json.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from catalog import path_of
from onenode.api_tier import free_ports
from servers import TEMPLATE, rendered
from toktier_tier.admission.compiled import save
from toktier_tier.client import AsyncSession, AsyncTierClient
from toktier_tier.core.errors import TierError
from toktier_tier.pods.ring import Peer, Ring
from workshop import family_tier, sample_text

ROOT = Path(__file__).parents[1]
FAMILY = "gpt2-novelai"
NAMES = ("a", "b", "c")
AGENTS, CHATS = 10, 3
CALL_S = 6.0
"""A client's deadline: twice `answer_s`, which no pod is to miss while all of them share two cores."""
MOST_CHARS = 60_000
UNANSWERED = frozenset({"grpc.unavailable", "grpc.deadline_exceeded", "grpc.cancelled", "http"})
"""The pod at the other end is gone: a client can't know whether its change was made."""
FULL_DISK = "mount -t tmpfs -o size=64k none {0} && (cat /dev/zero > {0}/filler; true) 2>/dev/null && exec {1}"

pytestmark = pytest.mark.timeout(600)


class Pod:
    """A tier as a process, started again and again on the same addresses."""

    process: subprocess.Popen[bytes]

    def __init__(self, name: str, grpc: int, http: int, peers: list[str], place: Path) -> None:
        self.name, self.address, self.url = name, f"127.0.0.1:{grpc}", f"http://127.0.0.1:{http}"
        self.place = place / name
        self.place.mkdir()
        self.settings: dict[str, Any] = {
            "grpc": self.address,
            "http": f"127.0.0.1:{http}",
            "compiled_dir": str(place / "compiled"),
            "tokenizers": [{"name": FAMILY, "source": str(path_of(FAMILY)), "chat_template": str(place / "chat")}],
            "shadow": {"rate": 0.2, "samples": str(self.place / "samples")},
            "pods": {
                "name": name,
                "peers": peers,
                "connect_s": 1.0,
                "answer_s": 3.0,
                "health_s": 0.3,
                "drain_s": 10,
                "linger_s": 2,
            },
        }

    def start(self, *, full_disk: bool = False, **environment: str) -> None:
        path = self.place / "tier.yaml"
        path.write_text(json.dumps(self.settings))
        command = [sys.executable, "-m", "toktier_tier", "serve", str(path)]
        if full_disk:
            samples = self.place / "samples"
            samples.mkdir(exist_ok=True)
            command = [*_unshare(), "sh", "-c", FULL_DISK.format(samples, " ".join(command))]
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env={**os.environ, **environment})

    def log(self) -> str:
        return (self.place / "log").read_text()

    async def ended(self) -> None:
        assert await asyncio.to_thread(self.process.wait, 30) == 0, self.log()[-3_000:]


def _unshare() -> list[str]:
    return ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]


def full_disks_can_be_made(place: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run([*_unshare(), "mount", "-t", "tmpfs", "none", str(place)], capture_output=True, check=False)
    return done.returncode == 0


class Where:
    """The pods, and which of them a load balancer would choose from: those whose /ready said so lately."""

    def __init__(self, pods: list[Pod]) -> None:
        self.pods = {pod.name: pod for pod in pods}
        self.ready: set[str] = set()
        self.clients = {pod.name: AsyncTierClient(pod.address, timeout_s=CALL_S) for pod in pods}
        self.web = httpx.AsyncClient(trust_env=False, timeout=CALL_S)
        self.ring = Ring(Peer(pod.name, pod.address) for pod in pods)

    async def watch(self) -> None:
        await asyncio.gather(*(self._watch(pod) for pod in self.pods.values()))

    async def _watch(self, pod: Pod) -> None:
        while True:
            try:
                answer = await self.web.get(f"{pod.url}/ready", timeout=0.5)
                ready = answer.status_code == 200
            except httpx.TransportError:
                ready = False
            (self.ready.add if ready else self.ready.discard)(pod.name)
            await asyncio.sleep(0.1)

    async def until_ready(self, *names: str) -> None:
        async with asyncio.timeout(60):
            while not self.ready >= set(names):
                assert all(self.pods[name].process.poll() is None for name in names), self.pods[names[0]].log()[-3_000:]
                await asyncio.sleep(0.05)

    async def until_they_know_each_other(self) -> None:
        async with asyncio.timeout(60):
            while [await self._peers_of(pod) for pod in self.pods.values()] != [len(self.pods)] * len(self.pods):
                await asyncio.sleep(0.05)

    async def _peers_of(self, pod: Pod) -> int:
        """How many pods it sees, itself included."""
        metrics = (await self.web.get(f"{pod.url}/metrics")).text
        found = re.search(r"^toktier_pods_ready\S* (\d+)", metrics, re.MULTILINE)
        assert found is not None
        return int(found[1])

    async def events(self) -> dict[str, dict[str, int]]:
        """What each pod counted of requests and calls to others since it started, as far as it answers."""
        found: dict[str, dict[str, int]] = {}
        for pod in self.pods.values():
            with suppress(httpx.TransportError):
                metrics = (await self.web.get(f"{pod.url}/metrics", timeout=1.0)).text
                events = re.findall(
                    r'^toktier_pods_events\{event="([^"]*)",kind="(request|call)".*\} (\d+)', metrics, re.M
                )
                found[pod.name] = {f"{kind}.{event}": int(count) for event, kind, count in sorted(events)}
        return found

    async def any_ready(self, chooser: random.Random) -> str:
        while not self.ready:
            await asyncio.sleep(0.02)
        return chooser.choice(sorted(self.ready))


class Load:
    """What all clients do, and when something was amiss: (time, whose, code)."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self.going = asyncio.Event()
        self.idle: list[asyncio.Event] = []
        self.answers: Counter[str] = Counter()
        self.amiss: list[tuple[float, str, str]] = []
        self.last_s: dict[str, float] = {}

    async def keep(self, name: str, turn: Callable[[], Awaitable[str]]) -> None:
        """Take turns while the load goes on. A turn whose answer didn't come is taken again."""
        idle = asyncio.Event()
        self.idle.append(idle)
        while True:
            if not self.going.is_set():
                idle.set()
                await self.going.wait()
                idle.clear()
            self.answers[await turn()] += 1
            self.last_s[name] = time.monotonic()
            await asyncio.sleep(random.uniform(0.005, 0.03))

    def note(self, name: str, code: str) -> None:
        self.amiss.append((time.monotonic(), name, code))

    async def everybody_asked_again(self) -> None:
        marks = dict(self.last_s)
        self.going.set()
        while any(self.last_s[name] == at for name, at in marks.items()):
            await asyncio.sleep(0.05)

    async def pause(self) -> None:
        self.going.clear()
        try:
            async with asyncio.timeout(30):
                for each in self.idle:
                    await each.wait()
        except TimeoutError:
            raise AssertionError(f"a client gets no answer: {self.amiss[-5:]}") from None


class Agent:
    """A coding agent that keeps its text; its session may be opened again with it."""

    def __init__(self, load: Load, number: int) -> None:
        self.load, self.name, self.chooser = load, f"agent-{number}", random.Random(number)
        self.text = sample_text(self.chooser.randrange(5_000, 40_000), seed=number)
        self.session: AsyncSession | None = None
        self.reopened: Counter[str] = Counter()
        self.unanswered = False

    async def turn(self) -> str:
        change = self._change() if self.session is not None else None
        while True:
            client = self.load.where.clients[await self.load.where.any_ready(self.chooser)]
            try:
                if self.session is None or change is None:
                    self.session = await client.open(self.name, self.text, text_of=lambda: self.text)
                    return "grpc.open"
                self.session._client = client
                patch = await change(self.session)
            except TierError as error:
                self.load.note(self.name, error.code)
                self.unanswered = error.code in UNANSWERED
                await asyncio.sleep(0.05)
                continue
            if self.session.reopened != self.reopened:
                (code,) = self.session.reopened - self.reopened
                self.load.note(self.name, f"{'unanswered' if self.unanswered else 'lost'}.{code}")
                self.reopened = Counter(self.session.reopened)
            self.unanswered = False
            return f"grpc.{patch.route}"

    def _change(self) -> Callable[[AsyncSession], Awaitable[Any]]:
        size = len(self.text)
        delta = sample_text(self.chooser.randrange(1, 400), seed=self.chooser.randrange(1 << 30))
        kind = self.chooser.random()
        if kind < 0.2 or size > MOST_CHARS:
            start = self.chooser.randrange(max(size - 3_000, 0), size)
            stop = size if size > MOST_CHARS else self.chooser.randrange(start, size)
            self.text = self.text[:start] + delta + self.text[stop:]
            return lambda session: session.edit(start, stop, delta)
        self.text += delta
        if kind < 0.3:
            return lambda session: session.full_text(self.text)
        return lambda session: session.append(delta)

    def is_right(self) -> bool:
        assert self.session is not None
        return self.session.ids.tolist() == family_tier(FAMILY).ids(self.text)


class Chat:
    """A conversation over HTTP, found by its content; one in four requests is a text by itself."""

    def __init__(self, load: Load, number: int) -> None:
        self.load, self.name, self.chooser = load, f"chat-{number}", random.Random(f"chat {number}")
        self.messages = [{"role": "user", "content": sample_text(20_000, seed=500 + number)}]
        self.ids: list[int] = []
        self.text = rendered(self.messages)

    async def turn(self) -> str:
        alone = self.chooser.random() < 0.25
        if alone:
            path, self.text = (
                "/tokenize",
                sample_text(self.chooser.randrange(1, 3_000), seed=self.chooser.randrange(999)),
            )
            body: dict[str, Any] = {"prompt": self.text}
        else:
            for role in ("assistant", "user"):
                said = sample_text(self.chooser.randrange(1, 300), seed=self.chooser.randrange(1 << 30))
                self.messages.append({"role": role, "content": said})
            path, self.text = "/v1/chat/completions/render", rendered(self.messages)
            body = {"messages": self.messages}
        while True:
            pod = self.load.where.pods[await self.load.where.any_ready(self.chooser)]
            try:
                answer = await self.load.where.web.post(pod.url + path, json=body)
            except httpx.TransportError:
                self.load.note(self.name, "http")
                continue
            found = answer.json()
            if answer.status_code == 200:
                self.ids = found["tokens"] if alone else found["token_ids"]
                await asyncio.sleep(0.1)
                return (
                    "http.alone"
                    if alone
                    else f"http.{found['reason'] if found['reason'] != 'none' else found['route']}"
                )
            self.load.note(self.name, found["error"]["code"])
            await asyncio.sleep(0.05)

    def is_right(self) -> bool:
        return self.ids == family_tier(FAMILY).ids(self.text)


class Story:
    """One fault after the other, and what was seen of each."""

    def __init__(self, load: Load, clients: list[Agent | Chat]) -> None:
        self.load, self.clients = load, clients
        self.seen: dict[str, Any] = {}

    @asynccontextmanager
    async def of(self, fault: str) -> AsyncIterator[dict[str, Any]]:
        found: dict[str, Any] = {}
        load = self.load
        load.amiss.clear()
        load.answers.clear()
        load.going.set()
        begun = time.monotonic()
        yield found
        await load.pause()
        struck, until = found.pop("struck", begun), found.pop("until", time.monotonic())
        codes = Counter(code for _, _, code in load.amiss)
        found |= {
            "seconds": round(time.monotonic() - begun, 1),
            "answers": dict(sorted(load.answers.items())),
            "wrong": [client.name for client in self.clients if not client.is_right()],
            "amiss": dict(sorted(codes.items())),
            "recovery_s": round(max((at - struck for at, _, _ in load.amiss if at < until), default=0.0), 2),
        }
        if load.amiss:
            found["events"] = await load.where.events()
        self.seen[fault] = found
        print(f"\n{fault}: {json.dumps(found)}")
        assert found["wrong"] == []

    def lost(self) -> dict[str, int]:
        """How often each session was opened again though all its answers had come."""
        return dict(Counter(name for _, name, code in self.load.amiss if code.startswith("lost.")))

    def owned(self, pod: str) -> set[str]:
        ring = self.load.where.ring
        names = {client.name for client in self.clients if isinstance(client, Agent)}
        return {name for name in names if ring.owner("default", name) == ring.peers[NAMES.index(pod)]}

    def answers_are_coded(self, *expected: str) -> None:
        codes = {code for _, _, code in self.load.amiss if not code.startswith(("lost.", "unanswered."))}
        assert codes <= {*UNANSWERED, *expected}


def test_faults(tmp_path: Path) -> None:
    save(family_tier(FAMILY).compiled, tmp_path / "compiled")
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat" / "chat_template.jinja").write_text(TEMPLATE)
    ports = free_ports(6)
    peers = [f"{name}=127.0.0.1:{port}" for name, port in zip(NAMES, ports[:3], strict=True)]
    pods = [Pod(name, ports[i], ports[3 + i], peers, tmp_path) for i, name in enumerate(NAMES)]
    for pod in pods:
        pod.start()
    try:
        seen = asyncio.run(tell(pods, full_disks_can_be_made(tmp_path)))
    finally:
        for pod in pods:
            with suppress(ProcessLookupError):
                pod.process.send_signal(signal.SIGCONT)
                pod.process.kill()
            pod.process.wait()
    for pod in pods:
        assert "Traceback" not in pod.log()
        assert "internal error" not in pod.log()
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "pods-faults.json").write_text(json.dumps(seen, indent=1) + "\n")


async def tell(pods: list[Pod], full_disks: bool) -> dict[str, Any]:
    where = Where(pods)
    load = Load(where)
    clients: list[Agent | Chat] = [Agent(load, i) for i in range(AGENTS)]
    clients += [Chat(load, i) for i in range(CHATS)]
    story = Story(load, clients)
    a, b, c = pods
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(where.watch())]
        await where.until_ready(*NAMES)
        await where.until_they_know_each_other()
        tasks += [group.create_task(load.keep(client.name, client.turn)) for client in clients]

        async with story.of("none"):
            await asyncio.sleep(2)
        assert load.amiss == []

        async with story.of("kill -9, and start again") as found:
            await asyncio.sleep(0.5)
            found["struck"] = time.monotonic()
            b.process.kill()
            b.process.wait()
            await asyncio.sleep(4)
            found["lost"], found["of"] = story.lost(), sorted(story.owned("b"))
            before, found["until"] = len(load.amiss), time.monotonic()
            b.start()
            await where.until_ready("b")
            await asyncio.sleep(3)
            found["amiss_at_return"] = len(load.amiss) - before
        story.answers_are_coded()
        assert found["recovery_s"] < CALL_S + 3
        assert set(found["lost"]) <= set(found["of"])
        assert all(times == 1 for times in found["lost"].values())
        assert found["amiss_at_return"] == 0

        async with story.of("drain, and start again") as found:
            await asyncio.sleep(0.5)
            c.process.send_signal(signal.SIGTERM)
            await c.ended()
            await asyncio.sleep(0.5)
            c.start()
            await where.until_ready("c")
            await asyncio.sleep(2)
        assert load.amiss == []

        async with story.of("rolling restart"):
            for pod in pods:
                pod.process.send_signal(signal.SIGTERM)
                await pod.ended()
                pod.start()
                await where.until_ready(pod.name)
                await asyncio.sleep(1)
            await asyncio.sleep(1)
        assert load.amiss == []

        async with story.of("cut off (SIGSTOP), and back") as found:
            await asyncio.sleep(0.5)
            found["struck"] = time.monotonic()
            a.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(CALL_S + 2)
            at_return, found["until"] = len(load.amiss), time.monotonic()
            found["lost"], found["of"] = story.lost(), sorted(story.owned("a"))
            a.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(4)
            found["amiss_at_return"] = len(load.amiss) - at_return
            found["lost_in_all"] = story.lost()
        story.answers_are_coded()
        assert set(found["lost"]) <= set(found["of"])
        # On a busy machine the pod that is back takes the others for gone at first: theirs may be opened anew, too.
        assert all(times <= 2 for times in found["lost_in_all"].values())

        if full_disks:
            b.process.send_signal(signal.SIGTERM)
            await b.ended()
            b.settings["shadow"] |= {"rate": 1.0, "fault_rate": 0.1}
            # Without load first: a session's witness would find the wrong IDs too, and before any has left.
            b.start(full_disk=True, TOKTIER_ALLOW_FAULTS="1")
            await where.until_ready("b")
            async with asyncio.timeout(30):
                while not (await where.clients["b"].snapshots())[0].quarantined:
                    await where.clients["b"].encode("a text of its own, in no session")
                while "sample_path=None" not in b.log():
                    await asyncio.sleep(0.1)
            b.process.send_signal(signal.SIGTERM)
            await b.ended()
            async with story.of("a pod ended in quarantine, which nothing leaves that it had before"):
                await load.everybody_asked_again()
            story.answers_are_coded()
            assert set(story.lost()) <= story.owned("b")
            assert all(times == 1 for times in story.lost().values())
            b.start(full_disk=True, TOKTIER_ALLOW_FAULTS="1")
            await where.until_ready("b")
            async with story.of("wrong IDs planted in one pod, and no disk for the evidence") as found:
                async with asyncio.timeout(30):
                    while not (await where.clients["b"].snapshots())[0].quarantined:
                        await asyncio.sleep(0.05)
                await asyncio.sleep(0.5)
                await load.pause()
                await load.everybody_asked_again()
                kept = Path(f"/proc/{b.process.pid}/root{b.place}/samples")
                found["kept"] = sorted(path.name for path in kept.iterdir())
                found["free_bytes"] = shutil.disk_usage(kept).free
            assert (found["kept"], found["free_bytes"]) == (["filler"], 0)
            story.answers_are_coded()
            assert story.lost() == {}

        for task in tasks:
            task.cancel()
    for client in where.clients.values():
        await client.close()
    await where.web.aclose()
    return story.seen
