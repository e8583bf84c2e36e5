import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";

import { Agent, type Piece, type RespondRequest, TurnState } from "@parleyhq/client";
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

/** Starts a turn of an agent that is not the default one. It ends with these calls. */
async function callTools(t: TestContext, ...names: string[]) {
  const calling = new (class extends Agent {
    override async *respond({ messages }: RespondRequest): AsyncGenerator<Piece> {
      const results = messages.filter(({ toolResult }) => toolResult).map(({ toolResult }) => toolResult!);
      if (results.length > 0) {
        yield `got ${results.map(({ name, content, isError }) => `${name}=${content}${isError ? "!" : ""}`)}`;
        return;
      }
      for (const name of names) {
        yield { toolCall: { id: `call-${name}`, name, arguments: "{}" } };
      }
    }
  })();
  const { address } = await serveAgent(t, calling);
  const console = await startConsole(t, {
    more: { agents: { caller: { kind: "remote", address } } },
  });
  for await (const _ of console.client.chat({
    conversationId: "c",
    content: "look it up",
    agent: "caller",
  })) {
    // Until the turn waits for the results.
  }
  return console;
}

test("a result goes to the agent that has called the tool", options, async (t) => {
  const { client, open } = await callTools(t, "stock");
  const page = await open("#/conversations/c");
  await page.locator(".result-form", { hasText: "to the agent caller" }).waitFor();
  const result = page.getByLabel("Result of stock");
  await result.fill("two");
  await result.press("Enter");
  await page.keyboard.type("chairs");
  assert.equal(await result.inputValue(), "two\nchairs");
  await result.press("Control+Enter");
  await page.locator(".message", { hasText: "got stock=two\nchairs" }).waitFor();
  const { turns } = await client.listTurns({ conversationId: "c" });
  assert.deepEqual(
    turns.map(({ agent }) => agent),
    ["caller", "caller"],
  );
});

test("the results of parallel calls are sent together", options, async (t) => {
  const { client, open } = await callTools(t, "stock", "price");
  const page = await open("#/conversations/c");
  await page.getByLabel("Result of stock").fill("two");
  await page.getByLabel("Result of price").fill("unknown");
  await page.getByLabel("Tool call price").getByLabel("the call failed").check();
  await page.getByRole("button", { name: "Send the 2 results" }).click();
  await page.locator(".message", { hasText: "got stock=two,price=unknown!" }).waitFor();
  await page.locator(".result-form").waitFor({ state: "detached" });
  const { turns } = await client.listTurns({ conversationId: "c" });
  assert.equal(turns.length, 2);
});

test("an empty result is sent after a question", options, async (t) => {
  const { client, open } = await callTools(t, "stock", "price");
  const page = await open("#/conversations/c");
  await page.getByLabel("Result of stock").fill("two");
  const send = page.getByRole("button", { name: "Send the 2 results" });
  await send.click();
  const dialog = page.getByRole("dialog", { name: "Send an empty result?" });
  await dialog.getByText("Nothing is written as the result of price call-price.").waitFor();
  await dialog.getByRole("button", { name: "Cancel" }).click();
  assert.equal((await client.listTurns({ conversationId: "c" })).turns.length, 1);
  await send.click();
  await dialog.getByRole("button", { name: "Send" }).click();
  await page.locator(".message", { hasText: "got stock=two,price=" }).waitFor();
});

test("a result that is not sent stays when another part of the conversation is shown", options, async (t) => {
  const { open } = await callTools(t, "stock");
  const page = await open("#/conversations/c");
  const result = page.getByLabel("Result of stock");
  await result.fill("half of a resu");
  await page.getByLabel("the call failed").check();
  await page.locator(".tabs").getByRole("link", { name: "Routing" }).click();
  await result.waitFor({ state: "detached" });
  await page.locator(".tabs").getByRole("link", { name: "Messages" }).click();
  await result.waitFor();
  assert.equal(await result.inputValue(), "half of a resu");
  assert.ok(await page.getByLabel("the call failed").isChecked());
  // A turn that runs refuses the result.
  await page.route("**/v1/chat", (route) =>
    route.fulfill({ status: 409, json: { code: 10, message: "another turn is running" } }),
  );
  await page.getByRole("button", { name: "Send the result" }).click();
  await page.locator(".result-form", { hasText: "The result was not sent." }).waitFor();
  await page.locator(".result-form .failure", { hasText: "another turn is running" }).waitFor();
  assert.equal(await result.inputValue(), "half of a resu");
});
