/** A message of a stream; a KEY_FRAME has `snapshot` and `epoch`, all others `eventTime`. */
export interface Message {
  clock: number;
  messageType: 'KEY_FRAME' | 'SUBMITTED_EVENT' | 'PUBLISHED_EVENT' | 'INVALIDATED_EVENT';
  epoch?: string;
  snapshot?: EventState[];
  eventTime?: { event: string; time: number };
}

export interface EventState {
  event: string;
  time: number;
  status: 'Valid' | 'Invalid';
}

/** What incubates on a stream, by its messages. */
export class EventModel {
  constructor(durationMs: number);
  /** Of the last message; null: no snapshot yet. */
  clock: number | null;
  epoch: string | null;
  events: Map<string, Omit<EventState, 'event'>>;
  apply(message: Message, begins?: boolean): 'applied' | 'old' | 'gap';
  snapshot(nowMs?: number): EventState[];
}

export interface FollowOptions {
  /** The stream's duration. */
  durationMs: number;
  onMessage?: (message: Message, model: EventModel) => void;
  onGap?: (model: EventModel) => void;
  token?: string | null;
}

/** Keeps a model on a Client of @stomp/stompjs, over reconnects. */
export function followStomp(client: any, stream: string, options: FollowOptions): EventModel;

/** Keeps a model on the server-sent events of a stream. */
export function followFeed(
  server: string,
  stream: string,
  options: FollowOptions & { Source?: new (address: string) => any },
): { model: EventModel; close: () => void };
