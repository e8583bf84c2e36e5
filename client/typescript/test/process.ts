import { spawn } from "node:child_process";
import { EventEmitter, once } from "node:events";
import { createInterface } from "node:readline";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";

/** The folder of this package, where programs are started: they may import it by its name. */
export const folder = fileURLToPath(new URL("../..", import.meta.url));

/** The example agent, as tsc made it. */
export const shopAgent = fileURLToPath(new URL("../examples/shop-agent.js", import.meta.url));

/** A program that a test has started. */
export interface Program {
  /** All that it has written to standard output and standard error, line by line. */
  readonly lines: string[];
  /** Sends it a signal. */
  kill(signal: NodeJS.Signals): void;
  /** Ends with its exit code, or the signal that ended it, when nothing more can come from it. */
  readonly ended: Promise<number | NodeJS.Signals>;
  /** The first group of the first line that matches, once it is there; fails if it never comes. */
  find(pattern: RegExp): Promise<string>;
}

/** Starts a program, which is killed at the end of the test if it still runs. */
export function start(t: TestContext, command: string, ...args: string[]): Program {
  const child = spawn(command, args, { cwd: folder, stdio: ["ignore", "pipe", "pipe"] });
  const lines: string[] = [];
  const news = new EventEmitter();
  for (const output of [child.stdout, child.stderr]) {
    createInterface(output).on("line", (line) => {
      lines.push(line);
      news.emit("line");
    });
  }
  let alive = true;
  const ended = once(child, "close").then(([code, signal]) => {
    alive = false;
    return (code ?? signal) as number | NodeJS.Signals;
  });
  t.after(async () => {
    child.kill("SIGKILL");
    await ended;
  });
  return {
    lines,
    ended,
    kill: (signal) => child.kill(signal),
    async find(pattern) {
      for (;;) {
        const found = lines.map((line) => pattern.exec(line)?.[1]).find((group) => group !== undefined);
        if (found !== undefined) {
          return found;
        }
        if (!alive) {
          throw new Error(`${command} never wrote ${pattern}, but:\n${lines.join("\n")}`);
        }
        await Promise.race([once(news, "line"), ended]);
      }
    },
  };
}

/** Starts the example agent on a port of its own and returns when it serves, with its address. */
export async function startShop(t: TestContext): Promise<Program & { address: string }> {
  const program = start(t, process.execPath, shopAgent, "--address", "127.0.0.1:0");
  return { ...program, address: await program.find(/^agent serves AgentService address=(.+)$/) };
}
