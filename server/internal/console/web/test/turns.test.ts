import assert from "node:assert/strict";
import { test } from "node:test";

import { Agent, type Client, MessageStatus, type Piece, type RespondRequest, Role } from "@parleyhq/client";
import type { Message } from "@parleyhq/client/web";
import type { Page } from "playwright-core";

import { ScriptedAgent, serveAgent, tempFolder } from "../../../../../client/typescript/test/parleyd.js";
import { AnsweredTurns } from "../src/answered.js";
import type { Feed } from "../src/feed.js";
import { needsAnswer } from "../src/pending.js";
import type { Session } from "../src/session.js";
import { converse, freePort, options, settle, startConsole } from "./console.js";

/** Calls a tool for each question, and again for its first result. The second result gets an answer. */
class TwoCalls extends Agent {
  override async *respond({ messages }: RespondRequest): AsyncGenerator<Piece> {
    const results = messages.filter(({ toolResult }) => toolResult).length;
    yield results < 2 ? { toolCall: { id: `call-${results}`, name: "weather", arguments: "{}" } } : "rain";
  }
}

/** Returns the messages of a history, newest first: "u" of a user, "a/t!" an incomplete one of turn t, "r/t" a result. */
function parse(history: string): Message[] {
  const roles = { u: Role.ROLE_USER, a: Role.ROLE_ASSISTANT, r: Role.ROLE_TOOL, s: Role.ROLE_SYSTEM };
  return history
    .split(" ")
    .filter((word) => word !== "")
    .map((word) => {
      const [, role, turnId = ""] = /^(.)(?:\/(\w+))?/.exec(word)!;
      return {
        role: roles[role as keyof typeof roles],
        turnId,
        status: word.endsWith("!")
          ? MessageStatus.MESSAGE_STATUS_INCOMPLETE
          : MessageStatus.MESSAGE_STATUS_COMPLETE,
      } as unknown as Message;
    })
    .reverse();
}

test("a message has no answer if the server would answer it", () => {
  const histories: [string, boolean][] = [
    ["", false],
    ["u", true],
    ["s s", false],
    ["u s", true],
    ["u a/t", false],
    ["u a/t!", true],
    ["u a/t a/t!", true],
    ["u a/t! u a/x", false],
    ["u a/x a/t!", false],
    ["u a/t r", true],
    ["u a/t r/t", false],
    ["u a/t! r/t", true],
    ["u a/t r/t a/t!", true],
    ["u a/x! r/y", false],
    ["r/t", false],
    ["u r/t", false],
  ];
  for (const [history, want] of histories) {
    assert.equal(needsAnswer(parse(history), true), want, history);
  }
  for (const history of ["", "s", "a/t!", "r/t"]) {
    assert.equal(needsAnswer(parse(history), false), undefined, `${history} after older messages`);
  }
});

test("an answer is offered only for a message without one", options, async (t) => {
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const { client, open } = await startConsole(t, { agent: address });
  await converse(client, "c", "hello", "hello");
  const page = await open("#/conversations/c");
  const again = page.getByRole("button", { name: "Answer again" });
  await page.getByRole("button", { name: "Delete…" }).waitFor();
  await settle(page);
  assert.equal(await again.count(), 0, "the newest message has an answer");
  await converse(client, "c", "are you there?");
  await again.click();
  await page.getByRole("button", { name: "Cancel the turn" }).click();
  await again.waitFor();
  agent.send("I am");
  agent.end();
  await again.click();
  await page.locator(".message", { hasText: "I am" }).waitFor();
  await again.waitFor({ state: "hidden" });
});

test("the head stays if the page cannot read whether a message has an answer", options, async (t) => {
  const { client, open } = await startConsole(t);
  await converse(client, "c", "hello", "hello");
  const page = await open();
  let failures = 0;
  await page.route(/\/messages\?.*pageSize=1(&|$)/, async (route) => {
    await route.fulfill({ status: 500, json: { code: 13, message: "the disk failed" } });
    failures++;
  });
  await page.locator(".row", { hasText: "c" }).click();
  await page.getByRole("button", { name: "Delete…" }).waitFor();
  await settle(page);
  assert.ok(failures > 0, "no read has failed");
  assert.equal(await page.locator(".conversation-head .failure").count(), 0);
  assert.equal(await page.locator(".conversation-head h2").innerText(), "c");
  await page.unrouteAll();
  await converse(client, "c", "are you there?");
  await page.getByRole("button", { name: "Answer again" }).waitFor();
});

