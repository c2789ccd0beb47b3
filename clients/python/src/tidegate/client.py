"""The client for threads: connections are kept and used again, and no call takes longer than the deadline.

A hit must not be charged twice. So only what failed before anything was sent is tried again: connecting. A connection
that the server has closed is noticed before it is used.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from ssl import SSLContext, SSLError
from types import TracebackType
from typing import Any

from tidegate import _http
from tidegate.decision import Answer, Decision, OnFailure, Refused, Request, Settled, Together, Unreachable

LOOKUPS_MAX = 8
"""Of one client's names at once: a lookup cannot be ended, and those that hang must not pile up."""
READ_BYTES = 1 << 16


class Client:
    """Asks a server over HTTP. One is enough for a process: it is for many threads, and survives a fork."""

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
        self._pool = _Pool()

    def hit(self, limiter: str, key: str, cost: int = 1) -> Decision:
        """May this happen now? It is charged if so."""
        return self.ask(Request(limiter, key, cost=cost))

    def peek(self, limiter: str, key: str, cost: int = 1) -> Decision:
        """Would a hit be allowed? Nothing is charged."""
        return self.ask(Request(limiter, key, cost=cost, peek=True))

    def ask(self, request: Request) -> Decision:
        """Any request, also by attributes."""
        try:
            return _http.one(self._send("POST", "/v1/hit", request.to_json()))
        except Unreachable as error:
            return self._settings.without_server(error)

    def hits(self, requests: Sequence[Request]) -> list[Answer]:
        """Up to 1,000 requests in one round trip, each decided by itself and answered in its place."""
        try:
            return _http.many(self._send("POST", "/v1/hits", _http.hits_body(requests, together=False)))
        except Unreachable as error:
            return [self._settings.without_server(error)] * len(requests)

    def hits_together(self, requests: Sequence[Request]) -> Together:
        """Up to 32 requests that are charged together or not at all."""
        try:
            return _http.together(self._send("POST", "/v1/hits", _http.hits_body(requests, together=True)))
        except Unreachable as error:
            decision = self._settings.without_server(error)
            return Together(decision.allowed, [decision] * len(requests))

    def reserve(self, limiter: str, key: str, cost: int = 1, *, hold: float = _http.HOLD_S) -> Decision:
        """A hit whose cost can be corrected, by the decision's `reservation`, for `hold` seconds."""
        try:
            return _http.one(self._send("POST", "/v1/reserve", _http.reserve_body(limiter, key, cost, hold)))
        except Unreachable as error:
            return self._settings.without_server(error)

    def commit(self, reservation: str | None, cost: int) -> Settled:
        """Ends a reservation at its real cost: the rest is given back, or the excess charged. It is sent once."""
        return self._settle(reservation, "POST", "/commit", {"cost": cost})

    def cancel(self, reservation: str | None) -> Settled:
        """Ends a reservation and gives all of it back. It is sent once."""
        return self._settle(reservation, "DELETE", "", None)

    def close(self) -> None:
        """Closes the connections that are kept. Later calls open others."""
        self._pool.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _settle(self, reservation: str | None, method: str, path: str, body: object) -> Settled:
        if reservation is None:
            return Settled("nothing")
        try:
            return _http.settled(self._send(method, _http.reservation_path(reservation) + path, body))
        except (Refused, Unreachable) as error:
            return self._settings.unsettled(error)

    def _send(self, method: str, path: str, body: object) -> _http.Reply:
        until = time.monotonic() + self._settings.deadline
        try:
            connection = self._pool.take() or self._connect(until)
            return self._exchange(connection, self._settings.request(method, path, body), until)
        except OSError as error:
            raise Unreachable(f"{error or 'no answer'} within {self._settings.deadline} s") from error

    def _exchange(self, connection: _Connection, request: bytes, until: float) -> _http.Reply:
        try:
            reply = connection.exchange(request, until)
        except BaseException:
            connection.close()
            raise
        if reply.keeps_connection:
            self._pool.put(connection)
        else:
            connection.close()
        return reply

    def _connect(self, until: float) -> _Connection:
        """Tries until the deadline: nothing was sent yet, so nothing can be charged twice."""
        pause = _http.RETRY_PAUSE_S
        while True:
            try:
                return _Connection(self._settings, self._pool.addresses, until)
            except SSLError:
                raise
            except OSError:
                if time.monotonic() + pause >= until:
                    raise
                time.sleep(pause)
                pause *= 2


