"""Plain redis-py asks Tidegate: no other client is needed.

tidegate serve
pip install redis
python app.py
"""

import os

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

# By default redis-py sends a command again when no reply came in time. The first one may have arrived, and a hit must not
# be charged twice: so no retries. The timeouts are the most that a request waits for its limit.
gate = redis.Redis.from_url(
    os.environ.get("TIDEGATE_REDIS", "redis://127.0.0.1:7403"),
    socket_timeout=0.25,
    socket_connect_timeout=0.25,
    retry=Retry(NoBackoff(), 0),
)


def allowed(limiter: str, key: str, cost: int = 1) -> bool:
    """A limiter of the policy. Without an answer everything passes: the limiter's failure is not the application's."""
    try:
        return gate.execute_command("TG.HIT", limiter, key, cost)[0] == 1
    except (redis.ConnectionError, redis.TimeoutError):
        return True


print("a limiter of the policy:", [allowed("api", "user-1") for _ in range(6)])

# As with redis-cell, a limit that the call brings: 15 + 1 at once, then 30 in 60 seconds.
limited, limit, remaining, retry_after_s, reset_after_s = gate.execute_command("CL.THROTTLE", "user-1", 15, 30, 60)
print(f"a limit of the call: {remaining} of {limit} left, full again in {reset_after_s} s")

# Many in one round trip, decided in their order.
pipeline = gate.pipeline(transaction=False)
for user in ("user-2", "user-3", "user-2"):
    pipeline.execute_command("TG.HIT", "api", user)
print("many at once:", [remaining for _, _, remaining, _, _ in pipeline.execute()])
