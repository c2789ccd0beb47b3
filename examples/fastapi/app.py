"""FastAPI behind Tidegate: every request by address, and log-ins by user and address.

tidegate serve
pip install fastapi uvicorn ../../clients/python
uvicorn app:app --port 8000
curl -i http://127.0.0.1:8000/          # the sixth in a row is a 429
"""

from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Form, Request, Response

import tidegate
from tidegate.asgi import RateLimit

gate = tidegate.AsyncClient()  # TIDEGATE_SERVER, or http://127.0.0.1:7400


def by_address(scope: dict[str, Any]) -> tidegate.Request | None:
    """Health checks are not limited. Over a Unix socket a visitor has no address: those share one key."""
    address, _ = scope.get("client") or ("unix", 0)
    return None if scope["path"] == "/health" else tidegate.Request("api", address)


@asynccontextmanager
async def lifespan(_app: FastAPI):
    yield
    await gate.close()


app = FastAPI(lifespan=lifespan)
app.add_middleware(RateLimit, gate=gate, ask=by_address, legacy_headers=True)


@app.get("/")
async def index() -> str:
    return "welcome"


@app.get("/health")
async def health() -> str:
    return "ok"


@app.post("/login")
async def login(user: Annotated[str, Form()], request: Request) -> Response:
    """Both must allow, and both are charged or neither."""
    who = {"user": user, "ip": request.client.host if request.client else "unix"}
    decision = await gate.ask(tidegate.Request(domain="login", attributes=who))
    if not decision.allowed:
        problem = "application/problem+json"
        return Response(decision.body(), decision.status, dict(decision.headers()), problem)
    return Response(f"welcome, {user}", headers=dict(decision.headers()))
