// Middleware for Express, and for anything else with (request, response, next) of node:http.
import { counting } from './counting.js';

/**
 * Asks before each request; what is denied goes no further. What passes has the decision as `request.tidegate`.
 * @param gate a Client
 * @param ask makes the request to Tidegate of an HTTP request, at once or as a promise; null lets it pass unasked
 */
export function limit(gate, ask, { legacyHeaders = false, ...options } = {}) {
  const decide = counting(gate, options);

  /** Whether it may go on. */
  async function passes(request, response) {
    const asked = await ask(request);
    if (asked == null) return true;
    const { decision, settle } = await decide(asked);
    request.tidegate = decision;
    const fields = decision.headers({ legacy: legacyHeaders });
    for (const [name, value] of Object.entries(fields)) response.setHeader(name, value);
    // A visitor who leaves before the answer has a request that failed.
    if (settle) response.once('close', () => settle(response.writableFinished ? response.statusCode : null));
    if (decision.allowed) return true;
    response.statusCode = decision.status;
    response.setHeader('Content-Type', 'application/problem+json');
    response.end(decision.body());
    return false;
  }

  return async (request, response, next) => {
    let mayGoOn;
    try {
      mayGoOn = await passes(request, response);
    } catch (error) {
      next(error);
      return;
    }
    // Outside of the try: what is thrown behind here is not ours, and must not call it again.
    if (mayGoOn) next();
  };
}