/** Sends a result of a call and waits for the end of the turn. */
async function answer(
  client: Awaited<ReturnType<typeof startConsole>>["client"],
  callId: string,
): Promise<void> {
  const toolResults = [{ callId, name: "weather", content: "rain" }];
  for await (const _ of client.chat({ conversationId: "c", toolResults })) {
    // Until the turn ends.
  }
}

/** Returns the texts of the states in a list of turns, newest first. */
function states(page: Page): Promise<string[]> {
  return page
    .locator("tr.turn .turn-state")
    .evaluateAll((all) => all.map((one) => one.textContent!.replace(/\s+/g, " ").trim()));
}

test("a turn whose calls have results says that it was answered", options, async (t) => {
  const { address } = await serveAgent(t, new TwoCalls());
  const { client, open } = await startConsole(t, { agent: address });
  for await (const _ of client.chat({ conversationId: "c", content: "what is the weather?" })) {
    // Until the turn waits for a result.
  }
  const page = await open("#/conversations/c/turns");
  await page.locator("tr.turn", { hasText: "input required" }).waitFor();
  await answer(client, "call-0");
  await page.locator("tr.turn .answered").waitFor();
  await settle(page);
  assert.deepEqual(await states(page), ["input required", "input required answered"]);
  await page.goto(`${page.url().split("#")[0]}#/turns?state=all`);
  await page.locator("tr.turn .answered").waitFor();
  assert.deepEqual(await states(page), ["input required", "input required answered"]);
  // A result that is appended starts no turn.
  await client.appendMessages({
    conversationId: "c",
    messages: [{ role: Role.ROLE_TOOL, toolResult: { callId: "call-1", name: "weather", content: "rain" } }],
  });
  await page.locator("tr.turn .answered").nth(1).waitFor();
  await page.locator("tr.turn .turn-state").first().click();
  await page.locator(".timeline-head .answered").waitFor();
});

test("a timeline that is open shows that its turn was answered", options, async (t) => {
  const { address } = await serveAgent(t, new TwoCalls());
  const { client, open } = await startConsole(t, { agent: address });
  for await (const _ of client.chat({ conversationId: "c", content: "what is the weather?" })) {
    // Until the turn waits for a result.
  }
  const { turns } = await client.listTurns({ conversationId: "c" });
  const page = await open(`#/conversations/c/turns/${turns[0]!.id}`);
  await page.locator(".timeline-head", { hasText: "input required" }).waitFor();
  await settle(page);
  await client.appendMessages({
    conversationId: "c",
    messages: [{ role: Role.ROLE_TOOL, toolResult: { callId: "call-0", name: "weather", content: "rain" } }],
  });
  await page.locator(".timeline-head .answered").waitFor();
});

test("a turn is read for all views that ask, and after any number of others", options, async (t) => {
  const { address } = await serveAgent(t, new TwoCalls());
  const { client } = await startConsole(t, { agent: address });
  for await (const _ of client.chat({ conversationId: "c", content: "what is the weather?" })) {
    // Until the turn waits for a result.
  }
  await client.appendMessages({
    conversationId: "c",
    messages: [{ role: Role.ROLE_TOOL, toolResult: { callId: "call-0", name: "weather", content: "rain" } }],
  });
  const [turn] = (await client.listTurns({ conversationId: "c" })).turns;
  const silent = { onGap: () => {}, onChange: () => {} } as unknown as Feed;
  const newAnswered = () =>
    new AnsweredTurns({ client, isLost: false } as unknown as Session, silent, new AbortController().signal);
  const answered = newAnswered();
  const leaving = new AbortController();
  let found = 0;
  const checks = [
    answered.check([turn!], leaving.signal, () => assert.fail("the view was removed")),
    answered.check([turn!], new AbortController().signal, () => found++),
  ];
  leaving.abort();
  await Promise.all(checks);
  assert.equal(found, 1);
  assert.ok(answered.has(turn!));
  const others = Array.from({ length: 60 }, (_, i) => ({ ...turn!, id: `other-${i}` }));
  const second = newAnswered();
  await second.check([...others, turn!], new AbortController().signal, () => found++);
  assert.equal(found, 2);
  assert.ok(second.has(turn!));
});

