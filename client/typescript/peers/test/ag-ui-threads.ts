import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { createServer } from "node:net";
import type { TestContext } from "node:test";

import {
  type AgentSubscriber,
  type BaseEvent,
  type HttpAgent,
  type Message,
  verifyEvents,
} from "@ag-ui/client";
import { EventSchema } from "@ag-ui/core/schemas";
import { ParleyAgent, type ParleyAgentConfig } from "@parleyhq/client/ag-ui";
import { from, lastValueFrom, toArray } from "rxjs";

import type { Scripts } from "./scripts.js";
import { Parleyd } from "./server.js";

/** A server whose HTTP address stays the same when it is started again. */
export async function startServer(
  t: TestContext,
  agent?: Scripts,
  ...flags: string[]
): Promise<{ server: Parleyd; url: string; address: string }> {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const address = `127.0.0.1:${(listener.address() as AddressInfo).port}`;
  listener.close();
  await once(listener, "close");
  const server = await Parleyd.start(t, agent, `--http-address=${address}`, ...flags);
  await server.httpURL();
  return { server, address, url: `http://${address}/ag-ui/${agent ? "own" : "echo"}` };
}

/** The events of an agent, all of which must be those of the protocol. */
export class Thread {
  readonly events: BaseEvent[] = [];
  readonly #waiting = new EventTarget();

  private constructor(readonly agent: HttpAgent) {}

  static parley(config: Partial<ParleyAgentConfig> & { url: string }): Thread {
    return Thread.of(new ParleyAgent({ threadId: "t", ...config }));
  }

  static of(agent: HttpAgent): Thread {
    const thread = new Thread(agent);
    const collect: AgentSubscriber = {
      onEvent: ({ event }) => {
        thread.events.push(event);
        EventSchema.parse(event);
      },
      onMessagesChanged: () => void thread.#waiting.dispatchEvent(new Event("change")),
    };
    agent.subscribe(collect);
    return thread;
  }

  /** Adds a message of the user and runs the agent. */
  async send(content: string, runId?: string): Promise<void> {
    this.agent.addMessage({ id: `m-${content}`, role: "user", content });
    await this.run(runId);
  }

  async run(runId?: string): Promise<void> {
    await this.agent.runAgent(runId === undefined ? {} : { runId });
  }

  /** Waits until the texts of the answers end like this. */
  async shows(text: string): Promise<void> {
    while (!this.text.endsWith(text)) {
      await once(this.#waiting as never, "change");
    }
  }

  get text(): string {
    return texts(this.agent.messages).join("|");
  }

  get last(): BaseEvent {
    return this.events.at(-1)!;
  }

  /** Passes all events to verifyEvents again. */
  async verify(): Promise<void> {
    const verified = from(this.events).pipe(verifyEvents(), toArray());
    assert.equal((await lastValueFrom(verified)).length, this.events.length);
  }
}

/** The texts of messages of agents. */
export function texts(messages: readonly Message[]): string[] {
  return messages.flatMap(({ role, content }) => (role === "assistant" ? [String(content ?? "")] : []));
}

/** Fails the test if the client of AG-UI removes something from an event that the protocol does not have. */
export function forbidWarnings(t: TestContext): void {
  t.mock.method(console, "warn", (...texts: unknown[]) => assert.fail(texts.join(" ")));
}
