// Node's cluster: the primary accepts, and hands each connection to one of its
// workers (NODE_CLUSTER_SCHED_POLICY=rr), or the workers accept by themselves
// (none). Bodies are echoed and compared.
//
//     node cluster.js server PORT
//     node cluster.js client PORT SEED

'use strict';

const cluster = require('cluster');
const http = require('http');

const WORKERS = 4;
const CLIENTS = 12;
const REQUESTS = 20;
const BODY_LEN_MAX = 1_000_000;

const [role, port, seed] = process.argv.slice(2);

function serve() {
  if (cluster.isPrimary) {
    for (let i = 0; i < WORKERS; i++) cluster.fork();
    return;
  }
  http.createServer((request, response) => request.pipe(response)).listen(port, '127.0.0.1');
}

// Bytes that repeat after a prime, so that none that slipped looks right.
function bodyOf(client, request) {
  const length = 1 + ((Number(seed) + client * 7919 + request * 104729) % BODY_LEN_MAX);
  const body = Buffer.alloc(length);
  for (let i = 0; i < length; i++) body[i] = (i % 251) ^ client ^ request;
  return body;
}

function ask(agent, body) {
  return new Promise((resolve, reject) => {
    const options = { agent, port, host: '127.0.0.1', method: 'POST' };
    const request = http.request(options, (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('end', () => resolve(Buffer.concat(parts)));
    });
    request.on('error', reject);
    request.end(body);
  });
}

async function use(client) {
  // One connection for each client, kept alive.
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  let verified = 0;
  for (let request = 0; request < REQUESTS; request++) {
    const body = bodyOf(client, request);
    if (!body.equals(await ask(agent, body))) throw new Error(`client ${client}: a wrong byte`);
    verified += body.length;
  }
  agent.destroy();
  return verified;
}

async function useAll() {
  const verified = await Promise.all([...Array(CLIENTS).keys()].map(use));
  console.log(`verified ${verified.reduce((a, b) => a + b)} bytes`);
}

if (role === 'server') serve();
else useAll();
