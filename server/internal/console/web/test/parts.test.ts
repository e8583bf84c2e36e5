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
  await page.locator(".message.left-out").nth(3).waitFor({ state: "attached" });
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

test("the page of the log says that the log is off, and how to turn it on", options, async (t) => {
  const { client, open } = await startConsole(t);
  await converse(client, "c", "hello");
  const page = await open("#/log");
  await page.getByText("The interaction log of this server is off.").waitFor();
  assert.equal(await page.locator("main").getByRole("textbox").count(), 0);
  assert.equal(await page.locator("main").getByRole("button").count(), 0);
  await page.goto(`${page.url().split("#")[0]}#/conversations/c/log`);
  await page.getByText("The interaction log of this server is off.").waitFor();
  assert.equal(await page.getByText("Every message that the conversation has had").isVisible(), false);
});

test("the filters of the log are shown after a first read that failed", options, async (t) => {
  const { client, open } = await startConsole(t, {
    data: await tempFolder(t),
    more: { interaction_log: true },
  });
  await converse(client, "c", "hello");
  // The server accepts no id of this length.
  const page = await open(`#/log?conversation=${"x".repeat(2000)}`);
  await page.locator(".log-end .failure").waitFor();
  await page.getByLabel("Conversation id").fill("");
  await page.keyboard.press("Enter");
  await page.locator(".entry", { hasText: "hello" }).waitFor();
});

test("a fork names its origin, in its title, too", options, async (t) => {
  const { client, open } = await startConsole(t);
  await client.createConversation({ conversation: { id: "c", title: "The weather" } });
  await converse(client, "c", "one", "two", "three");
  const page = await open("#/conversations/c");
  await page.locator('[data-sequence="2"]').getByRole("button", { name: "Fork here" }).click();
  await page.locator(".conversation-head h2", { hasText: "The weather (fork at message 2)" }).waitFor();
  await page.locator(".row", { hasText: "The weather (fork at message 2)" }).waitFor();
  await page.locator(".fork-origin", { hasText: "fork of c up to message 2" }).waitFor();
  await page.locator('[data-sequence="1"]').getByRole("button", { name: "Fork here" }).click();
  await page.locator(".conversation-head h2", { hasText: "The weather (fork at message 1)" }).waitFor();
  await page.locator(".fork-origin a").click();
  await page.locator(".fork-origin a", { hasText: /^c$/ }).click();
  await page.locator('[data-sequence="3"]').waitFor();
});

test("what the user has unfolded stays unfolded when the conversation changes", options, async (t) => {
  const { client, open } = await startConsole(t);
  await client.appendMessages({
    conversationId: "c",
    messages: [
      {
        role: Role.ROLE_ASSISTANT,
        agent: "searcher",
        structuredData: [{ type: "library", value: { name: "Redux", facts: { license: "MIT" } } }],
      },
      ...Array(5).fill({ role: Role.ROLE_USER, content: "hello" }),
    ],
  });
  const page = await open("#/conversations/c/routing");
  const data = page.locator(".referenced-data");
  await data.locator("summary").click();
  await data.locator("summary", { hasText: "license" }).click();
  await data.getByText('"MIT"').last().waitFor();
  await page.getByText("The reply as JSON").click();
  const reply = page.locator(".reply-json");
  await reply.locator("summary", { hasText: /^summary: / }).click();
  await reply.locator("summary", { hasText: /^recentMessages/ }).click();
  await reply.locator("summary", { hasText: /^0: / }).first().waitFor();
  const unfolded = page.locator("details.json[open]");
  const before = await unfolded.count();
  await converse(client, "c", "the newest");
  await page.locator(".recent-messages", { hasText: "the newest" }).waitFor();
  await reply.getByText("lastSequence: 7").waitFor();
  assert.equal(await unfolded.count(), before);
  assert.ok(await data.getByText('"MIT"').last().isVisible());

  await page.locator(".tabs").getByRole("link", { name: "Details" }).click();
  await converse(client, "c", "one more");
  await page.locator(".details", { hasText: "lastSequence: 8" }).waitFor();
  await page.locator(".details > details > summary").click();
  await converse(client, "c", "and another");
  await page.locator(".conversation-head", { hasText: "9 messages" }).waitFor();
  assert.equal(await page.locator(".details > details[open]").count(), 0, "what was folded is unfolded");
});
