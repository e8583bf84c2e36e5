import { spawn } from "node:child_process";
import { EventEmitter, once } from "node:events";
import { createInterface } from "node:readline";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";

/** The folder of this package. Programs start there, so that they can import the package by name. */
export const folder = fileURLToPath(new URL("../..", import.meta.url));

/** The compiled example agent. */
export const shopAgent = fileURLToPath(new URL("../examples/shop-agent.js", import.meta.url));

/** A program of a test. */
export interface Program {
  /** The lines of its standard output and standard error. */
  readonly lines: string[];
  /** Sends it a signal. */
  kill(signal: NodeJS.Signals): void;
  /** Resolves to its exit code, or the signal that ended it, after its output is closed. */
  readonly ended: Promise<number | NodeJS.Signals>;
  /** Waits for a line that matches. Returns the first group. Throws if the program ends before. */
  find(pattern: RegExp): Promise<string>;
}

/** Starts a program. The end of the test kills it if it still runs. */
export function start(t: TestContext, command: string, ...args: string[]): Program {
  const child = spawn(command, args, { cwd: folder, stdio: ["ignore", "pipe", "pipe"] });
  const lines: string[] = [];
  const changes = new EventEmitter();
  for (const output of [child.stdout, child.stderr]) {
    createInterface(output).on("line", (line) => {
      lines.push(line);
      changes.emit("line");
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
          throw new Error(`${command} ended without a line ${pattern}; output:\n${lines.join("\n")}`);
        }
        await Promise.race([once(changes, "line"), ended]);
      }
    },
  };
}

/** Starts the example agent on a free port. Returns it with its address once it serves. */
export async function startShop(t: TestContext): Promise<Program & { address: string }> {
  const program = start(t, process.execPath, shopAgent, "--address", "127.0.0.1:0");
  return { ...program, address: await program.find(/^agent serves AgentService address=(.+)$/) };
}
