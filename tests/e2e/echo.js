// Node on both sides: an echo server on `net`, a server on `http`, and a
// client of both.
//
//   node echo.js server PORT HTTP_PORT
//   node echo.js client PORT HTTP_PORT SEED
//
// The agreement with the driver is that of common.py.
'use strict';

const crypto = require('crypto');
const http = require('http');
const net = require('net');

const HOST = '127.0.0.1';
const CONNECTIONS = 10;
const BYTES_PER_CONNECTION = 2_000_000;
const CHUNK_LEN_MAX = 400_000;
const REQUESTS = 40;

// A prime: data that slipped by a power of two never looks right again.
const PERIOD = 1_000_003;

function fail(reason) {
  console.error(reason);
  process.exit(1);
}

/** Pseudo-random numbers in [0, 1) from a seed (xorshift32). */
function generator(seed) {
  let state = (seed * 2_654_435_761 + 1) >>> 0 || 1;
  return () => {
    state ^= state << 13;
    state >>>= 0;
    state ^= state >>> 17;
    state ^= state << 5;
    state >>>= 0;
    return state / 2 ** 32;
  };
}

/** An endless stream of bytes in which every position knows its value. */
class Pattern {
  constructor(seed) {
    const random = generator(seed);
    const block = Buffer.alloc(2 * PERIOD);
    for (let i = 0; i < PERIOD; i++) {
      block[i] = block[i + PERIOD] = Math.floor(random() * 256);
    }
    this.block = block;
  }

  at(position, length) {
    const start = position % PERIOD;
    return this.block.subarray(start, start + length);
  }

  check(position, data, what) {
    if (!data.equals(this.at(position, data.length))) {
      const good = this.at(position, data.length);
      const first = data.findIndex((byte, i) => byte !== good[i]);
      fail(`${what}: byte ${position + first} is wrong`);
    }
  }
}

// ---- server ---------------------------------------------------------------

function serve(port, httpPort) {
  // allowHalfOpen: what came before the client's end of file is still echoed.
  const echo = net.createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('error', () => socket.destroy());
    socket.pipe(socket);
  });
  const web = http.createServer((request, response) => {
    const url = new URL(request.url, `http://${HOST}`);
    if (request.method === 'POST') {
      sendHash(request, response);
    } else {
      const length = Number(url.searchParams.get('length'));
      response.end(new Pattern(Number(url.searchParams.get('seed'))).at(0, length));
    }
  });
  web.keepAliveTimeout = 60_000;
  // The echo port comes last: whoever sees it may use both.
  web.listen(httpPort, HOST, () => echo.listen(port, HOST));
}

function sendHash(request, response) {
  const hash = crypto.createHash('sha256');
  request.on('data', (data) => hash.update(data));
  request.on('end', () => response.end(hash.digest('hex')));
}

// ---- client: net ----------------------------------------------------------

/** Sends the pattern in chunks, waiting for `drain` as programs should. */
function sendPattern(socket, pattern, random) {
  let position = 0;
  const more = () => {
    while (position < BYTES_PER_CONNECTION) {
      const wish = Math.floor(CHUNK_LEN_MAX ** random());
      const length = Math.min(wish, BYTES_PER_CONNECTION - position);
      const hasRoom = socket.write(pattern.at(position, length));
      position += length;
      if (!hasRoom) {
        socket.once('drain', more);
        return;
      }
    }
  };
  more();
}

/** Resolves with the open socket when all of the pattern has come back. */
function exchange(port, seed) {
  return new Promise((resolve) => {
    const pattern = new Pattern(seed);
    const socket = net.connect({ port, host: HOST, allowHalfOpen: true });
    let position = 0;
    socket.on('error', (error) => fail(`stream ${seed}: ${error.message}`));
    socket.on('connect', () => sendPattern(socket, pattern, generator(seed)));
    socket.on('data', (data) => {
      pattern.check(position, data, `stream ${seed}`);
      position += data.length;
      if (position === BYTES_PER_CONNECTION) resolve(socket);
    });
    socket.on('end', () => {
      if (position !== BYTES_PER_CONNECTION) fail(`stream ${seed} ended at ${position}`);
    });
  });
}

/** After our end of file the server must send its own. */
function halfClose(socket) {
  return new Promise((resolve) => {
    socket.on('end', resolve);
    socket.end();
  });
}

// ---- client: http ---------------------------------------------------------

function ask(pool, httpPort, method, path, body) {
  return new Promise((resolve) => {
    const options = { agent: pool, port: httpPort, host: HOST, method, path };
    const request = http.request(options, (response) => {
      const parts = [];
      response.on('data', (data) => parts.push(data));
      response.on('end', () => resolve(Buffer.concat(parts)));
    });
    request.on('error', (error) => fail(`${method} ${path}: ${error.message}`));
    request.end(body);
  });
}

/** Downloads and uploads on one connection after another request. */
async function browse(pool, httpPort, seed) {
  const random = generator(seed);
  let verified = 0;
  for (let i = 0; i < REQUESTS; i++) {
    const length = Math.floor(PERIOD ** random());
    const pattern = new Pattern(seed + i);
    const path = `/?seed=${seed + i}&length=${length}`;
    const page = await ask(pool, httpPort, 'GET', path);
    if (page.length !== length) fail(`GET ${path}: got ${page.length} bytes`);
    pattern.check(0, page, `GET ${path}`);

    const body = pattern.at(i, length);
    const expected = crypto.createHash('sha256').update(body).digest('hex');
    const hash = await ask(pool, httpPort, 'POST', '/', body);
    if (hash.toString() !== expected) fail(`POST of ${length} bytes arrived altered`);
    verified += 2 * length;
  }
  return verified;
}

async function use(port, httpPort, seed) {
  const pool = new http.Agent({ keepAlive: true, maxSockets: 2 });
  const seeds = Array.from({ length: CONNECTIONS }, (_, i) => seed + i);
  const [verified, ...sockets] = await Promise.all([
    browse(pool, httpPort, seed),
    ...seeds.map((own) => exchange(port, own)),
  ]);
  console.log(`verified ${verified + CONNECTIONS * BYTES_PER_CONNECTION} bytes`);
  await new Promise((resolve) => process.stdin.on('end', resolve).resume());
  await Promise.all(sockets.map(halfClose));
  pool.destroy();
  sockets.forEach((socket) => socket.destroy());
}

const [role, port, httpPort, seed] = process.argv.slice(2);
if (role === 'server') {
  serve(Number(port), Number(httpPort));
} else {
  use(Number(port), Number(httpPort), Number(seed)).catch((error) => fail(error.message));
}
