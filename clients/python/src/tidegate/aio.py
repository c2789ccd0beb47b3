"""The client for asyncio: as the one for threads, with the same bounds and the same rule for trying again."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from ssl import SSLContext, SSLError
from types import TracebackType
from typing import Any

from tidegate import _http
from tidegate.client import LOOKUPS_MAX, READ_BYTES, Lookup, has_bytes, is_literal
from tidegate.decision import Answer, Decision, OnFailure, Refused, Request, Settled, Together, Unreachable


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
        self._lookups = threading.BoundedSemaphore(LOOKUPS_MAX)

    async def hit(self, limiter: str, key: str, cost: int = 1) -> Decision:
        """May this happen now? It is charged if so."""
        return await self.ask(Request(limiter, key, cost=cost))

    async def peek(self, limiter: str, key: str, cost: int = 1) -> Decision:
        """Would a hit be allowed? Nothing is charged."""
        return await self.ask(Request(limiter, key, cost=cost, peek=True))

    async def ask(self, request: Request) -> Decision:
        """Any request, also by attributes."""
        try:
            return _http.one(await self._send("POST", "/v1/hit", request.to_json()))
        except Unreachable as error:
            return self._settings.without_server(error)

    async def hits(self, requests: Sequence[Request]) -> list[Answer]:
        """Up to 1,000 requests in one round trip, each decided by itself and answered in its place."""
        try:
            return _http.many(await self._send("POST", "/v1/hits", _http.hits_body(requests, together=False)))
        except Unreachable as error:
            return [self._settings.without_server(error)] * len(requests)

    async def hits_together(self, requests: Sequence[Request]) -> Together:
        """Up to 32 requests that are charged together or not at all."""
        try:
            return _http.together(await self._send("POST", "/v1/hits", _http.hits_body(requests, together=True)))
        except Unreachable as error:
            decision = self._settings.without_server(error)
            return Together(decision.allowed, [decision] * len(requests))

    async def reserve(self, limiter: str, key: str, cost: int = 1, *, hold: float = _http.HOLD_S) -> Decision:
        """A hit whose cost can be corrected, by the decision's `reservation`, for `hold` seconds."""
        try:
            return _http.one(await self._send("POST", "/v1/reserve", _http.reserve_body(limiter, key, cost, hold)))
        except Unreachable as error:
            return self._settings.without_server(error)

    async def commit(self, reservation: str | None, cost: int) -> Settled:
        """Ends a reservation at its real cost: the rest is given back, or the excess charged. It is sent once."""
        return await self._settle(reservation, "POST", "/commit", {"cost": cost})

    async def cancel(self, reservation: str | None) -> Settled:
        """Ends a reservation and gives all of it back. It is sent once."""
        return await self._settle(reservation, "DELETE", "", None)

    async def close(self) -> None:
        """Closes the connections that are kept. Later calls open others."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close_in(self._loop)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _settle(self, reservation: str | None, method: str, path: str, body: object) -> Settled:
        if reservation is None:
            return Settled("nothing")
        try:
            return _http.settled(await self._send(method, _http.reservation_path(reservation) + path, body))
        except (Refused, Unreachable) as error:
            return self._settings.unsettled(error)

    async def _send(self, method: str, path: str, body: object) -> _http.Reply:
        request, deadline = self._settings.request(method, path, body), self._settings.deadline
        try:
            return await asyncio.wait_for(self._exchange(request), deadline)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise Unreachable(f"no answer within {deadline} s") from error
        except OSError as error:
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
            # Connections belong to the loop that opened them.
            for connection in self._idle:
                connection.close_in(self._loop)
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
                return await self._open()
            except SSLError:
                raise
            except OSError:
                await asyncio.sleep(pause)
                pause *= 2

    async def _open(self) -> _Connection:
        """To the first that takes it. One that does not answer has its share of the deadline, and others get theirs."""
        error: OSError = OSError("no address")
        addresses = await self._addresses()
        for address in addresses:
            try:
                connecting = _Connection.open(self._settings, address)
                return await asyncio.wait_for(connecting, self._settings.deadline / len(addresses))
            except SSLError:
                raise
            except asyncio.TimeoutError:
                error = TimeoutError(f"connecting to {address}: no answer")
            except OSError as failed:
                error = failed
        raise error

    async def _addresses(self) -> list[str]:
        """Not by the event loop's own threads: who ends the loop waits for those, and a lookup may hang."""
        host, port = self._settings.host, self._settings.port
        if is_literal(host):
            return [host]
        if not self._lookups.acquire(blocking=False):
            raise TimeoutError(f"looking up {host}: {LOOKUPS_MAX} lookups before this one have no answer")
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def done() -> None:
            self._lookups.release()
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(ended.set)

        lookup = Lookup(host, port, done)
        await ended.wait()
        return list(dict.fromkeys(address[4][0] for address in lookup.found()))


class _Reader(asyncio.StreamReader):
    """One that knows how much came, so that bytes which no request asked for are noticed."""

    came = 0

    def feed_data(self, data: Any) -> None:
        self.came += len(data)
        super().feed_data(data)


class _Connection:
    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._incoming, self._taken = _http.Incoming(), 0

    @classmethod
    async def open(cls, settings: _http.Settings, address: str) -> _Connection:
        loop = asyncio.get_running_loop()
        reader = _Reader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        name = settings.host if settings.ssl else None
        transport, _ = await loop.create_connection(
            lambda: protocol, address, settings.port, ssl=settings.ssl, server_hostname=name
        )
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

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
        while (taken := self._incoming.take(wanted)) is None:
            came = await self._reader.read(READ_BYTES)
            self._taken += len(came)
            self._incoming.feed(came)
        return taken

    def is_quiet(self) -> bool:
        """Whether it is as it should be between two requests: neither closed by the server nor with bytes to read."""
        if self._writer.is_closing() or self._reader.at_eof() or self._reader.exception() is not None:
            return False
        has_unread = self._incoming or self._reader.came > self._taken
        return not has_unread and not has_bytes(self._writer.get_extra_info("socket").fileno())

    def close(self) -> None:
        self._writer.transport.abort()

    def close_in(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """From another event loop than its own, which may have ended: then the socket goes with the object."""
        with suppress(OSError, RuntimeError):
            if loop is None or loop is asyncio.get_running_loop():
                self.close()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(self.close)
            else:
                self._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
