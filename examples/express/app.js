// Express behind Tidegate: every request by address, and log-ins by user and address.
//
//   tidegate serve
//   npm install && node app.js
//   curl -i http://127.0.0.1:8000/          # the sixth in a row is a 429
import express from 'express';
import { Client } from 'tidegate';
import { limit } from 'tidegate/express';

const gate = new Client(); // TIDEGATE_SERVER, or http://127.0.0.1:7400
const app = express();

// Health checks are not limited.
const byAddress = ({ path, ip }) => (path === '/health' ? null : { limiter: 'api', key: ip });
app.use(limit(gate, byAddress, { legacyHeaders: true }));

// Both must allow, and both are charged or neither.
const byUserAndAddress = ({ body, ip }) => ({ domain: 'login', attributes: { user: body.user, ip } });
const form = express.urlencoded();

app.get('/', (request, response) => response.send('welcome'));
app.get('/health', (request, response) => response.send('ok'));
app.post('/login', form, limit(gate, byUserAndAddress), (request, response) => response.send(`welcome, ${request.body.user}`));

const server = app.listen(process.env.PORT ?? 8000, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}`));
