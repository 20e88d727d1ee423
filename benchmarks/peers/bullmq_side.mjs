// Measures BullMQ: `node bullmq_side.mjs ENVIRONMENT PLAN`, one worker, bulks where there are any.
import { createHash } from "node:crypto";
import { createRequire } from "node:module";
import { join } from "node:path";

const [environment, planText] = process.argv.slice(2);
const plan = JSON.parse(planText);
const require = createRequire(join(environment, "package.json"));
const { Queue, Worker } = require("bullmq");
const IORedis = require("ioredis");

const NS_PER_S = 1e9;
const JOBS_PER_FILL = 500;
const RESULTS_WAIT_MS = 5000;

// Whoever started this may be gone by then.
setTimeout(() => process.exit(1), plan.wait_s * 1000).unref();
await (plan.act === "add" ? add() : consume());

async function add() {
  const queue = newQueue();
  const call = plan.batch === 1
    ? () => queue.add(plan.job_name, plan.payload, options())
    : () => queue.addBulk(Array.from({ length: plan.batch }, newJob));
  const repeat = async (count) => {
    for (let i = 0; i < count; i += 1) await call();
  };
  const callers = (count) => Promise.all(Array.from({ length: plan.in_flight }, () => repeat(count)));
  const each = Math.max(1, Math.floor(plan.jobs / (plan.batch * plan.in_flight)));
  await callers(1);
  const began = mark();
  await callers(each);
  reply({ ...spent(began), jobs: each * plan.in_flight * plan.batch, payload_digest: digest(plan.payload) });
}

async function consume() {
  const queue = newQueue();
  for (let start = 0; start < plan.jobs; start += JOBS_PER_FILL) {
    await queue.addBulk(Array.from({ length: Math.min(JOBS_PER_FILL, plan.jobs - start) }, newJob));
  }
  let began = null;
  let left = plan.jobs;
  const handler = async (job) => {
    began ??= mark();
    if (plan.work.fails_once && job.attemptsMade === 0) throw new Error("once");
    if (job.data.k0 !== plan.payload.k0) throw new Error("another payload arrived");
    left -= 1;
    if (left === 0) {
      const took = spent(began);
      const { concurrency } = worker;
      setImmediate(() => end({ ...took, concurrency, jobs: plan.jobs, payload_digest: digest(job.data) }));
    }
    return plan.work.result;
  };
  const worker = new Worker(plan.queue, handler, { connection: connection(), concurrency: plan.concurrency });
  worker.on("error", (error) => fail(error.message));
}

async function end(answer) {
  if (plan.work.result !== null) await untilKept();
  reply(answer);
}

async function untilKept() {
  const client = connection();
  const until = Date.now() + RESULTS_WAIT_MS;
  while ((await client.dbsize()) < plan.jobs) {
    if (Date.now() > until) fail(`${plan.jobs} results must be kept and were not`);
  }
}

function newQueue() {
  return new Queue(plan.queue, { connection: connection() });
}

function connection() {
  return new IORedis(plan.url, { maxRetriesPerRequest: null });
}

function newJob() {
  return { name: plan.job_name, data: plan.payload, opts: options() };
}

function options() {
  const { result, delay_ms: delay, fails_once: failsOnce } = plan.work;
  return { removeOnComplete: result === null, ...(delay ? { delay } : {}), ...(failsOnce ? { attempts: 2 } : {}) };
}

function digest(payload) {
  const sorted = Object.fromEntries(Object.keys(payload).sort().map((key) => [key, payload[key]]));
  return createHash("sha256").update(JSON.stringify(sorted)).digest("hex").slice(0, 16);
}

function mark() {
  return { at: process.hrtime.bigint(), cpu: process.cpuUsage() };
}

function spent(began) {
  const cpu = process.cpuUsage(began.cpu);
  const began_s = Number(began.at) / NS_PER_S;
  return {
    began_s,
    seconds: Number(process.hrtime.bigint() - began.at) / NS_PER_S,
    cpu_seconds: (cpu.user + cpu.system) / 1e6,
  };
}

function reply(answer) {
  const version = require("bullmq/package.json").version;
  const line = { concurrency: plan.concurrency, ...answer, version, loop: plan.loop };
  process.stdout.write(`${JSON.stringify(line)}\n`, () => process.exit(0));
}

function fail(why) {
  process.stderr.write(`${why}\n`);
  process.exit(1);
}
