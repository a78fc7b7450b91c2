"""What the gateway counts, for Prometheus. Labels are from fixed sets: no session, no key, no text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(frozen=True, slots=True)
class Reading:
    """A number that is read when it is asked for. ``read``: label value → number; one without a label is under ""."""

    name: str
    help: str
    read: Callable[[], dict[str, float]]
    label: str = ""
    counts_up: bool = False

    def metric(self) -> Metric:
        """Its present value, in Prometheus' form."""
        family = (CounterMetricFamily if self.counts_up else GaugeMetricFamily)(
            self.name, self.help, labels=[self.label] if self.label else []
        )
        for value, number in self.read().items():
            family.add_metric([value] if self.label else [], number)
        return family


class GatewayMetrics:
    """The gateway's own counters, and ``readings`` of the parts around it."""

    def __init__(self, readings: Iterable[Reading] = ()) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Readings(tuple(readings)))
        self.requests = self._counter("requests", "HTTP requests, by path and status.", "path", "status")
        self.tokens = self._counter("tokens", "Tokens of answered requests, by kind.", "kind", "turn_type")
        self.answers = self._counter("answers", "Answers, by how they ended.", "finish_reason", "turn_type")
        self.interrupted = self._counter("answers_interrupted", "Answers that went on with other weights or another engine.")
        self.overflows = self._counter(
            "context_overflows", "Requests that did not fit into the context; each ends its session."
        )
        self.first_token = self._histogram("first_token_seconds", "From a request's arrival to its first token.")
        self.whole = self._histogram("answer_seconds", "From a request's arrival to the end of its answer.")

    def page(self) -> bytes:
        """The body of GET /metrics."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"openclaw_gateway_{name}", help, labels, registry=self._registry)

    def _histogram(self, name: str, help: str) -> Histogram:
        return Histogram(f"openclaw_gateway_{name}", help, ["turn_type"], registry=self._registry, buckets=_SECONDS)


class _Readings(Collector):
    def __init__(self, readings: tuple[Reading, ...]) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        for reading in self._readings:
            yield reading.metric()


class CountRequests:
    """ASGI middleware: every response by the route that it came from; a path without a route is counted as ``other``."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 499  # a client that was gone before it got anything

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            route = scope.get("route")
            self._metrics.requests.labels(getattr(route, "path", "other"), str(status)).inc()
