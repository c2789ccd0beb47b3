// followStomp with a token on @stomp/stompjs: node stompjs_token.mjs ADDRESS STREAM TOKEN
// One line for each message, and one for the ERROR of a token that may not.
import { createRequire } from 'node:module';
import { followStomp } from '../../../../clients/js/tidegate-events.js';

const require = createRequire(`${process.env.CLIENTS}/`);
const { Client } = require('@stomp/stompjs');
const { WebSocket } = require('ws');
const [address, stream, token] = process.argv.slice(2);
const client = new Client({
  webSocketFactory: () => new WebSocket(`ws://${address}/ws`, ['v12.stomp']),
  connectHeaders: { 'x-page': 'orders' },
  onStompError: (frame) => {
    console.log('ERROR', frame.headers.message);
    process.exit(1);
  },
});
followStomp(client, stream, {
  durationMs: 3600000,
  token,
  onMessage: ({ messageType, eventTime }) => {
    console.log(messageType, eventTime?.event ?? '');
    if (eventTime) process.exit(0);
  },
});
client.activate();
