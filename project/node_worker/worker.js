// A worker in JavaScript, beside Python workers on the same table.
//
//     npm install
//     DATABASE_URL=postgresql://… node worker.js jobs    (or PGHOST, PGDATABASE, …)
//
// It says what it does a line at a time. On SIGTERM it gives its job back and stops.
'use strict';

const crypto = require('node:crypto');
const os = require('node:os');
const { setTimeout: sleep } = require('node:timers/promises');
const { Client, escapeIdentifier } = require('pg');

const table = process.argv[2] ?? 'jobs';
const beatMs = Number(process.env.HEARTBEAT_SEC ?? 15) * 1000;
const idleMs = 200;
const longestTimeoutMs = 2 ** 31 - 1;

// Never used again after a restart: with the epoch it is the proof of a lease.
const me = `${os.hostname()}:${process.pid}:${crypto.randomBytes(4).toString('hex')}`;

let jobsInHand = 0;

const stopping = new AbortController();
process.on('SIGTERM', () => stopping.abort());

const verb = (name) => escapeIdentifier(`${table}_${name}`);
const say = (what, job) => console.log(what, job.id);

async function connect() {
  const client = new Client({ connectionString: process.env.DATABASE_URL || undefined });
  // Without its database a worker is of no use: its lease runs out, another one goes on.
  client.on('error', (error) => {
    console.error(error.message);
    process.exit(1);
  });
  await client.connect();
  return client;
}

async function ask(client, name, held) {
  const { rows } = await client.query(`SELECT ${verb(name)}($1, $2, $3) AS held`, held);
  return rows[0].held;
}

// Presence: this worker holds a lock on the session of its client, which the server frees when the
// process is killed, and says every beat that it is here. Through a pooler the lease alone decides.
function present(client) {
  let renewing, answered;

  async function renew() {
    try {
      const here = [me, client.processID, jobsInHand];
      await client.query('SELECT jobreaper_worker_here($1, $2, $3)', here);
    } catch (error) {
      console.error(`presence: ${error.message}`);
    }
    if (!left) renewing = setTimeout(() => (answered = renew()), beatMs);
  }

  let left = false;
  async function leave() {
    left = true;
    clearTimeout(renewing);
    await answered;
    await client.query('SELECT jobreaper_worker_left($1)', [me]);
  }

  answered = renew();
  return { said: answered, leave };
}

// The lease of one job: `lost` is aborted when the database says so, or when by the local clock,
// which nobody sets, it must have run out. One timer watches for that, whatever becomes of the beats.
function keep(heart, job, claimedAt) {
  const held = [job.id, me, job.lease_epoch];
  const lost = new AbortController();
  const lengthMs = job.lease_expires_at - job.claimed_at;
  // No beat renews a lease beyond its job's deadline.
  const deadlineAt = job.deadline_at ? claimedAt + (job.deadline_at - job.claimed_at) : Infinity;
  let runsOutAt, watching, beating, answered;

  function watch() {
    const leftMs = runsOutAt - performance.now();
    if (leftMs <= 0) lost.abort();
    else watching = setTimeout(watch, Math.min(leftMs, longestTimeoutMs));
  }

  function renewed(at) {
    runsOutAt = Math.min(at + lengthMs, deadlineAt);
    clearTimeout(watching);
    watch();
  }

  async function beat() {
    const sentAt = performance.now();
    try {
      if (await ask(heart, 'heartbeat', held)) renewed(sentAt);
      else lost.abort();
    } catch (error) {
      console.error(`heartbeat: ${error.message}`);
    }
  }

  // The next beat waits for the answer to the last.
  function beatLater() {
    beating = setTimeout(() => {
      answered = beat().then(() => {
        if (!done && !lost.signal.aborted) beatLater();
      });
    }, beatMs);
  }

  let done = false;
  async function letGo() {
    done = true;
    clearTimeout(beating);
    await answered;
    clearTimeout(watching);
  }

  renewed(claimedAt);
  beatLater();
  return { held, lost: lost.signal, letGo };
}

// The work itself. A real one does what the job's stage and payload say, and stops when it is told to.
async function work(job, signal) {
  await sleep((job.payload.seconds ?? 0) * 1000, undefined, { signal });
}

async function run(db, heart, job, claimedAt) {
  const { held, lost, letGo } = keep(heart, job, claimedAt);
  jobsInHand = 1;
  say('claimed', job);
  try {
    await work(job, AbortSignal.any([lost, stopping.signal]));
    say((await ask(db, 'finish', held)) ? 'finished' : 'refused', job);
  } catch (error) {
    if (lost.aborted) say('lost', job);
    else if (stopping.signal.aborted) {
      say((await ask(db, 'release', held)) ? 'released' : 'refused', job);
    } else {
      const failure = [...held, error.name, error.message];
      await db.query(`SELECT ${verb('fail')}($1, $2, $3, $4, $5)`, failure);
      say('failed', job);
    }
  } finally {
    jobsInHand = 0;
    await letGo();
  }
}

async function main() {
  // Beats have a connection of their own: the work's may be in the middle of a transaction.
  const [db, heart] = await Promise.all([connect(), connect()]);
  const presence = present(heart);
  await presence.said;
  console.log('ready');
  while (!stopping.signal.aborted) {
    const claimedAt = performance.now();
    const { rows } = await db.query(`SELECT * FROM ${verb('claim')}($1)`, [me]);
    if (rows.length) await run(db, heart, rows[0], claimedAt);
    else await sleep(idleMs, undefined, { signal: stopping.signal }).catch(() => {});
  }
  await presence.leave();
  await Promise.all([db.end(), heart.end()]);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
