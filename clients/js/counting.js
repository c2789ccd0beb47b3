// What the middleware asks, and what it gives back after: shared by Express and Fastify.

/**
 * Asks, or reserves where only failures or only successes are to stay charged; `settle(status)` is to be called once when the
 * request has ended, with the status of its answer, or null if there was none.
 */
export function counting(gate, { count = 'all', holdMs } = {}) {
  if (!['all', 'failures', 'successes'].includes(count)) throw new TypeError(`count ${count} is not known; use 'all', 'failures' or 'successes'`);
  return async (asked) => {
    if (count === 'all') return { decision: await gate.ask(asked), settle: null };
    const { limiter, key, cost = 1, peek } = asked;
    if (limiter === undefined || key === undefined || peek) throw new TypeError(`count '${count}' needs a limiter and a key, and no peek`);
    const decision = await gate.reserve(limiter, key, cost, { holdMs });
    const { reservation } = decision;
    if (reservation === null) return { decision, settle: null };
    const settle = (status) => {
      const hasFailed = status === null || status >= 400;
      const ended = hasFailed === (count === 'failures') ? gate.commit(reservation, cost) : gate.cancel(reservation);
      // Nobody waits for it: a refusal, such as of a token that was revoked in between, is printed.
      ended.catch((error) => console.error('tidegate: a reservation was not settled:', error.message));
    };
    return { decision, settle };
  };
}
