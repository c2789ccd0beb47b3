"""WSGI middleware: each request asks first, and what is denied never reaches the application.

Header fields that the application sets itself stay as they are. It finds the decision in its environment, as
`tidegate.decision`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from tidegate._http import HOLD_S
from tidegate.decision import Count, Decision, Request, Settled, check_count, is_counted, reserved

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class Gate(Protocol):
    """A client for threads: `tidegate.Client`, or `tidegate.resp.Client` where `count` is "all"."""

    def ask(self, request: Request) -> Decision: ...


class Reserving(Gate, Protocol):
    """A client with reservations: `tidegate.Client`."""

    def reserve(self, limiter: str, key: str, cost: int = 1, *, hold: float = HOLD_S) -> Decision: ...
    def commit(self, reservation: str | None, cost: int) -> Settled: ...
    def cancel(self, reservation: str | None) -> Settled: ...


class RateLimit:
    """`ask` makes the request to Tidegate of a WSGI environment; `None` lets it pass unasked.

    `count` says which requests stay charged: all of them, only failures (a status of 400 or more, or an application
    that raises), or only successes. All are charged before, and the others are given back after, within `hold` seconds.
    """

    def __init__(
        self,
        app: WSGIApplication,
        gate: Gate | Reserving,
        ask: Callable[[WSGIEnvironment], Request | None],
        *,
        legacy_headers: bool = False,
        count: Count = "all",
        hold: float = HOLD_S,
    ) -> None:
        check_count(count, gate)
        self._app, self._gate, self._ask, self._legacy = app, gate, ask, legacy_headers
        self._count, self._hold = count, hold

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = self._ask(environ)
        if request is None:
            return self._app(environ, start_response)
        gate: Any = self._gate
        decision: Decision = (
            gate.ask(request) if self._count == "all" else gate.reserve(*reserved(request), hold=self._hold)
        )
        environ["tidegate.decision"] = decision
        fields = decision.headers(legacy=self._legacy)
        if not decision.allowed:
            return _deny(decision, fields, environ, start_response)
        ends: list[int] = []

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            ends[:] = [int(status[:3])]
            own = {name.lower() for name, _ in headers}
            return start_response(status, headers + [each for each in fields if each[0].lower() not in own], exc_info)

        if decision.reservation is None:
            return self._app(environ, start)

        def settle(has_raised: bool) -> None:
            if is_counted(self._count, None if has_raised or not ends else ends[0]):
                gate.commit(decision.reservation, request.cost)
            else:
                gate.cancel(decision.reservation)

        try:
            return _Settling(self._app(environ, start), settle)
        except BaseException:
            settle(True)
            raise


class _Settling:
    """An answer after which a reservation ends: once, when the server closes it, which it does in any case."""

    def __init__(self, answer: Iterable[bytes], settle: Callable[[bool], None]) -> None:
        self._answer, self._settle, self._has_raised = answer, settle, False

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._answer
        except Exception:
            self._has_raised = True
            raise

    def close(self) -> None:
        try:
            if hasattr(self._answer, "close"):
                self._answer.close()
        finally:
            self._settle(self._has_raised)


def _deny(
    decision: Decision, fields: list[tuple[str, str]], environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    body, status = decision.body(), HTTPStatus(decision.status)
    content = [("Content-Type", "application/problem+json"), ("Content-Length", str(len(body)))]
    start_response(f"{status.value} {status.phrase}", content + fields)
    return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]
