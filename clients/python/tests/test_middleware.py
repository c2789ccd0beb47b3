"""WSGI and ASGI middleware, before applications that tell whether they were reached."""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import Iterable
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

from tests.server import DEADLINE, SLOWNESS, Server, within_deadline
from tidegate import AsyncClient, Client, Refused, Request, asgi, wsgi

LONG = 20 * SLOWNESS
HEADERS = [(b"content-type", b"text/plain"), (b"x-RateLimit-Reset", b"mine")]


def by_user(user: str | None) -> Request | None:
    return Request("api", user) if user is not None else None


def get_wsgi(server: Server, user: str | None, *, legacy_headers: bool = False, **options: Any) -> tuple[Any, ...]:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain"), ("x-RateLimit-Reset", "mine")])
        return [b"welcome"]

    environ: dict[str, Any] = {"QUERY_STRING": ""}
    setup_testing_defaults(environ)
    told: list[Any] = []
    with Client(server.url, **options) as gate:
        limited = wsgi.RateLimit(validator(app), gate, lambda _: by_user(user), legacy_headers=legacy_headers)
        answer = validator(limited)(environ, lambda status, headers, exc_info=None: told.extend((status, headers)))  # type: ignore[arg-type]
        body = b"".join(answer)
        answer.close()  # type: ignore[attr-defined]
    return int(told[0].split()[0]), {name.lower(): value for name, value in told[1]}, body


def get_asgi(server: Server, user: str | None, *, legacy_headers: bool = False, **options: Any) -> tuple[Any, ...]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": b"welcome"})

    async def run() -> list[Any]:
        told: list[Any] = []

        async def send(message: Any) -> None:
            told.append(message)

        async with AsyncClient(server.url, **options) as gate:
            limited = asgi.RateLimit(app, gate, lambda _: by_user(user), legacy_headers=legacy_headers)
            await limited({"type": "http"}, None, send)  # type: ignore[arg-type]
        return told

    start, body = asyncio.run(run())
    return start["status"], {name.decode().lower(): value.decode() for name, value in start["headers"]}, body["body"]


class Middleware(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.close)

    def test_allowed_then_denied(self) -> None:
        for get in (get_wsgi, get_asgi):
            with self.subTest(get.__name__):
                user = get.__name__
                for left in (2, 1, 0):
                    status, fields, body = get(self.server, user, legacy_headers=left == 0, deadline=LONG)
                    self.assertEqual((status, body), (200, b"welcome"))
                    self.assertEqual(fields["ratelimit-policy"], '"api";q=3;w=3600')
                    self.assertTrue(fields["ratelimit"].startswith(f'"api";r={left};t='), fields)
                    self.assertEqual(fields.get("x-ratelimit-remaining"), "0" if left == 0 else None)
                    self.assertEqual(fields["x-ratelimit-reset"], "mine", "the application's own")
                status, fields, body = get(self.server, user, deadline=LONG)
                self.assertEqual((status, fields["content-type"]), (429, "application/problem+json"))
                self.assertTrue(1000 < int(fields["retry-after"]) <= 1200, fields)
                self.assertIn(b"#quota-exceeded", body)
                status, fields, _ = get(self.server, None, deadline=LONG)
                self.assertEqual((status, "ratelimit" in fields), (200, False), "not asked")

    def test_without_a_server(self) -> None:
        self.server.kill()
        for get in (get_wsgi, get_asgi):
            with self.subTest(get.__name__):
                with within_deadline():
                    self.assertEqual(get(self.server, "u1", deadline=DEADLINE)[0], 200)
                with within_deadline():
                    status, fields, body = get(self.server, "u1", deadline=DEADLINE, on_failure="deny")
                self.assertEqual((status, fields["retry-after"]), (503, "1"))
                self.assertIn(b"#temporary-reduced-capacity", body)
        self.server.start()

    def test_a_name_that_is_no_key_is_not_let_in(self) -> None:
        for get in (get_wsgi, get_asgi):
            with self.subTest(get.__name__), self.assertRaises(Refused):
                get(self.server, "u" * 513, deadline=LONG, on_failure="allow")

    def test_other_scopes_pass(self) -> None:
        reached: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            reached.append(scope["type"])

        limited = asgi.RateLimit(app, AsyncClient(self.server.url), lambda _: Request("api", "u1"))
        for kind in ("lifespan", "websocket"):
            asyncio.run(limited({"type": kind}, None, None))  # type: ignore[arg-type]
        self.assertEqual(reached, ["lifespan", "websocket"])


if __name__ == "__main__":
    unittest.main()
