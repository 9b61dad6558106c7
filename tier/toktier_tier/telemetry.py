"""What the tier tells about itself: OpenTelemetry spans and meters, and one Prometheus page for all of it.

Guarantees: no text and no name that a caller chose (session, tenant) becomes an attribute; label sets are bounded by
configuration (tokenizers) and by code (methods, routes, reasons). A span that isn't sampled costs one comparison.

What is noted of every answer goes to Prometheus histograms (1 µs a record); OpenTelemetry's take 8 µs here, a tenth of
an append. Everything else, which is read when the page is asked for, is an OpenTelemetry meter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from prometheus_client import CollectorRegistry, GCCollector, Histogram, ProcessCollector, generate_latest

from .core.errors import TierError
from .core.values import Patch
from .sessions.registry import Served

SECONDS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SIZES = (100, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1e6, 2e6, 5e6, 1e7)
_NO_SPAN: AbstractContextManager[Any] = nullcontext()


Record = Callable[[float], None]
Reading = Callable[[], Iterable[tuple[float, dict[str, str]]]]
"""(value, attributes) of a meter that is read when it is asked for."""


SIZES_EVERY = 16
"""Sizes are noted of one answer in so many: every record is three locks and a dozen calls."""
LABELS = ("tokenizer", "method", "route", "reason")


class Telemetry:
    """Meters always; spans only for the share `trace_ratio` of requests, and for those whose caller samples them.

    tracing    whether there are spans at all
    """

    def __init__(
        self,
        *,
        span_exporter: SpanExporter | None = None,
        trace_ratio: float = 0.0,
        resource: Mapping[str, str] | None = None,
    ) -> None:
        about = Resource.create({"service.name": "toktier", **(resource or {})})
        self._page = CollectorRegistry()
        ProcessCollector(registry=self._page)
        GCCollector(registry=self._page)

        def histogram(name: str, what: str, bounds: Sequence[float]) -> Histogram:
            return Histogram(name, what, LABELS, buckets=bounds, registry=self._page)

        self._histograms = (
            histogram("toktier_tokenize_duration_seconds", "Time to the IDs of an answer", SECONDS),
            histogram("toktier_text_delta_characters", "Characters that came with a request", SIZES),
            histogram("toktier_context_tokens", "Tokens of the whole context", SIZES),
        )
        self._answers = 0
        self._records: dict[tuple[str, str, str, str], tuple[Record, Record, Record]] = {}
        self._meters = MeterProvider([PrometheusMetricReader(registry=self._page)], about)
        self._meter = self._meters.get_meter("toktier")
        self._errors = self._meter.create_counter("toktier.errors", "{error}", "requests answered by a coded error")
        self._traces = TracerProvider(ParentBased(TraceIdRatioBased(trace_ratio)), about) if span_exporter else None
        if self._traces is not None and span_exporter is not None:
            self._traces.add_span_processor(BatchSpanProcessor(span_exporter))
        self._tracer = self._traces.get_tracer("toktier") if self._traces is not None else None
        self.tracing = self._tracer is not None

    def answered(self, served: Served, method: str, patch: Patch, chars: int, seconds: float) -> None:
        """`patch` was made just now, in `seconds`, of a request with `chars` characters."""
        key = (served.name, method, patch.route, patch.reason)
        records = self._records.get(key)
        if records is None:
            duration, delta, context = (each.labels(*key).observe for each in self._histograms)
            records = self._records[key] = duration, delta, context
        records[0](seconds)
        self._answers += 1
        if self._answers % SIZES_EVERY == 1:
            records[1](chars)
            records[2](patch.total)
        if self._tracer is not None and trace.get_current_span().is_recording():
            end = time.time_ns()
            attributes: dict[str, str | int] = {
                "route": patch.route,
                "reason": patch.reason,
                "keep": patch.keep,
                "total": patch.total,
            }
            span = self._tracer.start_span("tokenize", start_time=end - int(seconds * 1e9), attributes=attributes)
            span.end(end)

    def failed(self, method: str, code: str) -> None:
        self._errors.add(1, {"method": method, "code": code})

    def watch(
        self, name: str, unit: str, what: str, read: Callable[[], Iterable[tuple[float, dict[str, str]]]]
    ) -> None:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, attributes) for value, attributes in read()]

        self._meter.create_observable_gauge(name, [observe], unit, what)

    def page(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self._page)

    # --- spans ------------------------------------------------------------------------------------------------------

    def receive(self, name: str, carrier: Callable[[], Mapping[str, str]]) -> AbstractContextManager[Any]:
        """The span of a whole request, a child of the caller's if `carrier` (headers) says so."""
        if self._tracer is None:
            return _NO_SPAN
        context = propagate.extract(dict(carrier()))
        return _by_code(
            self._tracer.start_as_current_span(
                name, context, trace.SpanKind.SERVER, record_exception=False, set_status_on_exception=False
            )
        )

    def span(self, name: str, **attributes: str | int | float) -> AbstractContextManager[Any]:
        """A step within the current request; nothing unless that is sampled."""
        if self._tracer is None or not trace.get_current_span().is_recording():
            return _NO_SPAN
        return _by_code(
            self._tracer.start_as_current_span(
                name, attributes=attributes, record_exception=False, set_status_on_exception=False
            )
        )

    def headers(self) -> dict[str, str]:
        """W3C context of the current span, for what the tier calls."""
        carrier: dict[str, str] = {}
        if self._tracer is not None:
            propagate.inject(carrier)
        return carrier

    def close(self) -> None:
        if self._traces is not None:
            self._traces.shutdown()
        self._meters.shutdown()


