"""May this happen now? A client of Tidegate, the rate limiter.

`Client` asks over HTTP, `AsyncClient` does so in asyncio; `tidegate.resp` has both over the Redis protocol.
`tidegate.wsgi` and `tidegate.asgi` have the middleware. All of them ask the server; nothing is counted here.
"""

from tidegate.aio import AsyncClient
from tidegate.client import Client
from tidegate.decision import Answer, Decision, OnFailure, Refused, Request, Settled, Together, Unreachable

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "Decision",
    "OnFailure",
    "Refused",
    "Request",
    "Settled",
    "Together",
    "Unreachable",
]
