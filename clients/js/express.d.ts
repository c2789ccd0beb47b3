import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Client, Count, Decision, Request } from './tidegate.js';

declare module 'node:http' {
  interface IncomingMessage {
    /** The decision that let it pass; undefined if it was not asked about. */
    tidegate?: Decision;
  }
}

/**
 * Asks before each request; what is denied goes no further. `ask` may return null to let a request pass unasked. With a `count` of
 * 'failures' or 'successes' all are charged before, and the others given back after, within `holdMs` (30,000 by default).
 */
export function limit<Incoming extends IncomingMessage = any>(
  gate: Pick<Client, 'ask' | 'reserve' | 'commit' | 'cancel'>,
  ask: (request: Incoming) => Request | null | undefined | Promise<Request | null | undefined>,
  options?: { legacyHeaders?: boolean; count?: Count; holdMs?: number },
): (request: Incoming, response: ServerResponse, next: (error?: unknown) => void) => Promise<void>;
