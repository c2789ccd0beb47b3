// Middleware for Express, and for anything else with (request, response, next) of node:http.

/**
 * Asks before each request; what is denied goes no further.
 * @param gate a Client
 * @param ask makes the request to Tidegate of an HTTP request; null lets it pass unasked
 */
export function limit(gate, ask, { legacyHeaders = false } = {}) {
  return async (request, response, next) => {
    try {
      const asked = ask(request);
      if (asked == null) return next();
      const decision = await gate.ask(asked);
      const fields = decision.headers({ legacy: legacyHeaders });
      for (const [name, value] of Object.entries(fields)) response.setHeader(name, value);
      if (decision.allowed) return next();
      response.statusCode = decision.status;
      response.setHeader('Content-Type', 'application/problem+json');
      response.end(decision.body());
    } catch (error) {
      next(error);
    }
  };
}
