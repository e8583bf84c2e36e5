import assert from "node:assert/strict";
import { test } from "node:test";

import { TurnState } from "@parleyhq/client";
import type { Page } from "playwright-core";
import { ScriptedAgent, serveAgent } from "../../../../../client/typescript/test/parleyd.js";
import { converse, freePort, options, settle, startConsole } from "./console.js";

/** Writes a message and presses Enter. */
async function ask(page: Page, text: string): Promise<void> {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
}

/** Asks a question whose answer takes until the test ends it, and waits until it runs. */
async function askSlowly(page: Page): Promise<void> {
  await ask(page, "the first question");
  await page.locator(".answer").waitFor();
}

test("a message that waits in the queue is stored, whichever view is shown", options, async (t) => {
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const { client, open } = await startConsole(t, { agent: address });
  await converse(client, "c", "hello", "hello");
  const page = await open("#/conversations/c");
  // Nothing else reads the turn.
  await page.route(/\/turns\/[^/]+\/events/, () => {});
  await askSlowly(page);
  await ask(page, "the second question");
  await page.locator(".queued-message", { hasText: "the second question" }).waitFor();
  const text = page.getByLabel("Message", { exact: true });
  assert.equal(await text.inputValue(), "");
  await page.locator(".tabs").getByRole("link", { name: "Turns" }).click();
  await page.locator("tr.turn", { hasText: "queued" }).waitFor();
  await settle(page);
  const { turns } = await client.listTurns({ conversationId: "c", states: [TurnState.TURN_STATE_QUEUED] });
  assert.equal(turns.length, 1);
  await page.locator(".tabs").getByRole("link", { name: "Messages" }).click();
  await page.locator(".queued-message", { hasText: "the second question" }).waitFor();
  agent.send("an answer");
  agent.end();
  await page.locator(".message.user", { hasText: "the second question" }).waitFor();
  await page.locator(".queued-message").waitFor({ state: "detached" });
  assert.equal(await text.inputValue(), "");
});

test("a message that is removed from the queue is in the field again", options, async (t) => {
  const { address } = await serveAgent(t, new ScriptedAgent());
  const { client, open } = await startConsole(t, { agent: address });
  await converse(client, "c", "hello", "hello");
  const page = await open("#/conversations/c");
  await askSlowly(page);
  await ask(page, "the second question");
  await page.locator(".queued-message").waitFor();
  const text = page.getByLabel("Message", { exact: true });
  await text.fill("another draft");
  const { turns } = await client.listTurns({ conversationId: "c", states: [TurnState.TURN_STATE_QUEUED] });
  await client.cancelTurn({ conversationId: "c", turnId: turns[0]!.id });
  const failure = page.locator(".composer .failure");
  await failure.getByText("The message was not sent. Its text is in the field again.").waitFor();
  assert.equal(await text.inputValue(), "the second question\nanother draft");
  assert.equal(await page.locator(".queued-message").count(), 0);
  await text.press("Enter");
  await page.locator(".queued-message").getByRole("button", { name: "Take back" }).click();
  await page.locator(".queued-message").waitFor({ state: "detached" });
  assert.equal(await text.inputValue(), "the second question\nanother draft");
  assert.equal(await failure.count(), 0);
});

test("the page works while three messages wait, and refuses a fourth one", options, async (t) => {
  const { address } = await serveAgent(t, new ScriptedAgent());
  const { client, open } = await startConsole(t, { agent: address });
  await converse(client, "c", "hello", "hello");
  const page = await open("#/conversations/c");
  await askSlowly(page);
  for (let i = 1; i <= 3; i++) {
    await ask(page, `question ${i}`);
    await page.locator(".queued-message", { hasText: `question ${i}` }).waitFor();
  }
  await ask(page, "question 4");
  await page.locator(".composer .failure", { hasText: "3 messages of this page wait." }).waitFor();
  assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "question 4");
  await page.locator(".tabs").getByRole("link", { name: "Turns" }).click();
  await page.locator("tr.turn", { hasText: "queued" }).nth(2).waitFor();
  const dialog = page.waitForEvent("dialog");
  const reload = page.reload();
  const asked = await dialog;
  assert.equal(asked.type(), "beforeunload");
  await asked.accept();
  await reload;
});

test("an error says that the message was not sent, until its text is changed", options, async (t) => {
  const { client, open, server } = await startConsole(t, {
    more: { http_address: `127.0.0.1:${await freePort()}` },
  });
  await converse(client, "c", "hello", "hello");
  const page = await open("#/conversations/c");
  await page.locator('[data-sequence="2"]').waitFor();
  server.kill("SIGKILL");
  await server.ended;
  await ask(page, "are you there?");
  const failure = page.locator(".composer .failure");
  await failure.getByText("The message was not sent. Its text is in the field again.").waitFor();
  const text = page.getByLabel("Message", { exact: true });
  assert.equal(await text.inputValue(), "are you there?");
  await text.press("End");
  await page.keyboard.type("?");
  await failure.waitFor({ state: "detached" });
  assert.equal(await text.inputValue(), "are you there??");
});
