import assert from "node:assert/strict";
import { test } from "node:test";

import { Agent, type Piece, type RespondRequest, Role } from "@parleyhq/client";

import { ScriptedAgent, serveAgent, tempFolder } from "../../../../../client/typescript/test/parleyd.js";
import { converse, options, startConsole } from "./console.js";

/** Asks a tool for the weather. */
class WeatherAgent extends Agent {
  override async *respond({ messages }: RespondRequest): AsyncGenerator<Piece> {
    const result = messages.at(-1)?.toolResult;
    yield result
      ? `It is: ${result.content}`
      : { toolCall: { id: "call-1", name: "weather", arguments: '{"city": "Oslo"}' } };
  }
}

test("from the front page to the tool call that hangs, its answer and its routing", options, async (t) => {
  const { address } = await serveAgent(t, new WeatherAgent());
  const { client, open } = await startConsole(t, { agent: address });
  for (let i = 0; i < 30; i++) {
    await converse(client, `other-${i}`, "a question", "an answer");
  }
  for await (const _ of client.chat({ conversationId: "hangs", content: "what is the weather?" })) {
    // Until the turn waits for the result.
  }

  const page = await open();
  await page.locator(".row", { hasText: "waits for a result" }).waitFor();
  await page.getByRole("link", { name: /Turns/ }).click();
  await page.locator(".chip[aria-current]", { hasText: "Waiting" }).waitFor();
  const row = page.locator("tr.turn", { hasText: "weather" });
  await row.getByRole("link", { name: "hangs" }).click();
  await page.getByLabel("Result of weather").fill("rain");
  await page.getByRole("button", { name: "Send the result" }).click();
  await page.locator(".message", { hasText: "It is: rain" }).waitFor();
  assert.equal(await page.locator(".message").getByText("waits for a result").count(), 0);
  await page.locator(".row").getByText("waits for a result").waitFor({ state: "detached" });
  await page.locator(".tabs").getByRole("link", { name: "Routing" }).click();
  await page.locator(".recent-agents", { hasText: "own" }).waitFor();
  await page.locator(".recent-messages", { hasText: "rain" }).waitFor();
});

test("the routing view shows what a coordinator gets, and changes the lease", options, async (t) => {
  const { client, open } = await startConsole(t);
  await client.appendMessages({
    conversationId: "c",
    messages: [
      { role: Role.ROLE_USER, content: "find libraries" },
      {
        role: Role.ROLE_ASSISTANT,
        agent: "searcher",
        content: "Redux, Zustand",
        summary: "searched for libraries",
        structuredData: [{ type: "library_list", value: ["Redux", "Zustand"] }],
      },
      ...[1, 2, 3].map((n) => ({ role: Role.ROLE_USER, content: `question ${n}` })),
    ],
  });
  const page = await open("#/conversations/c/routing");
  await page.locator(".summary-part.text", { hasText: "Previous: searched for libraries" }).waitFor();
  await page.locator(".referenced-data", { hasText: "library_list" }).waitFor();
  assert.equal(await page.locator(".recent-messages", { hasText: "question 1" }).count(), 1);
  await page.getByLabel("message_limit").last().fill("1");
  await page.keyboard.press("Enter");
  await page.locator(".recent-messages:not(:has-text('question 2'))", { hasText: "question 3" }).waitFor();
  await client.appendMessages({
    conversationId: "c",
    messages: [{ role: Role.ROLE_USER, content: "question 4" }],
  });
  await page.locator(".recent-messages", { hasText: "question 4" }).waitFor();

  const form = page.locator(".lease-form");
  await form.getByLabel("Agent").fill("planner");
  await form.getByLabel("Reason").fill("it plans");
  await form.getByLabel("Minutes").fill("5");
  await form.getByRole("button", { name: "Set the lease" }).click();
  await page.locator(".lease-end").waitFor();
  const { conversation } = await client.getConversation({ conversationId: "c" });
  assert.equal(conversation!.activeAgent!.agent, "planner");
  await form.getByRole("button", { name: "End the lease" }).click();
  await page.locator(".lease-end").waitFor({ state: "detached" });
});

test("the context view marks what is left out", options, async (t) => {
  const { client, open } = await startConsole(t);
  await converse(client, "c", "one", "two", "three", "four", "five", "six");
  const page = await open("#/conversations/c/context");
  await page.locator('article[data-sequence="6"]').waitFor();
  await page.getByLabel("max_exchanges").last().fill("1");
  await page.keyboard.press("Enter");
  await page.locator(".left-out").nth(3).waitFor();
  const kept = page.locator("article.message:not(.left-out)");
  const sequences = await kept.evaluateAll((all) => all.map((one) => one.getAttribute("data-sequence")));
  assert.deepEqual(sequences.sort(), ["5", "6"]);
  await page.locator(".omitted-count", { hasText: "4" }).waitFor();
});

test("the timeline of a turn follows its events", options, async (t) => {
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const { client, open } = await startConsole(t, { agent: address });
  const events = client.chat({ conversationId: "c", content: "hello" })[Symbol.asyncIterator]();
  const { value } = await events.next();
  const page = await open(`#/conversations/c/turns/${value.turnId}`);
  await page.locator("tr.turn-event.started").waitFor();
  agent.send("some text");
  await page.locator("tr.turn-event.textDelta", { hasText: "some text" }).waitFor();
  agent.end();
  await page.locator("tr.turn-event.finished").waitFor();
});

test("the log is shown by day, searched, and kept after its conversation", options, async (t) => {
  const { client, open } = await startConsole(t, {
    data: await tempFolder(t),
    more: { interaction_log: true },
  });
  await converse(client, "c", "goals of the QUARTER", "noted");
  await converse(client, "d", "another subject");
  const page = await open("#/log");
  await page.locator(".entry").nth(2).waitFor();
  await page.getByLabel("Search for a text").fill("quarter");
  await page.keyboard.press("Enter");
  await page.locator(".entry mark", { hasText: "QUARTER" }).waitFor();
  assert.equal(await page.locator(".entry").count(), 1);
  await client.deleteConversation({ conversationId: "c" });
  await page.goto(`${new URL(page.url()).origin}/#/conversations/c/log`);
  await page.locator(".entry", { hasText: "noted" }).waitFor();
  await page.getByText("does not exist").waitFor();
});

test("the server view shows statistics, agents and settings without secrets", options, async (t) => {
  process.env["MODEL_KEY"] = "sk-secret"; // The server inherits it.
  t.after(() => delete process.env["MODEL_KEY"]);
  const { client, open } = await startConsole(t, {
    more: {
      agents: {
        model: { kind: "openai", base_url: "http://127.0.0.1:1", model: "m", api_key_env: "MODEL_KEY" },
      },
    },
  });
  await converse(client, "c", "hello");
  const page = await open("#/server");
  await page.locator('figure[data-plot="conversations"] .plot-value', { hasText: "1" }).waitFor();
  await page.locator('tr[data-agent="model"] .kind', { hasText: "openai" }).waitFor();
  await page.getByText("Settings in effect").click();
  await page.locator(".settings-text", { hasText: "api_key_env: MODEL_KEY" }).waitFor();
  assert.ok(!(await page.content()).includes("sk-secret"));
});

test("a page of another site may link to the console but not call the API", options, async (t) => {
  const { url } = await startConsole(t);
  const headers = { "sec-fetch-site": "cross-site", origin: "https://other.example" };
  assert.equal((await fetch(`${url}/`, { headers })).status, 200);
  for (const path of ["/console/session", "/console/settings", "/v1/conversations"]) {
    assert.equal((await fetch(url + path, { headers })).status, 403, path);
  }
});
