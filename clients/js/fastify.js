// A hook for Fastify: app.addHook('onRequest', limit(gate, ask)), for all routes, or as a route's own onRequest.

/**
 * Asks before each request; what is denied goes no further.
 * @param gate a Client
 * @param ask makes the request to Tidegate of an HTTP request; null lets it pass unasked
 */
export function limit(gate, ask, { legacyHeaders = false } = {}) {
  return async (request, reply) => {
    const asked = ask(request);
    if (asked == null) return undefined;
    const decision = await gate.ask(asked);
    reply.headers(decision.headers({ legacy: legacyHeaders }));
    if (decision.allowed) return undefined;
    return reply.code(decision.status).type('application/problem+json').send(decision.body());
  };
}
