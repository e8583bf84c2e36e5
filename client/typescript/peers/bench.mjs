// What a graph costs with ParleySaver, compared with LangGraph's saver for PostgreSQL.
//
// The graph answers each message with 2 KB. Two graphs take turns, one for each saver, and each turn is timed alone.
// Both servers commit each checkpoint to the disk. PostgreSQL is a server of its own in a temporary folder, from
// /usr/lib/postgresql or the folder in PGBIN. run.sh must have run before.
//
//     PARLEYD=../../../bin/parleyd node bench.mjs
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, chownSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout } from "node:timers/promises";

import { AIMessage, HumanMessage } from "@langchain/core/messages";
import { MessagesAnnotation, StateGraph } from "@langchain/langgraph";
import { PostgresSaver } from "@langchain/langgraph-checkpoint-postgres";
import { ParleySaver } from "@parleyhq/client/langgraph";

const turns = 100;
const maxRounds = 5; // or fewer, within the time
const maxSeconds = 55; // for all rounds

const parleyd = process.env.PARLEYD;
if (!parleyd) {
  throw new Error("bench.mjs: set PARLEYD to the path of a parleyd");
}
const installed = "/usr/lib/postgresql"; // of Debian, with a folder for each version
const programs = process.env.PGBIN ?? join(installed, readdirSync(installed).sort().at(-1) ?? "", "bin");

const folder = mkdtempSync(join(tmpdir(), "parley-"));
chmodSync(folder, 0o755);
const ended = [];

/** Starts a server, which ends with the program. */
function start(program, args, options = {}) {
  const child = spawn(program, args, { cwd: folder, stdio: "ignore", ...options });
  ended.push(async () => {
    const exit = once(child, "exit");
    child.kill("SIGTERM");
    await exit;
  });
}

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** Starts a PostgreSQL with its default settings and returns how to connect. */
async function postgres() {
  const home = join(folder, "postgres");
  mkdirSync(home);
  const account = {};
  if (process.getuid() === 0) {
    // PostgreSQL does not run as root.
    const [uid, gid] = ["-u", "-g"].map((flag) => Number(execFileSync("id", [flag, "nobody"])));
    Object.assign(account, { uid, gid });
    chownSync(home, uid, gid);
  }
  const [data, port] = [join(home, "data"), await freePort()];
  const initialize = ["--auth=trust", "--username=bench", `--pgdata=${data}`];
  execFileSync(join(programs, "initdb"), initialize, { cwd: home, stdio: "ignore", ...account });
  start(join(programs, "postgres"), ["-D", data, "-h", "127.0.0.1", "-p", `${port}`, "-k", home], account);
  for (;;) {
    try {
      execFileSync(join(programs, "pg_isready"), ["--host=127.0.0.1", `--port=${port}`]);
      return `postgresql://bench@127.0.0.1:${port}/postgres`;
    } catch {
      await setTimeout(50);
    }
  }
}

/** A graph that answers each message with 2 KB. */
function graphWith(checkpointer) {
  return new StateGraph(MessagesAnnotation)
    .addNode("answer", () => ({ messages: [new AIMessage("x".repeat(2000))] }))
    .addEdge("__start__", "answer")
    .addEdge("answer", "__end__")
    .compile({ checkpointer });
}

/** Returns the quantiles of numbers. */
function quantiles(numbers) {
  const sorted = numbers.toSorted((a, b) => a - b);
  return (at) => sorted[Math.floor(at * (sorted.length - 1))];
}

try {
  const address = `127.0.0.1:${await freePort()}`;
  const flags = ["--store=bolt", `--data-dir=${join(folder, "parley")}`, "--interaction-log=false"];
  const limits = ["--max-conversation-bytes=67108864"];
  start(resolve(parleyd), [`--grpc-address=${address}`, "--http-address=", ...flags, ...limits]);
  const inPostgres = PostgresSaver.fromConnString(await postgres());
  await inPostgres.setup();
  ended.unshift(() => inPostgres.end());
  const graphs = { parley: graphWith(new ParleySaver({ server: address })), postgres: graphWith(inPostgres) };
  const times = { parley: [], postgres: [] };
  const began = performance.now();
  let round = 0;
  do {
    round++;
    for (let turn = 0; turn < turns; turn++) {
      for (const name of turn % 2 ? ["parley", "postgres"] : ["postgres", "parley"]) {
        const started = performance.now();
        await graphs[name].invoke(
          { messages: [new HumanMessage(`turn ${turn}`)] },
          { configurable: { thread_id: `graph ${round}` } },
        );
        times[name].push(performance.now() - started);
      }
    }
  } while (round < maxRounds && ((performance.now() - began) / 1000) * (1 + 1 / round) < maxSeconds);
  console.log(`${round} graphs of ${turns} turns with each saver`);
  const total = Object.fromEntries(
    Object.entries(times).map(([name, each]) => [name, each.reduce((a, b) => a + b)]),
  );
  for (const [name, sum] of Object.entries(total)) {
    console.log(`${name}: ${Math.round(sum / round)} ms for a graph`);
  }
  const ratio = quantiles(times.parley.map((ours, i) => ours / times.postgres[i]));
  const [low, high] = [0.25, 0.75].map((at) => ratio(at).toFixed(2));
  const all = (total.parley / total.postgres).toFixed(2);
  console.log(`parley / postgres: ${all} (half of the turns ${low} to ${high})`);
} finally {
  for (const end of ended) {
    await end();
  }
  rmSync(folder, { recursive: true });
}