test("a timeline says which of its rows and texts are left out", options, async (t) => {
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const { client, open } = await startConsole(t, { agent: address });
  const events = client.chat({ conversationId: "c", content: "hello" })[Symbol.asyncIterator]();
  const { value } = await events.next();
  const page = await open(`#/conversations/c/turns/${value.turnId}`);
  await page.locator("tr.turn-event.started").waitFor();
  for (let i = 0; i < 2100; i++) {
    agent.send({ progress: { text: `step ${i}` } });
  }
  await page.locator("tr.turn-event.progress", { hasText: "step 2099" }).waitFor();
  await page.locator(".timeline-removed", { hasText: "101 older rows" }).waitFor();
  assert.equal(await page.locator("tr.turn-event").count(), 2000);
  agent.send("word ".repeat(10_000), "word ".repeat(15_000));
  const text = page.locator("tr.turn-event.textDelta");
  await text.getByText("The first 100,000 characters are shown, and the rest is left out.").waitFor();
  const shown = (await text.locator("div.content").first().textContent())!.length;
  assert.ok(shown <= 101_000, `${shown} characters are in the page`);
  agent.end();
  await page.locator("tr.turn-event.finished").waitFor();
});

test("a timeline that is read again does not say that rows are left out", options, async (t) => {
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const data = await tempFolder(t);
  const settings = { agent: address, data, more: { http_address: `127.0.0.1:${await freePort()}` } };
  const first = await startConsole(t, settings);
  const events = first.client.chat({ conversationId: "c", content: "hello" })[Symbol.asyncIterator]();
  const { value } = await events.next();
  const page = await first.open(`#/conversations/c/turns/${value.turnId}`);
  await page.locator("tr.turn-event.started").waitFor();
  for (let i = 0; i < 2100; i++) {
    agent.send({ progress: { text: `step ${i}` } });
  }
  await page.locator(".timeline-removed", { hasText: "older rows" }).waitFor();
  const isTurn = new RegExp(`/turns/${value.turnId}`);
  await page.route(isTurn, (route) =>
    route.fulfill({ status: 400, json: { code: 3, message: "the request failed" } }),
  );
  first.server.kill("SIGKILL");
  await first.server.ended;
  await events.return?.(undefined);
  await startConsole(t, settings);
  await page.getByText("the request failed").waitFor();
  await page.unroute(isTurn);
  await page.locator("parley-timeline").getByRole("button", { name: "Try again" }).click();
  await page.locator("tr.turn-event.finished").waitFor();
  assert.equal(await page.locator(".timeline-removed").isVisible(), false);
});

test("the context says that it shows as many messages as it may", options, async (t) => {
  const { client, open } = await startConsole(t, { more: { max_conversation_bytes: "64MiB" } });
  await client.createConversation({ conversation: { id: "c", retention: { maxMessages: 3000 } } });
  for (let i = 0; i < 11; i++) {
    await converse(client, "c", ...Array.from({ length: 100 }, (_, k) => `message ${k}`));
  }
  const page = await open("#/conversations/c/context");
  const note = page.getByText("The newest 1,000 kept messages are shown at most. Older ones are left out.");
  while ((await note.count()) === 0) {
    await page.locator(".more button").click();
    await settle(page);
  }
  assert.equal(await page.locator("article[data-sequence]").count(), 1000);
});

