"""Costs that are known later, and middleware that counts only failures or only successes."""

from __future__ import annotations

import asyncio
import socket
import unittest
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

from tests.server import DEADLINE, Server, odd_server, within_deadline
from tests.test_client import BARE, LONG, OVER_HTTP, WithServer
from tidegate import AsyncClient, Client, Refused, Request, asgi, resp, wsgi


class Reserve(WithServer):
    def test_less_more_and_nothing(self) -> None:
        def scene(gate: Any, key: str) -> None:
            held = gate.reserve("hundred", key, 40)
            self.assertEqual((held.allowed, held.remaining), (True, 60))
            told = gate.commit(held.reservation, 15)
            self.assertEqual((told.outcome, told.cost, told.given_back, told.excess), ("settled", 15, 25, 0))
            self.assertEqual(gate.peek("hundred", key).remaining, 85)
            self.assertEqual(gate.commit(held.reservation, 1).outcome, "not_reserved", "it had ended")
            told = gate.commit(gate.reserve("hundred", key, 5, hold=60).reservation, 7)
            self.assertEqual((told.outcome, told.excess), ("settled", 2))
            self.assertEqual(gate.cancel(gate.reserve("hundred", key, 70).reservation).given_back, 70)
            self.assertEqual(gate.peek("hundred", key).remaining, 78)
            denied = gate.reserve("hundred", key, 79)
            self.assertEqual((denied.allowed, denied.reservation, denied.status), (False, None, 429))
            self.assertEqual(gate.cancel(denied.reservation).outcome, "nothing")

        self.each(OVER_HTTP, scene, **LONG)

    def test_what_the_server_refuses(self) -> None:
        def scene(gate: Any, key: str) -> None:
            with self.assertRaises(Refused):
                gate.reserve("unknown", key)
            with self.assertRaises(Refused):
                gate.reserve("hundred", key, hold=-1)
            with self.assertRaises(Refused):
                gate.cancel("no/such name?")

        self.each(OVER_HTTP, scene, **LONG)

    def test_without_a_server(self) -> None:
        server = Server()
        self.addCleanup(server.close)
        for make in OVER_HTTP:
            errors: list[Exception] = []
            opened = make(server, deadline=DEADLINE, on_error=errors.append)
            closed = make(server, deadline=DEADLINE, on_failure="deny")
            calm = make(server, **LONG)
            held = calm.reserve("hundred", make.__name__)
            server.kill()
            with within_deadline():
                self.assertEqual(
                    (opened.reserve("hundred", "u").allowed, closed.reserve("hundred", "u").allowed), (1, 0)
                )
            with within_deadline():
                told = opened.cancel(held.reservation)
            self.assertEqual((told.outcome, told.error in errors, len(errors)), ("unknown", True, 2))
            for gate in (opened, closed, calm):
                gate.close()
            server.start()

    def test_an_end_is_never_sent_twice(self) -> None:
        def cut(connection: socket.socket) -> None:
            connection.close()

        for make in BARE:
            with odd_server(cut) as (url, read):
                gate = make(url, **LONG)
                self.assertEqual((gate.cancel("R").outcome, gate.commit("R", 2).outcome), ("unknown", "unknown"))
                self.assertEqual(
                    [line.split(b" HTTP")[0] for line in read],
                    [
                        b"DELETE /v1/reservations/R",
                        b"POST /v1/reservations/R/commit",
                    ],
                )
                gate.close()


def wsgi_statuses(server: Server, count: Any, statuses: Iterable[int], cost: int = 1, **options: Any) -> list[Any]:
    """What a visitor gets whose requests the application answers so; 0: it raises, -1: while it answers."""
    got: list[Any] = []
    seen: list[Any] = []

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        seen.append(environ["tidegate.decision"])
        wanted = environ["test.status"]
        if wanted == 0:
            raise RuntimeError
        start_response(f"{200 if wanted == -1 else wanted} Told", [("Content-Type", "text/plain")])
        return streamed() if wanted == -1 else [b"told"]

    def streamed() -> Iterable[bytes]:
        yield b"to"
        raise RuntimeError

    def ask(_: Any) -> Request:
        return Request("api", f"wsgi-{count}", cost=cost)

    with Client(server.url, **options) as gate:
        limited = wsgi.RateLimit(app, gate, ask, count=count)
        for wanted in statuses:
            environ: dict[str, Any] = {"QUERY_STRING": "", "test.status": wanted}
            setup_testing_defaults(environ)
            try:
                answer = validator(limited)(environ, lambda status, *_: got.append(int(status[:3])))  # type: ignore[arg-type]
                try:
                    list(answer)
                finally:
                    answer.close()  # type: ignore[attr-defined]
            except RuntimeError:
                got.append("raised")
    assert all(decision.allowed for decision in seen)
    return got


