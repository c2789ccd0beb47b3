import type { Client, Request } from './tidegate.js';

/** A hook for `onRequest`; what is denied goes no further. `ask` may return null to let a request pass unasked. */
export function limit<Incoming = any>(
  gate: Pick<Client, 'ask'>,
  ask: (request: Incoming) => Request | null | undefined,
  options?: { legacyHeaders?: boolean },
): (request: Incoming, reply: any) => Promise<unknown>;
