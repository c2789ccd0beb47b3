"""ASGI middleware: each HTTP request asks first, and what is denied never reaches the application.

Header fields that the application sets itself stay as they are. It finds the decision in the scope's state, as
`tidegate`: in Starlette and FastAPI that is `request.state.tidegate`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeAlias

from tidegate._http import HOLD_S
from tidegate.decision import Count, Decision, Request, Settled, check_count, is_counted, reserved

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate(Protocol):
    """A client for asyncio: `tidegate.AsyncClient`, or `tidegate.resp.AsyncClient` where `count` is "all"."""

    async def ask(self, request: Request) -> Decision: ...


class Reserving(Gate, Protocol):
    """A client with reservations: `tidegate.AsyncClient`."""

    async def reserve(self, limiter: str, key: str, cost: int = 1, *, hold: float = HOLD_S) -> Decision: ...
    async def commit(self, reservation: str | None, cost: int) -> Settled: ...
    async def cancel(self, reservation: str | None) -> Settled: ...


class RateLimit:
    """`ask` makes the request to Tidegate of an ASGI scope; `None` lets it pass unasked, as do WebSockets.

    `count` says which requests stay charged: all of them, only failures (a status of 400 or more, or an application
    that raises), or only successes. All are charged before, and the others are given back after, within `hold` seconds.
    """

    def __init__(
        self,
        app: App,
        gate: Gate | Reserving,
        ask: Callable[[Scope], Request | None],
        *,
        legacy_headers: bool = False,
        count: Count = "all",
        hold: float = HOLD_S,
    ) -> None:
        check_count(count, gate)
        self._app, self._gate, self._ask, self._legacy = app, gate, ask, legacy_headers
        self._count, self._hold = count, hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._ask(scope) if scope["type"] == "http" else None
        if request is None:
            await self._app(scope, receive, send)
            return
        gate: Any = self._gate
        decision: Decision = await (
            gate.ask(request) if self._count == "all" else gate.reserve(*reserved(request), hold=self._hold)
        )
        scope.setdefault("state", {})["tidegate"] = decision
        told = decision.headers(legacy=self._legacy)
        fields = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in told]
        if not decision.allowed:
            await _deny(decision, fields, scope, send)
            return
        ends: list[int] = []

        async def send_with_fields(message: Message) -> None:
            if message["type"] == "http.response.start":
                ends[:] = [message["status"]]
                headers = list(message.get("headers", []))
                own = {name.lower() for name, _ in headers}
                message = {**message, "headers": headers + [each for each in fields if each[0] not in own]}
            await send(message)

        has_returned = False
        try:
            await self._app(scope, receive, send_with_fields)
            has_returned = True
        finally:
            if decision.reservation is not None:
                if is_counted(self._count, ends[0] if has_returned and ends else None):
                    await gate.commit(decision.reservation, request.cost)
                else:
                    await gate.cancel(decision.reservation)


async def _deny(decision: Decision, fields: list[tuple[bytes, bytes]], scope: Scope, send: Send) -> None:
    body = decision.body()
    content = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": decision.status, "headers": content + fields})
    await send({"type": "http.response.body", "body": b"" if scope.get("method") == "HEAD" else body})
