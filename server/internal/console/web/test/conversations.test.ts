import assert from "node:assert/strict";
import { test } from "node:test";

import { Role } from "@parleyhq/client";
import { ScriptedAgent, serveAgent, tempFolder } from "../../../../../client/typescript/test/parleyd.js";
import { converse, freePort, options, startConsole } from "./console.js";

test("the list follows the changes", options, async (t) => {
  const { client, open } = await startConsole(t);
  await converse(client, "first", "a question", "an answer");
  const page = await open();
  await page.getByText("1 conversation", { exact: true }).waitFor();
  const rows = page.locator(".row");
  await converse(client, "second", "another question");
  await rows.nth(1).waitFor();
  assert.match(await rows.nth(0).innerText(), /second[\s\S]*another question[\s\S]*1 message/);
  await converse(client, "first", "the newest question");
  await page.locator(".row:first-child", { hasText: "the newest question" }).waitFor();
  assert.match(await rows.nth(0).innerText(), /first[\s\S]*3 messages/);
  await client.deleteConversation({ conversationId: "second" });
  await page.getByText("1 conversation", { exact: true }).waitFor();
  assert.equal(await rows.count(), 1);
});

test("the list is filtered by id, label, agent and type of data, and ordered", options, async (t) => {
  const { client, open } = await startConsole(t);
  for (const [id, team, agent, type] of [
    ["alpha", "red", "planner", "list"],
    ["beta", "blue", "planner", "invoice"],
    ["gamma", "red", "writer", "list"],
  ]) {
    await client.createConversation({ conversation: { id: id!, labels: { team: team! }, agent: agent! } });
    await client.appendMessages({
      conversationId: id!,
      messages: [
        { role: Role.ROLE_USER, content: `hello ${id}`, structuredData: [{ type: type!, value: 1 }] },
      ],
    });
  }
  await client.appendMessages({
    conversationId: "alpha",
    messages: [{ role: Role.ROLE_USER, content: "again" }],
  });
  const page = await open();
  const expect = (status: string, want: string[]) =>
    page.waitForFunction(
      ([status, want]) =>
        document.querySelector(".list-status")!.textContent!.startsWith(status!) &&
        [...document.querySelectorAll(".row .name")].map((name) => name.textContent).join() === want,
      [status, want.join()],
    );
  await expect("3 conversations", ["alpha", "gamma", "beta"]);
  await page.getByLabel("Order").selectOption("create");
  await page.locator(".row:first-child", { hasText: "gamma" }).waitFor();
  await expect("3 conversations", ["gamma", "beta", "alpha"]);
  await page.getByLabel("Filter by id or title").fill("ET");
  await page.keyboard.press("Enter");
  await expect("1 match among", ["beta"]);
  await page.getByLabel("Filter by id or title").fill("");
  await page.keyboard.press("Enter");
  await page.getByText("More filters").click();
  const filters: [string, string, string[]][] = [
    ["Filter by label, as in team=red", "team=red", ["gamma", "alpha"]],
    ["Filter by agent", "planner", ["beta", "alpha"]],
    ["Filter by type of structured data", "invoice", ["beta"]],
  ];
  for (const [label, text, want] of filters) {
    await page.getByLabel(label).fill(text);
    await page.keyboard.press("Enter");
    await expect(want.length === 1 ? "1 match among" : "2 matches among", want);
    await page.getByLabel(label).fill("");
    await page.keyboard.press("Enter");
  }
  const { hash } = new URL(page.url());
  assert.match(hash, /^#\/conversations\/\w+\/messages\?order=create$/, "the place names the filter");
});

test("the list is filtered by the agents that have answered, while the user types", options, async (t) => {
  const { client, open } = await startConsole(t);
  for await (const _ of client.chat({ conversationId: "answered", content: "hello", agent: "echo" })) {
    // Until the turn ends.
  }
  await converse(client, "other", "hello");
  const page = await open("#/conversations");
  await page.getByText("More filters").click();
  await page.getByLabel("Filter by agent").pressSequentially("echo");
  await page.getByText("1 match among 2 conversations").waitFor();
  assert.deepEqual(await page.locator(".row .name").allTextContents(), ["answered"]);
  await page.getByLabel("Filter by label, as in team=red").pressSequentially("red");
  await page.getByText("A label has the form name=value.").waitFor();
});

test("a fork is listed with its newest message", options, async (t) => {
  const { client, open } = await startConsole(t);
  await converse(client, "c", "one", "two");
  const page = await open();
  await page.locator(".row").waitFor();
  await client.forkConversation({ conversationId: "c", newConversationId: "copy" });
  await page.locator(".row", { hasText: "copy" }).getByText("two").waitFor();
});

test("an answer streams", options, async (t) => {
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const { client, open } = await startConsole(t, { agent: address });
  await converse(client, "c", "hello", "hello");
  const page = await open("#/conversations/c");
  await page.getByLabel("Message", { exact: true }).fill("tell me");
  await page.keyboard.press("Enter");
  const answer = page.locator(".answer");
  await answer.waitFor();
  await page.locator(".row .running").waitFor();
  for (const piece of ["one ", "two ", "three"]) {
    agent.send(piece);
    await answer.getByText(piece.trim()).waitFor(); // The turn has not ended.
  }
  agent.end();
  await answer.waitFor({ state: "detached" });
  assert.equal(await page.locator('[data-sequence="4"] .content').textContent(), "one two three");
  await page.locator(".row .running").waitFor({ state: "detached" });
});

test("an answer of another client streams, and is cancelled", options, async (t) => {
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const { client, open } = await startConsole(t, { agent: address });
  await converse(client, "c", "hello", "hello");
  const page = await open("#/conversations/c");
  await page.locator('[data-sequence="2"]').waitFor();
  const events = client.chat({ conversationId: "c", content: "a long story" })[Symbol.asyncIterator]();
  await events.next();
  agent.send("once upon");
  await page.locator(".answer").getByText("once upon").waitFor();
  await page.locator(".answer").getByRole("button", { name: "Cancel" }).click();
  await page.locator(".answer").waitFor({ state: "detached" });
  const kept = page.locator('[data-sequence="4"]');
  assert.equal(await kept.locator(".content").textContent(), "once upon");
  assert.match((await kept.textContent())!, /incomplete/);
  assert.match((await page.locator(".failure").textContent())!, /cancelled/);
});

test("a tool call that waits is answered by hand", options, async (t) => {
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const { client, open } = await startConsole(t, { agent: address });
  await client.appendMessages({
    conversationId: "c",
    messages: [
      { role: Role.ROLE_USER, content: "what is the weather?" },
      {
        role: Role.ROLE_ASSISTANT,
        agent: "planner",
        toolCalls: [{ id: "call-1", name: "weather", arguments: '{"city": "Oslo"}' }],
      },
    ],
  });
  const page = await open("#/conversations/c");
  const call = page.getByLabel("Tool call weather");
  await call.getByText("waits for a result").waitFor();
  await call.getByLabel("Result of weather").fill("rain");
  await page.getByRole("button", { name: "Send the result" }).click();
  agent.send("Take an umbrella.");
  agent.end();
  await page.locator('[data-sequence="4"]', { hasText: "Take an umbrella." }).waitFor();
  assert.match((await call.textContent())!, /result \(#3\)\s*rain/);
  assert.equal(await call.getByText("waits for a result").count(), 0);
});

test("a conversation is forked, exported, cleared and deleted", options, async (t) => {
  const { client, open } = await startConsole(t);
  await converse(client, "c/1", "one", "two", "three", "four");
  const page = await open(`#/conversations/${encodeURIComponent("c/1")}`);
  await page.locator('[data-sequence="2"]').getByRole("button", { name: "Fork here" }).click();
  await page.locator(".conversation-head h2", { hasText: "c/1 (fork at message 2)" }).waitFor();
  await page.locator('[data-sequence="2"]').waitFor();
  assert.equal(await page.locator(".message").count(), 2);
  await page.goBack();
  await page.locator('[data-sequence="4"]').waitFor();
  const [saved] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("button", { name: "Export" }).click(),
  ]);
  assert.equal(saved.suggestedFilename(), "c_1.jsonl");
  await page.getByRole("button", { name: "Clear…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Clear" }).click();
  await page.getByText("4 messages (1 to 4) were dropped.").waitFor();
  await page.getByRole("button", { name: "Delete…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  await client.getConversation({ conversationId: "c/1" });
  await page.getByRole("button", { name: "Delete…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByText("1 conversation", { exact: true }).waitFor();
  await assert.rejects(client.getConversation({ conversationId: "c/1" }), /NOT_FOUND/);
});

test("the log of a conversation is read when the server has restarted with the log", options, async (t) => {
  const data = await tempFolder(t);
  const http_address = `127.0.0.1:${await freePort()}`;
  const first = await startConsole(t, { data, more: { http_address } });
  await converse(first.client, "c", "before");
  const page = await first.open("#/conversations/c/log");
  await page.getByText("The interaction log of this server is off.").waitFor();
  first.server.kill("SIGTERM");
  await first.server.ended;
  const second = await startConsole(t, { data, more: { http_address, interaction_log: true } });
  await page.getByText("No entries").waitFor();
  await converse(second.client, "c", "after the restart");
  await page.locator(".entry", { hasText: "after the restart" }).waitFor();
});

test("the page is complete after a restart of the server during an answer", options, async (t) => {
  const data = await tempFolder(t);
  const port = await freePort();
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const settings = { agent: address, data, more: { http_address: `127.0.0.1:${port}` } };
  const first = await startConsole(t, settings);
  await converse(first.client, "c", "hello", "hello");
  const page = await first.open("#/conversations/c");
  await page.getByLabel("Message", { exact: true }).fill("tell me");
  await page.keyboard.press("Enter");
  agent.send("half of");
  await page.locator(".answer").getByText("half of").waitFor();
  first.server.kill("SIGKILL");
  await first.server.ended;
  await page.getByText("Connection lost. Reconnecting…").waitFor();
  const second = await startConsole(t, settings);
  await page.locator(".answer").waitFor({ state: "detached" });
  await page.getByText("The turn was interrupted. SHUTTING_DOWN").waitFor();
  await page.locator("body:not(.lost)").waitFor();
  await converse(second.client, "c", "after the restart");
  await page.locator(".message", { hasText: "after the restart" }).waitFor();
  const { messages } = await second.client.listMessages({
    conversationId: "c",
    pageSize: 100,
    ascending: true,
  });
  const stored = messages.map(({ sequence }) => String(sequence));
  const shown = await page
    .locator(".message")
    .evaluateAll((all) => all.map((one) => one.getAttribute("data-sequence")));
  assert.deepEqual(shown, stored);
});
