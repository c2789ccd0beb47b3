// A hook for Fastify: app.addHook('onRequest', limit(gate, ask)), for all routes, or as a route's own onRequest.
import { counting } from './counting.js';

/**
 * Asks before each request; what is denied goes no further. What passes has the decision as `request.tidegate`.
 * @param gate a Client
 * @param ask makes the request to Tidegate of an HTTP request, at once or as a promise; null lets it pass unasked
 */
export function limit(gate, ask, { legacyHeaders = false, ...options } = {}) {
  const decide = counting(gate, options);
  return async (request, reply) => {
    const asked = await ask(request);
    if (asked == null) return undefined;
    const { decision, settle } = await decide(asked);
    request.tidegate = decision;
    reply.headers(decision.headers({ legacy: legacyHeaders }));
    // A visitor who leaves before the answer has a request that failed.
    if (settle) reply.raw.once('close', () => settle(reply.raw.writableFinished ? reply.raw.statusCode : null));
    if (decision.allowed) return undefined;
    return reply.code(decision.status).type('application/problem+json').send(decision.body());
  };
}
