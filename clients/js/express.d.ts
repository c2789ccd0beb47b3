import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Client, Request } from './tidegate.js';

/** Asks before each request; what is denied goes no further. `ask` may return null to let a request pass unasked. */
export function limit<Incoming extends IncomingMessage = any>(
  gate: Pick<Client, 'ask'>,
  ask: (request: Incoming) => Request | null | undefined,
  options?: { legacyHeaders?: boolean },
): (request: Incoming, response: ServerResponse, next: (error?: unknown) => void) => Promise<void>;
