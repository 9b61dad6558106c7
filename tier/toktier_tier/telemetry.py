"""What the tier tells about itself: OpenTelemetry spans and meters, and the Prometheus page over the same meters.

Guarantees: no text and no name that a caller chose (session, tenant) becomes an attribute; label sets are bounded by
configuration (tokenizers) and by code (methods, routes, reasons). A span that isn't sampled costs one comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from .core.values import Patch
from .sessions.registry import Served

SECONDS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SIZES = (100, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1e6, 2e6, 5e6, 1e7)
_NO_SPAN: AbstractContextManager[Any] = nullcontext()


Reading = Callable[[], Iterable[tuple[float, dict[str, str]]]]
"""(value, attributes) of a meter that is read when it is asked for."""


SIZES_EVERY = 16
"""Sizes are noted of one answer in so many: a histogram's record takes 6 µs, and three of them 15 % of an append."""


class Telemetry:
    """Meters always; spans only for the share `trace_ratio` of requests, and for those whose caller samples them."""

    def __init__(
        self,
        *,
        readers: Sequence[MetricReader] = (),
        span_exporter: SpanExporter | None = None,
        trace_ratio: float = 0.0,
        resource: Mapping[str, str] | None = None,
    ) -> None:
        about = Resource.create({"service.name": "toktier", **(resource or {})})
        buckets = {"toktier.tokenize.duration": SECONDS, "toktier.text.delta": SIZES, "toktier.context.tokens": SIZES}
        views = [
            View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(bounds))
            for name, bounds in buckets.items()
        ]
        self._meters = MeterProvider(readers, about, views=views)
        meter = self._meters.get_meter("toktier")
        self._duration = meter.create_histogram("toktier.tokenize.duration", "s", "time to the IDs of an answer")
        self._delta = meter.create_histogram("toktier.text.delta", "{character}", "characters that came with a request")
        self._context = meter.create_histogram("toktier.context.tokens", "{token}", "tokens of the whole context")
        self._errors = meter.create_counter("toktier.errors", "{error}", "requests answered by a coded error")
        self._meter = meter
        self._answers = 0
        self._attributes: dict[tuple[str, str, str, str], dict[str, str]] = {}
        self._traces = TracerProvider(ParentBased(TraceIdRatioBased(trace_ratio)), about) if span_exporter else None
        if self._traces is not None and span_exporter is not None:
            self._traces.add_span_processor(BatchSpanProcessor(span_exporter))
        self._tracer = self._traces.get_tracer("toktier") if self._traces is not None else None

    def answered(self, served: Served, method: str, patch: Patch, chars: int, seconds: float) -> None:
        key = (served.name, method, patch.route.value, patch.reason.value)
        attributes = self._attributes.get(key)
        if attributes is None:
            attributes = {"tokenizer": key[0], "method": key[1], "route": key[2], "reason": key[3]}
            self._attributes[key] = attributes
        self._duration.record(seconds, attributes)
        self._answers += 1
        if self._answers % SIZES_EVERY == 1:
            self._delta.record(chars, attributes)
            self._context.record(patch.total, attributes)

    def failed(self, method: str, code: str) -> None:
        self._errors.add(1, {"method": method, "code": code})

    def watch(
        self, name: str, unit: str, what: str, read: Callable[[], Iterable[tuple[float, dict[str, str]]]]
    ) -> None:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, attributes) for value, attributes in read()]

        self._meter.create_observable_gauge(name, [observe], unit, what)

    # --- spans ------------------------------------------------------------------------------------------------------

    def receive(self, name: str, carrier: Callable[[], Mapping[str, str]]) -> AbstractContextManager[Any]:
        """The span of a whole request, a child of the caller's if `carrier` (headers) says so."""
        if self._tracer is None:
            return _NO_SPAN
        context = propagate.extract(dict(carrier()))
        return self._tracer.start_as_current_span(name, context, trace.SpanKind.SERVER)

    def span(self, name: str, **attributes: str | int | float) -> AbstractContextManager[Any]:
        """A step within the current request; nothing unless that is sampled."""
        if self._tracer is None or not trace.get_current_span().is_recording():
            return _NO_SPAN
        return self._tracer.start_as_current_span(name, attributes=attributes)

    def note(self, **attributes: str | int | float) -> None:
        """Attributes on the current span."""
        if self._tracer is not None:
            trace.get_current_span().set_attributes(attributes)

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


def silent() -> Telemetry:
    """Meters that nobody reads, no spans."""
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