@contextmanager
def _by_code(opened: AbstractContextManager[trace.Span]) -> Generator[trace.Span, None, None]:
    """The span of `opened`; what ends it early is noted by its code: a message may quote a user's text."""
    with opened as span:
        try:
            yield span
        except Exception as error:
            code = error.code if isinstance(error, TierError) else type(error).__name__
            span.set_status(trace.Status(trace.StatusCode.ERROR, code))
            raise


def silent() -> Telemetry:
    """Meters, no spans."""
    return Telemetry()


def registry_meters(telemetry: Telemetry, registry: Iterable[Served]) -> None:
    """Sessions, bytes of state, steps down and quarantine, per tokenizer."""
    served = list(registry)

    def per_tokenizer(read: Callable[[Served], float]) -> Reading:
        return lambda: [(read(each), {"tokenizer": each.name}) for each in served]

    telemetry.watch("toktier.sessions", "{session}", "sessions held", per_tokenizer(lambda each: len(each.sessions)))
    telemetry.watch(
        "toktier.state.size", "By", "bytes of session state", per_tokenizer(lambda each: each.sessions.state_bytes)
    )
    telemetry.watch(
        "toktier.quarantined", "1", "whether fast paths are off", per_tokenizer(lambda each: each.tokenizer.quarantined)
    )
    telemetry.watch(
        "toktier.session.events",
        "{event}",
        "answers by route, steps down by reason, evictions, fallbacks of encoders",
        lambda: [
            (count, {"tokenizer": each.name, "event": event})
            for each in served
            for event, count in each.sessions.counts().items()
        ],
    )


def security_meters(
    telemetry: Telemetry, counts: Callable[[], Mapping[str, Mapping[str, int]]], requests: Callable[[], int]
) -> None:
    """Requests under way, refusals of credentials and limits, and files read again, by kind and reason."""
    telemetry.watch(
        "toktier.security.events",
        "{event}",
        "refused credentials and loads, files read again",
        lambda: [
            (count, {"kind": kind, "reason": reason})
            for kind, by_reason in counts().items()
            for reason, count in list(by_reason.items())
        ],
    )
    telemetry.watch("toktier.requests", "{request}", "requests under way", lambda: [(requests(), {})])
