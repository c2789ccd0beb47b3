// followFeed on Node's own EventSource: node --experimental-eventsource feed.mjs SERVER
// Prints the messages, and "closed" whenever an EventSource gave up for good.
import { followFeed } from '../../../../clients/js/tidegate-events.js';

class Watched extends EventSource {
  constructor(address) {
    super(address);
    this.addEventListener('error', () => {
      if (this.readyState === EventSource.CLOSED) console.log('closed');
    });
  }
}
followFeed(process.argv[2], 'orders', {
  durationMs: 3600000,
  Source: Watched,
  onMessage: ({ messageType, eventTime, epoch }) => console.log(`${messageType} ${eventTime?.event ?? epoch}`),
});
// While an EventSource waits to connect again, nothing else keeps Node running.
setInterval(() => {}, 1000);