class _Pool:
    """Connections that nobody uses at the moment. A process that was forked has none of its parent's."""

    def __init__(self) -> None:
        self.begin()
        _pools.add(self)

    def begin(self) -> None:
        """As new, locks included: another thread may have held one when the process was forked."""
        for connection in getattr(self, "_idle", []):
            connection.close()
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._lookups = threading.BoundedSemaphore(LOOKUPS_MAX)

    def take(self) -> _Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.is_quiet():
                return connection
            connection.close()

    def put(self, connection: _Connection) -> None:
        with self._lock:
            if len(self._idle) < _http.IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def addresses(self, host: str, port: int, until: float) -> list[tuple[Any, ...]]:
        if is_literal(host):
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        lookups = self._lookups
        if not lookups.acquire(timeout=_left(until)):
            raise TimeoutError(f"looking up {host}: {LOOKUPS_MAX} lookups before this one have no answer")
        lookup = Lookup(host, port, lookups.release)
        lookup.join(_left(until))
        return lookup.found()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()


def _begin_pools() -> None:
    for pool in _pools:
        pool.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_pools)


class Lookup(threading.Thread):
    """Looking up a name has no timeout of its own: the caller goes on at the deadline, and no process waits for it."""

    def __init__(self, host: str, port: int, done: Callable[[], None]) -> None:
        super().__init__(name="tidegate-lookup", daemon=True)
        self._host, self._port, self._done = host, port, done
        self._result: list[tuple[Any, ...]] | Exception = TimeoutError(f"looking up {host}: no answer")
        self.start()

    def run(self) -> None:
        try:
            self._result = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except Exception as error:
            self._result = error
        finally:
            self._done()

    def found(self) -> list[tuple[Any, ...]]:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class _Connection:
    """A socket whose every step has what is left until the deadline."""

    def __init__(
        self,
        settings: _http.Settings,
        addresses: Callable[[str, int, float], list[tuple[Any, ...]]],
        until: float,
    ) -> None:
        self._incoming = _http.Incoming()
        self._socket = _open(addresses(settings.host, settings.port, until), until)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if settings.ssl:
                self._socket.settimeout(_left(until))
                self._socket = settings.ssl.wrap_socket(self._socket, server_hostname=settings.host)
        except BaseException:
            self._socket.close()
            raise

    def exchange(self, request: bytes, until: float) -> _http.Reply:
        self._socket.settimeout(_left(until))
        self._socket.sendall(request)
        reader = _http.read_reply()
        wanted = next(reader)
        try:
            while True:
                wanted = reader.send(self._read(wanted, until))
        except StopIteration as end:
            reply: _http.Reply = end.value
            return reply

    def _read(self, wanted: int, until: float) -> bytes:
        while (taken := self._incoming.take(wanted)) is None:
            self._socket.settimeout(_left(until))
            self._incoming.feed(self._socket.recv(READ_BYTES))
        return taken

    def is_quiet(self) -> bool:
        """Whether it is as it should be between two requests: neither closed by the server nor with bytes to read."""
        return not self._incoming and not has_bytes(self._socket.fileno())

    def close(self) -> None:
        self._socket.close()


def is_literal(host: str) -> bool:
    """Whether it is an address, and needs no lookup."""
    return host.replace(".", "").isdigit() or ":" in host


def has_bytes(socket: int) -> bool:
    """Whether there is something to read: bytes, or that the other side has closed it."""
    if not hasattr(select, "poll"):
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def _open(addresses: list[tuple[Any, ...]], until: float) -> socket.socket:
    """To the first that takes it. One that does not answer has its share of what is left, so that others get theirs."""
    error: OSError = OSError("no address")
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.settimeout(_left(until) / (len(addresses) - index))
            opened.connect(address)
            return opened
        except OSError as failed:
            opened.close()
            error = failed
    raise error


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer")
    return left
