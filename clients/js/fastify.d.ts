import type { Client, Count, Request } from './tidegate.js';

/**
 * A hook for `onRequest`; what is denied goes no further, and what passes has its Decision as `request.tidegate`. `ask` may return null
 * to let a request pass unasked. With a `count` of 'failures' or 'successes' all are charged before, and the others given back
 * after, within `holdMs` (30,000 by default).
 */
export function limit<Incoming = any>(
  gate: Pick<Client, 'ask' | 'reserve' | 'commit' | 'cancel'>,
  ask: (request: Incoming) => Request | null | undefined | Promise<Request | null | undefined>,
  options?: { legacyHeaders?: boolean; count?: Count; holdMs?: number },
): (request: Incoming, reply: any) => Promise<unknown>;
