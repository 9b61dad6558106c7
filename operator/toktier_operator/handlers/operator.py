"""The operator's process: Kopf for watches, webhooks, peering and health; a queue and two reconcilers for the rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import kopf
from prometheus_client import PlatformCollector, ProcessCollector, start_http_server

from ..cluster.client import Cluster
from ..cluster.errors import ClusterError
from ..cluster.kinds import TOKENIZER_ADMISSION, TOKTIER
from ..cluster.observed import Observed
from ..config import Config
from . import peering, sources, watching, webhooks
from .admissions import Admissions
from .metrics import Metrics
from .queue import Key, WorkQueue
from .toktiers import reconcile_toktier

RETRY_S = 2.0
SECOND_LOOK_S = 15.0
"""After the first list, for what went between it and the start of the watches."""
GRACE_S = 10.0
log = logging.getLogger("toktier.operator")


async def run(config: Config, stop: asyncio.Event | None = None) -> None:
    """Until SIGTERM or SIGINT, or `stop`."""
    metrics = Metrics()
    ProcessCollector(registry=metrics.registry)
    PlatformCollector(registry=metrics.registry)
    server, thread = start_http_server(config.metrics_port, registry=metrics.registry)
    try:
        async with await Cluster.connect(Observed()) as cluster:
            await _Operator(config, cluster, metrics).run(stop)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Operator:
    def __init__(self, config: Config, cluster: Cluster, metrics: Metrics) -> None:
        self._config, self._cluster, self._metrics = config, cluster, metrics
        self._observed = cluster.observed
        self._identity = peering.own_identity()
        self._admissions = Admissions(metrics)
        self._queue = WorkQueue(self._reconcile, workers=config.workers, metrics=metrics)

    async def _reconcile(self, key: Key) -> float | None:
        if key.kind == TOKENIZER_ADMISSION:
            return await self._admissions.reconcile(
                self._cluster, self._observed, self._config, key.namespace, key.name
            )
        assert key.kind == TOKTIER
        return await reconcile_toktier(self._cluster, self._observed, self._config, key.namespace, key.name)

    async def run(self, stop: asyncio.Event | None) -> None:
        await self._wait_for_definitions()
        self._queue.pause()
        async with asyncio.TaskGroup() as group:
            work = group.create_task(self._queue.run(GRACE_S), name="queue")
            others = [
                group.create_task(self._keep_watch(), name="peering and resync"),
                group.create_task(self._forever(sources.POLL_S, self._look_at_sources), name="sources"),
            ]
            try:
                await self._kopf(stop)
            finally:
                for task in others:
                    task.cancel()
                self._queue.stop()
            await work

    async def _wait_for_definitions(self) -> None:
        """Kopf looks once for the kinds that it is to watch; so those have to be there first."""
        waited = False
        while True:
            try:
                if await self._cluster.serves(TOKENIZER_ADMISSION) and await self._cluster.serves(TOKTIER):
                    return
                said = "the custom resource definitions aren't there"
            except ClusterError as error:
                said = str(error)
            if not waited:
                log.warning("waiting: %s", said)
            waited = True
            await asyncio.sleep(RETRY_S)

    async def _kopf(self, stop: asyncio.Event | None) -> None:
        config = self._config
        kinds = [kind for kind in watching.SELECTORS if await self._cluster.serves(kind)]
        registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.peering.lifetime = peering.LIFETIME_S
        settings.networking.request_timeout = 60.0
        kopf.on.login(registry=registry)(_login)
        watching.register(registry, settings, kinds, self._observed, self._queue)
        if config.webhook_dir is not None:
            webhooks.serve(settings, config.webhook_dir, config.webhook_port)
            webhooks.register(registry, self._cluster)
        await kopf.operator(
            registry=registry,
            settings=settings,
            identity=cast(Any, self._identity),
            standalone=not config.peering,
            peering_name=config.peering or None,
            priority=config.priority,
            clusterwide=not config.namespaces,
            namespaces=config.namespaces,
            liveness_endpoint=f"http://0.0.0.0:{config.health_port}/healthz",
            stop_flag=stop,
        )

    async def _keep_watch(self) -> None:
        """Freeze and go on as the peering says; list everything whenever the cache may have missed something."""
        loop = asyncio.get_running_loop()
        frozen, next_s = True, 0.0
        while True:
            try:
                was, frozen = frozen, await peering.is_frozen(self._cluster, self._config, self._identity)
                self._metrics.frozen.set(frozen)
                if frozen:
                    self._queue.pause()
                elif was or loop.time() >= next_s:
                    await watching.resync(self._cluster, self._observed, self._queue, self._config.namespaces)
                    next_s = loop.time() + (SECOND_LOOK_S if was else self._config.resync_s)
                    self._queue.pause(False)
                if frozen != was:
                    log.info("another operator has precedence" if frozen else "at work")
            except ClusterError as error:
                log.warning("not up to date: %s", error)
                frozen = was
            await asyncio.sleep(peering.POLL_S)

    async def _look_at_sources(self) -> None:
        if not self._queue.paused:
            await sources.look(self._cluster, self._observed, self._queue)

    async def _forever(self, every_s: float, work: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await work()
            except ClusterError as error:
                log.warning("%s", error)
            await asyncio.sleep(max(every_s, 20 * (loop.time() - began)))


async def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
