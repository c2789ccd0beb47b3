"""ASGI middleware: each HTTP request asks first, and what is denied never reaches the application.

Header fields that the application sets itself stay as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeAlias

from tidegate.decision import Decision, Request

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate(Protocol):
    """A client for asyncio: `tidegate.AsyncClient` or `tidegate.resp.AsyncClient`."""

    async def ask(self, request: Request) -> Decision: ...


class RateLimit:
    """`ask` makes the request to Tidegate of an ASGI scope; `None` lets it pass unasked, as do WebSockets."""

    def __init__(
        self, app: App, gate: Gate, ask: Callable[[Scope], Request | None], *, legacy_headers: bool = False
    ) -> None:
        self._app, self._gate, self._ask, self._legacy = app, gate, ask, legacy_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._ask(scope) if scope["type"] == "http" else None
        if request is None:
            await self._app(scope, receive, send)
            return
        decision = await self._gate.ask(request)
        told = decision.headers(legacy=self._legacy)
        fields = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in told]
        if not decision.allowed:
            await _deny(decision, fields, send)
            return

        async def send_with_fields(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))
                own = {name.lower() for name, _ in headers}
                message = {**message, "headers": headers + [each for each in fields if each[0] not in own]}
            await send(message)

        await self._app(scope, receive, send_with_fields)


async def _deny(decision: Decision, fields: list[tuple[bytes, bytes]], send: Send) -> None:
    body = decision.body()
    content = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": decision.status, "headers": content + fields})
    await send({"type": "http.response.body", "body": body})