test("a timeline shows which events are merged, and why it has no first piece", options, async (t) => {
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const { client, open } = await startConsole(t, { agent: address });
  const events = client.chat({ conversationId: "c", content: "hello" })[Symbol.asyncIterator]();
  const { value } = await events.next();
  let length = 0;
  for (let i = 0; i < 20; i++) {
    agent.send(`piece ${i} `);
    // Without other readers, the server would merge the pieces before it counts them.
    for (; length < i + 1; length++) {
      await events.next();
    }
  }
  const page = await open(`#/conversations/c/turns/${value.turnId}`);
  const row = page.locator("tr.turn-event.textDelta");
  await row.getByText("merged events, 170 B").waitFor();
  assert.equal(await row.locator(".index").textContent(), "2–21");
  assert.equal(
    await page.locator(".timeline-head .first-piece").getAttribute("title"),
    "Known if the turn started while the page was open",
  );
  agent.send("last");
  await row.getByText("last").waitFor();
  assert.equal(await row.locator(".index").textContent(), "2–22");
  assert.equal(await row.locator(".facts").textContent(), "merged events, 174 B");
});

/** Runs a turn until it waits for a result, and returns its id. */
async function waitForResult(client: Client): Promise<string> {
  for await (const _ of client.chat({ conversationId: "c", content: "what is the weather?" })) {
    // Until the turn waits.
  }
  return (await client.listTurns({ conversationId: "c" })).turns[0]!.id;
}

test(
  "a result that the page has missed is shown after a gap, in the list and in the timeline",
  options,
  async (t) => {
    const { address } = await serveAgent(t, new TwoCalls());
    const data = await tempFolder(t);
    const settings = { agent: address, data, more: { http_address: `127.0.0.1:${await freePort()}` } };
    const first = await startConsole(t, settings);
    const turnId = await waitForResult(first.client);
    const pages = [
      await first.open("#/conversations/c/turns"),
      await first.open(`#/conversations/c/turns/${turnId}`),
    ];
    for (const page of pages) {
      await page.locator(".turn-state", { hasText: "input required" }).first().waitFor();
      await settle(page);
      await page.route(/\/v1\/watch/, (route) => route.abort());
    }
    first.server.kill("SIGKILL");
    await first.server.ended;
    const second = await startConsole(t, settings);
    await second.client.appendMessages({
      conversationId: "c",
      messages: [
        { role: Role.ROLE_TOOL, toolResult: { callId: "call-0", name: "weather", content: "rain" } },
      ],
    });
    for (const page of pages) {
      assert.equal(await page.locator(".answered").count(), 0);
      await page.unrouteAll();
      await page.locator(".answered").waitFor();
    }
  },
);

test("the list of a conversation shows its newest 1,000 turns", options, async (t) => {
  const { client, open } = await startConsole(t);
  await client.createConversation({ conversation: { id: "c", retention: { maxTurns: 2000 } } });
  for (let i = 0; i <= 1000; i++) {
    for await (const _ of client.chat({ conversationId: "c", content: "hello" })) {
      // Until the turn ends.
    }
  }
  const page = await open("#/conversations/c/turns");
  const note = page.getByText("The list shows the newest 1,000 turns at most. Older turns are left out.");
  const more = page.getByRole("button", { name: "Show more" });
  await page.locator("tr.turn").first().waitFor();
  while ((await note.count()) === 0) {
    await more.click();
    await settle(page);
  }
  assert.equal(await page.locator("tr.turn").count(), 1000);
  assert.equal(await more.count(), 0);
});

test("the list says no longer that a conversation waits when its result is stored", options, async (t) => {
  const { address } = await serveAgent(t, new TwoCalls());
  const { client, open } = await startConsole(t, { agent: address });
  await waitForResult(client);
  const page = await open("#/conversations");
  const badge = page.locator(".row", { hasText: "waits for a result" });
  await badge.waitFor();
  await settle(page);
  await page.route(/INPUT_REQUIRED/, () => {}); // The turns are not read again.
  await client.appendMessages({
    conversationId: "c",
    messages: [{ role: Role.ROLE_TOOL, toolResult: { callId: "call-0", name: "weather", content: "rain" } }],
  });
  await badge.waitFor({ state: "detached" });
  await page.locator(".waiting-count").first().waitFor({ state: "hidden" });
});
