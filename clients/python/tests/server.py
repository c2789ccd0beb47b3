"""A real server for the tests: `tidegate serve` on a free port, which can be killed, stopped and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TIDEGATE = os.environ.get("TIDEGATE", "tidegate")
POLICY = Path(__file__).parents[2] / "policy.toml"
SLOWNESS = float(os.environ.get("SLOWNESS", "1"))
DEADLINE = 0.3 * SLOWNESS
"""Of clients whose server does not answer."""


class Server:
    def __init__(self, *, tokens: bool = False, tls: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._variables: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None
        if tokens:
            self._variables["TIDEGATE_ACCESS__TOKENS"] = str(self.path("tokens.toml"))
        if tls:
            self._certify()
        self.token = self._new_token() if tokens else ""
        self.start()

    def path(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def start(self) -> None:
        """On a free port, or again on the one that it had."""
        command = [TIDEGATE, "serve", "--config", str(POLICY)]
        environment = {**os.environ, **self._variables}
        with self.path("log").open("w") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout
        listening: list[str] = []
        for line in self.process.stdout:
            listening += [line.split()[-1]] if line.startswith("listening on ") else []
            if line.startswith("policy: "):
                break
        assert listening, self.path("log").read_text()
        self.url, self.redis = (next(url for url in listening if url.startswith(kind)) for kind in ("http", "redis"))
        for door, url in (("HTTP", self.url), ("RESP", self.redis)):
            self._variables[f"TIDEGATE_DOORS__{door}"] = url.split("//")[1]

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It takes connections, by its backlog, and answers nothing."""
        assert self.process
        self.process.send_signal(signal.SIGSTOP)
        while ") T " not in Path(f"/proc/{self.process.pid}/stat").read_text():
            time.sleep(0.001)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self._folder.cleanup()

    def _new_token(self) -> str:
        command = [TIDEGATE, "token", "new", "--name", "test", "--scope", "check,read", "--file"]
        made = subprocess.run([*command, self.path("tokens.toml")], check=True, capture_output=True, text=True)
        self.path("token").write_text(made.stdout)
        return made.stdout.strip()

    def _certify(self) -> None:
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test"
        files: list[str | Path] = ["-keyout", self.path("key.pem"), "-out", self.path("cert.pem")]
        command += " -addext subjectAltName=IP:127.0.0.1"
        subprocess.run([*command.split(), *files], check=True, capture_output=True)
        self._variables["TIDEGATE_TLS__HTTP__CERT"] = str(self.path("cert.pem"))
        self._variables["TIDEGATE_TLS__HTTP__KEY"] = str(self.path("key.pem"))


@contextmanager
def odd_server(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """Reads what comes on each connection and goes on as `serve` says; gives its address, and what it read."""
    read: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                read.append(connection.recv(1 << 16))
                with suppress(OSError):
                    serve(connection)

    threading.Thread(target=run, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", read
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def drip(connection: socket.socket) -> None:
    """An answer that comes byte by byte, and each byte within any timeout of a single read."""
    for byte in b"HTTP/1.1 200 OK\r\n" + b"X-Slow: " + b"x" * 10_000:
        connection.send(bytes([byte]))
        time.sleep(0.02)


@contextmanager
def within_deadline() -> Iterator[None]:
    """No hang: what a busy machine needs beyond the deadline is far below what a hang takes."""
    begun = time.monotonic()
    yield
    took = time.monotonic() - begun
    assert took < DEADLINE + SLOWNESS, f"{took} s with a deadline of {DEADLINE} s"
