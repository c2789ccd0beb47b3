"""WSGI middleware: each request asks first, and what is denied never reaches the application.

Header fields that the application sets itself stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.decision import Decision, Request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class Gate(Protocol):
    """A client for threads: `tidegate.Client` or `tidegate.resp.Client`."""

    def ask(self, request: Request) -> Decision: ...


class RateLimit:
    """`ask` makes the request to Tidegate of a WSGI environment; `None` lets it pass unasked."""

    def __init__(
        self,
        app: WSGIApplication,
        gate: Gate,
        ask: Callable[[WSGIEnvironment], Request | None],
        *,
        legacy_headers: bool = False,
    ) -> None:
        self._app, self._gate, self._ask, self._legacy = app, gate, ask, legacy_headers

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = self._ask(environ)
        if request is None:
            return self._app(environ, start_response)
        decision = self._gate.ask(request)
        fields = decision.headers(legacy=self._legacy)
        if not decision.allowed:
            return _deny(decision, fields, start_response)

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            own = {name.lower() for name, _ in headers}
            return start_response(status, headers + [each for each in fields if each[0].lower() not in own], exc_info)

        return self._app(environ, start)


def _deny(decision: Decision, fields: list[tuple[str, str]], start_response: StartResponse) -> Iterable[bytes]:
    body, status = decision.body(), HTTPStatus(decision.status)
    content = [("Content-Type", "application/problem+json"), ("Content-Length", str(len(body)))]
    start_response(f"{status.value} {status.phrase}", content + fields)
    return [body]