def asgi_statuses(server: Server, count: Any, statuses: Iterable[int], cost: int = 1, **options: Any) -> list[Any]:
    got: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["state"]["tidegate"].allowed
        wanted = scope["test.status"]
        if wanted == 0:
            raise RuntimeError
        await send({"type": "http.response.start", "status": 200 if wanted == -1 else wanted})
        if wanted == -1:
            raise RuntimeError
        await send({"type": "http.response.body", "body": b"told"})

    async def send(message: Any) -> None:
        if "status" in message:
            got.append(message["status"])

    async def run() -> None:
        async with AsyncClient(server.url, **options) as gate:
            limited = asgi.RateLimit(app, gate, lambda _: Request("api", f"asgi-{count}", cost=cost), count=count)
            for wanted in statuses:
                try:
                    await limited({"type": "http", "method": "GET", "test.status": wanted}, None, send)  # type: ignore[arg-type]
                except RuntimeError:
                    got.append("raised")

    asyncio.run(run())
    return got


MIDDLEWARE: tuple[Callable[..., list[Any]], ...] = (wsgi_statuses, asgi_statuses)


class Counting(WithServer):
    def test_only_failures(self) -> None:
        for get in MIDDLEWARE:
            with self.subTest(get.__name__):
                told = get(self.server, "failures", [200, 201, 302, 200, 401, 200, 500, 200, 403, 200], **LONG)
                self.assertEqual(told, [200, 201, 302, 200, 401, 200, 500, 200, 403, 429])

    def test_only_successes(self) -> None:
        for get in MIDDLEWARE:
            with self.subTest(get.__name__):
                told = get(self.server, "successes", [500, 404, 0, 400, 200, 500, 201, 302, 500], **LONG)
                self.assertEqual(told, [500, 404, "raised", 400, 200, 500, 201, 302, 429])

    def test_an_application_that_raises_has_failed(self) -> None:
        server = Server()
        self.addCleanup(server.close)
        for get in MIDDLEWARE:
            with self.subTest(get.__name__):
                told = get(server, "failures", [0, -1, 0, 200], **LONG)
                self.assertEqual(told, ["raised", 200, "raised", "raised", 429])

    def test_without_a_server(self) -> None:
        server = Server()
        self.addCleanup(server.close)
        server.kill()
        for get in MIDDLEWARE:
            with self.subTest(get.__name__):
                self.assertEqual(get(server, "failures", [401], deadline=DEADLINE), [401])
                self.assertEqual(get(server, "failures", [401], deadline=DEADLINE, on_failure="deny"), [503])
        server.start()

    def test_a_denied_head_has_no_body(self) -> None:
        async def denied(gate: AsyncClient) -> list[Any]:
            told: list[Any] = []

            async def send(message: Any) -> None:
                told.append(message)

            limited = asgi.RateLimit(None, gate, lambda _: Request("api", "head", cost=9))  # type: ignore[arg-type]
            await limited({"type": "http", "method": "HEAD"}, None, send)  # type: ignore[arg-type]
            await gate.close()
            return told

        start, body = asyncio.run(denied(AsyncClient(self.server.url, **LONG)))
        self.assertEqual((start["status"], body["body"]), (429, b""))
        environ: dict[str, Any] = {"QUERY_STRING": "", "REQUEST_METHOD": "HEAD"}
        setup_testing_defaults(environ)
        with Client(self.server.url, **LONG) as gate:
            limited = wsgi.RateLimit(None, gate, lambda _: Request("api", "head", cost=9))  # type: ignore[arg-type]
            answer = validator(limited)(environ, lambda *_: None)  # type: ignore[arg-type]
            self.assertEqual(list(answer), [])
            answer.close()  # type: ignore[attr-defined]

    def test_what_cannot_be_counted_so(self) -> None:
        for count, gate in (("some", Client()), ("failures", resp.Client())):
            with self.assertRaises(ValueError):
                wsgi.RateLimit(None, gate, lambda _: None, count=count)  # type: ignore[arg-type]
            with self.assertRaises(ValueError):
                asgi.RateLimit(None, gate, lambda _: None, count=count)  # type: ignore[arg-type]
        limited = wsgi.RateLimit(None, Client(), lambda _: Request(attributes={"user": "u"}), count="failures")  # type: ignore[arg-type]
        with self.assertRaises(ValueError):
            limited({}, None)  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
