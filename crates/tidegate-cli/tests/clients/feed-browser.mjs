// followFeed on a browser's own EventSource; nginx writes down what is asked of /said.
// Says the messages, and "closed" whenever an EventSource gave up for good.
import { followFeed } from './tidegate-events.js';

let said = Promise.resolve();
const say = (line) => {
  said = said.then(() => fetch(`/said?${encodeURIComponent(line)}`)).catch(() => {});
};

class Watched extends EventSource {
  constructor(address) {
    super(address);
    this.addEventListener('error', () => {
      if (this.readyState === EventSource.CLOSED) say('closed');
    });
  }
}
followFeed('', 'orders', {
  durationMs: 3600000,
  Source: Watched,
  onMessage: ({ messageType, eventTime, epoch }) => say(`${messageType} ${eventTime?.event ?? epoch}`),
});
