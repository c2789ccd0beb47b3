"""The client for asyncio: as the one for threads, with the same bounds and the same rule for trying again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from ssl import SSLContext, SSLError
from types import TracebackType

from tidegate import _http
from tidegate.decision import Answer, Decision, OnFailure, Request, Together, Unreachable


class AsyncClient:
    """Asks a server over HTTP. One is enough for an event loop."""

    def __init__(
        self,
        server: str | None = None,
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        deadline: float = _http.DEADLINE_S,
        on_failure: OnFailure = "allow",
        ssl_context: SSLContext | None = None,
        on_error: Callable[[Unreachable], object] | None = None,
    ) -> None:
        self._settings = _http.Settings(server, token, token_file, deadline, on_failure, ssl_context, on_error)
        self._idle: list[_Connection] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    async def hit(self, limiter: str, key: str, cost: int = 1) -> Decision:
        """May this happen now? It is charged if so."""
        return await self.ask(Request(limiter, key, cost=cost))

    async def peek(self, limiter: str, key: str, cost: int = 1) -> Decision:
        """Would a hit be allowed? Nothing is charged."""
        return await self.ask(Request(limiter, key, cost=cost, peek=True))

    async def ask(self, request: Request) -> Decision:
        """Any request, also by attributes."""
        try:
            return _http.one(await self._post("/v1/hit", request.to_json()))
        except Unreachable as error:
            return self._settings.without_server(error)

    async def hits(self, requests: Sequence[Request]) -> list[Answer]:
        """Up to 1,000 requests in one round trip, each decided by itself and answered in its place."""
        try:
            return _http.many(await self._post("/v1/hits", _http.hits_body(requests, together=False)))
        except Unreachable as error:
            return [self._settings.without_server(error)] * len(requests)

    async def hits_together(self, requests: Sequence[Request]) -> Together:
        """Up to 32 requests that are charged together or not at all."""
        try:
            return _http.together(await self._post("/v1/hits", _http.hits_body(requests, together=True)))
        except Unreachable as error:
            decision = self._settings.without_server(error)
            return Together(decision.allowed, [decision] * len(requests))

    async def close(self) -> None:
        """Closes the connections that are kept. Later calls open others."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _post(self, path: str, body: object) -> _http.Reply:
        request, deadline = self._settings.post(path, body), self._settings.deadline
        try:
            return await asyncio.wait_for(self._exchange(request), deadline)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise Unreachable(f"no answer within {deadline} s") from error
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise Unreachable(f"{error} within {deadline} s") from error

    async def _exchange(self, request: bytes) -> _http.Reply:
        connection = self._take() or await self._connect()
        try:
            reply = await connection.exchange(request)
        except BaseException:
            connection.close()
            raise
        if reply.keeps_connection and len(self._idle) < _http.IDLE_CONNECTIONS_MAX:
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    def _take(self) -> _Connection | None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Connections belong to the loop that opened them, and that one has ended.
            self._loop, self._idle = loop, []
        while self._idle:
            connection = self._idle.pop()
            if connection.is_quiet():
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        """Tries until the deadline: nothing was sent yet, so nothing can be charged twice."""
        pause = _http.RETRY_PAUSE_S
        while True:
            try:
                return _Connection(
                    *await asyncio.open_connection(
                        self._settings.host, self._settings.port, ssl=self._settings.ssl, limit=_http.LINE_BYTES_MAX
                    )
                )
            except SSLError:
                raise
            except OSError:
                await asyncio.sleep(pause)
                pause *= 2


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def exchange(self, request: bytes) -> _http.Reply:
        self._writer.write(request)
        await self._writer.drain()
        reader = _http.read_reply()
        wanted = next(reader)
        try:
            while True:
                wanted = reader.send(await self._read(wanted))
        except StopIteration as end:
            reply: _http.Reply = end.value
            return reply

    async def _read(self, wanted: int) -> bytes:
        if wanted == _http.LINE:
            return await self._reader.readuntil(b"\n")
        return await self._reader.readexactly(wanted)

    def is_quiet(self) -> bool:
        """Whether the server has not closed it since the last answer."""
        return not self._writer.is_closing() and not self._reader.at_eof() and self._reader.exception() is None

    def close(self) -> None:
        self._writer.transport.abort()
