import assert from "node:assert/strict";
import { test } from "node:test";

import { Role } from "@parleyhq/client";
import { ScriptedAgent, serveAgent } from "../../../../../client/typescript/test/parleyd.js";
import { converse, options, settle, startConsole } from "./console.js";

test("older messages stay when the conversation changes", options, async (t) => {
  const { client, open } = await startConsole(t);
  await client.createConversation({ conversation: { id: "c", retention: { maxMessages: 1000 } } });
  await converse(client, "c", ...Array.from({ length: 100 }, (_, i) => `message ${i}`));
  const page = await open("#/conversations/c");
  await page.locator('[data-sequence="100"]').waitFor();
  while ((await page.locator('[data-sequence="1"]').count()) === 0) {
    await page.locator(".scroll").evaluate((element) => {
      element.scrollTop = 0;
    });
    await settle(page);
  }
  await page.locator('[data-sequence="1"]').evaluate((message) => message.setAttribute("data-same", ""));
  await client.updateConversation({
    conversation: { id: "c", title: "another title" },
    updateMask: ["title"],
  });
  await page.locator(".conversation-head h2", { hasText: "another title" }).waitFor();
  await settle(page);
  assert.equal(await page.locator(".message").count(), 100);
  assert.equal(
    await page.locator('[data-sequence="1"][data-same]').count(),
    1,
    "the message is another element",
  );
  await converse(client, "c", "the newest");
  await page.locator('[data-sequence="101"]').waitFor({ state: "attached" });
  assert.equal(await page.locator(".message").count(), 101);
});

test("the messages of a conversation go with it", options, async (t) => {
  const { client, open } = await startConsole(t);
  await converse(client, "c", "one", "two", "three");
  const page = await open("#/conversations/c");
  await page.locator('[data-sequence="3"]').waitFor();
  await client.deleteConversation({ conversationId: "c" });
  await page.getByText("This conversation was deleted.").waitFor();
  await page.locator(".message").first().waitFor({ state: "detached" });
  assert.equal(await page.locator(".actions button").count(), 0);
  await converse(client, "c", "again");
  await page.locator('[data-sequence="1"]', { hasText: "again" }).waitFor();
  await page.getByRole("button", { name: "Delete…" }).waitFor();
  assert.equal(await page.locator(".message").count(), 1);
});

test("a result that the user writes stays when another call gets one", options, async (t) => {
  const { client, open } = await startConsole(t);
  const call = (id: string) => ({ id, name: id, arguments: "{}" });
  await client.appendMessages({
    conversationId: "c",
    messages: [
      { role: Role.ROLE_USER, content: "compare" },
      { role: Role.ROLE_ASSISTANT, agent: "planner", toolCalls: [call("first"), call("second")] },
    ],
  });
  const page = await open("#/conversations/c");
  await page.getByLabel("Result of second").fill("half of a resu");
  await client.appendMessages({
    conversationId: "c",
    messages: [{ role: Role.ROLE_TOOL, toolResult: { callId: "first", name: "first", content: "done" } }],
  });
  await page.getByLabel("Tool call first").getByText("result (#3)").waitFor();
  assert.equal(await page.getByLabel("Result of second").inputValue(), "half of a resu");
  await page.keyboard.type("lt");
  assert.equal(await page.getByLabel("Result of second").inputValue(), "half of a result");
});

test("a failure is shown until the next turn", options, async (t) => {
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const { client, open } = await startConsole(t, { agent: address });
  await converse(client, "c", "hello", "hello");
  const page = await open("#/conversations/c");
  const ask = async (text: string) => {
    await page.getByLabel("Message", { exact: true }).fill(text);
    await page.keyboard.press("Enter");
  };
  await ask("one");
  await page.locator(".answer").getByRole("button", { name: "Cancel" }).click();
  await page.getByText("The turn was cancelled.").waitFor();
  await ask("two");
  agent.send("an answer");
  await page.locator(".answer").getByText("an answer").waitFor();
  assert.equal(await page.locator(".failure").count(), 0);
  agent.end();
  await page.locator(".answer").waitFor({ state: "detached" });
});

test(
  "the details are shown when their tab is opened, and buttons stay while messages come",
  options,
  async (t) => {
    const { client, open } = await startConsole(t);
    await converse(client, "c", "hello");
    const page = await open("#/conversations/c");
    await page.locator('[data-sequence="1"]').waitFor();
    await settle(page);
    await page.getByRole("link", { name: "Details" }).click();
    await page.locator(".details", { hasText: "lastSequence: 1" }).waitFor();
    await page.getByRole("button", { name: "Delete…" }).focus();
    await converse(client, "c", "more");
    await page.locator(".details", { hasText: "lastSequence: 2" }).waitFor();
    assert.equal(await page.evaluate(() => document.activeElement?.textContent), "Delete…");
  },
);

test("the page does not request what a change contained", options, async (t) => {
  const { client, open } = await startConsole(t);
  await converse(client, "kept", "hello");
  await converse(client, "other", "hello");
  const page = await open("#/conversations?text=kept");
  await page.getByText("1 match among 2 conversations").waitFor();
  await settle(page);
  const requests: string[] = [];
  page.on("request", (request) => requests.push(request.url()));
  await converse(client, "other", "one", "two", "three");
  await client.deleteConversation({ conversationId: "other" });
  await page.getByText("1 match among 1 conversation").waitFor();
  await settle(page);
  assert.deepEqual(
    // The count of waiting turns reads turns and summaries, a second after the page has opened.
    requests.filter((url) => !/routing|Routing|INPUT_REQUIRED/.test(url)),
    [],
  );
});

test("the page looks once for a conversation that does not match its filter", options, async (t) => {
  const { client, open } = await startConsole(t);
  await converse(client, "kept", "hello");
  await converse(client, "other", "hello");
  const page = await open("#/conversations?text=kept");
  await page.getByText("1 match among 2 conversations").waitFor();
  await settle(page);
  let reads = 0;
  const isRead = (url: string) => url.includes("/v1/conversations?");
  page.on("request", (request) => {
    reads += isRead(request.url()) ? 1 : 0;
  });
  const read = page.waitForResponse((response) => isRead(response.url()));
  await converse(client, "other", "one");
  await (await read).finished();
  await settle(page);
  for (let i = 0; i < 8; i++) {
    await converse(client, "other", `other ${i}`);
    await converse(client, "kept", `kept ${i}`);
    await page.locator(".row", { hasText: `kept ${i}` }).waitFor();
    await settle(page);
  }
  assert.ok(reads <= 2, `the page read the list ${reads} times`);
  await client.updateConversation({
    conversation: { id: "other", title: "kept, too" },
    updateMask: ["title"],
  });
  await page.getByText("2 matches among 2 conversations").waitFor();
});

test("a conversation is listed from its first data of the type that is shown", options, async (t) => {
  const { client, open } = await startConsole(t);
  const append = (conversationId: string, content: string, ...types: string[]) =>
    client.appendMessages({
      conversationId,
      messages: [
        { role: Role.ROLE_USER, content, structuredData: types.map((type) => ({ type, value: 1 })) },
      ],
    });
  await append("kept", "hello", "invoice");
  await append("other", "hello");
  const page = await open("#/conversations?type=invoice");
  await page.getByText("1 match among 2 conversations").waitFor();
  await settle(page);
  const read = page.waitForResponse((response) => response.url().includes("/v1/conversations?"));
  await append("other", "without data");
  await (await read).finished();
  await settle(page);
  await append("other", "with data", "invoice");
  await page.locator(".row", { hasText: "with data" }).waitFor();
});

test(
  "keys open the conversation that is marked, and rows stay while the list changes",
  options,
  async (t) => {
    const { client, open } = await startConsole(t);
    for (const id of ["one", "two", "three"]) {
      await converse(client, id, `hello ${id}`);
    }
    const page = await open();
    await page.locator(".row").nth(2).waitFor();
    await page.keyboard.press("j");
    await page.locator(".row.chosen", { hasText: "two" }).waitFor();
    await page.locator(".row", { hasText: "three" }).evaluate((row) => row.setAttribute("data-same", ""));
    await converse(client, "one", "again");
    await page.locator(".row:first-child", { hasText: "again" }).waitFor();
    assert.match((await page.locator(".row[data-same]").allInnerTexts()).join(), /three/);
    await page.keyboard.press("Enter");
    await page.locator(".conversation-head h2", { hasText: "two" }).waitFor();
  },
);

test("a conversation that changes comes to the top from a page that is not loaded", options, async (t) => {
  const { client, open } = await startConsole(t);
  await client.createConversation({ conversation: { id: "old", labels: { team: "red" } } });
  await Promise.all(Array.from({ length: 150 }, (_, i) => converse(client, `c${i}`, "hello")));
  const page = await open();
  await page.getByText("151 conversations", { exact: true }).waitFor();
  await converse(client, "old", "one", "again");
  await page.locator(".row:first-child", { hasText: "old" }).waitFor();
  assert.match(await page.locator(".row").first().innerText(), /again[\s\S]*2 messages/);
  // A label that is removed takes it out of a filtered list.
  await page.goto(`${page.url().split("#")[0]}#/conversations?label=team%3Dred`);
  await page.getByText("1 match among 1").waitFor();
  await client.updateConversation({ conversation: { id: "old" }, updateMask: ["labels"] });
  await page.getByText("No match among").waitFor();
});

test(
  "an export is saved only if it is complete, with a name that every system accepts",
  options,
  async (t) => {
    const { client, open } = await startConsole(t);
    const id = 'c/1: "x" \u202e*?<y>';
    await converse(client, id, "hello");
    const page = await open(`#/conversations/${encodeURIComponent(id)}`);
    const [saved] = await Promise.all([
      page.waitForEvent("download"),
      page.getByRole("button", { name: "Export" }).click(),
    ]);
    assert.equal(saved.suggestedFilename(), "c_1___x______y_.jsonl");
    await page.route("**/v1/export?*", (route) =>
      route.fulfill({ body: '{"result":{}}\n{"error":{"code":14,"message":"the server stops"}}\n' }),
    );
    await page.getByRole("button", { name: "Export" }).click();
    await page
      .locator("#notes", { hasText: "not complete, so it was not saved: the server stops" })
      .waitFor();
  },
);

test("a long answer streams in parts that the browser lays out one by one", options, async (t) => {
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const { open, client } = await startConsole(t, { agent: address });
  await converse(client, "c", "hello", "hello");
  const page = await open("#/conversations/c");
  await page.getByLabel("Message", { exact: true }).fill("a long story");
  await page.keyboard.press("Enter");
  for (let i = 0; i < 10; i++) {
    agent.send(`${"word ".repeat(2000)}\n`);
  }
  agent.send("the end");
  await page.locator(".answer").getByText("the end").waitFor();
  const lengths = await page
    .locator(".answer .content")
    .evaluateAll((parts) => parts.map((part) => part.textContent!.length));
  assert.equal(
    lengths.reduce((sum, n) => sum + n),
    100_017,
  );
  assert.ok(Math.max(...lengths) < 50_000, `parts of ${lengths.join()} characters`);
  agent.end();
  await page.locator(".answer").waitFor({ state: "detached" });
});

test("the arrows move the active option of the list", options, async (t) => {
  const { client, open } = await startConsole(t);
  for (const id of ["one", "two", "three"]) {
    await converse(client, id, `hello ${id}`);
  }
  const page = await open();
  await page.locator(".row").nth(2).waitFor();
  const list = page.getByRole("listbox", { name: "Conversations" });
  await list.press("ArrowDown");
  await page.locator(".row.chosen", { hasText: "two" }).waitFor({ timeout: 10_000 });
  // Screen readers read this option.
  assert.equal(
    await page.locator(".row.chosen").getAttribute("id"),
    await list.getAttribute("aria-activedescendant"),
  );
});

test("what was written and not sent stays with its conversation", options, async (t) => {
  const { client, open } = await startConsole(t);
  await converse(client, "one", "hello");
  await converse(client, "two", "hello");
  const page = await open("#/conversations/one");
  const text = page.getByLabel("Message", { exact: true });
  await text.fill("half a sentence");
  await page.locator(".row", { hasText: "two" }).click();
  await page.locator(".conversation-head h2", { hasText: "two" }).waitFor();
  assert.equal(await text.inputValue(), "");
  await page.locator(".row", { hasText: "one" }).click();
  await page.locator(".conversation-head h2", { hasText: "one" }).waitFor();
  assert.equal(await text.inputValue(), "half a sentence");
  await text.press("Enter");
  await page.locator(".message", { hasText: "half a sentence" }).first().waitFor();
  await page.locator(".tabs").getByRole("link", { name: "Details" }).click();
  await page.locator(".tabs").getByRole("link", { name: "Messages" }).click();
  assert.equal(await text.inputValue(), "");
});

test("a tool result is shown once, with its call", options, async (t) => {
  const { client, open } = await startConsole(t);
  await client.appendMessages({
    conversationId: "c",
    messages: [
      { role: Role.ROLE_USER, content: "what is the weather?" },
      { role: Role.ROLE_ASSISTANT, toolCalls: [{ id: "call-1", name: "weather", arguments: "{}" }] },
    ],
  });
  const page = await open("#/conversations/c");
  await page.getByLabel("Tool call weather").getByText("waits for a result").waitFor();
  await settle(page); // Another read would drop what the conversation no longer keeps.
  const result = { callId: "call-1", name: "weather", content: "much rain" };
  await client.appendMessages({
    conversationId: "c",
    messages: [
      { role: Role.ROLE_TOOL, toolResult: result },
      ...Array(60).fill({ role: Role.ROLE_USER, content: "more\n".repeat(5) }),
    ],
  });
  await page.locator('[data-sequence="63"]').waitFor();
  assert.equal(await page.locator(".message").getByText("much rain").count(), 1);
  const row = page.locator('[data-sequence="3"]');
  assert.match((await row.textContent())!, /result of weather call-1, shown with the call in message 2/);
  await row.getByRole("button", { name: "message 2" }).click();
  assert.ok(await page.getByLabel("Tool call weather").isVisible());
  // A page that begins after the call shows the result.
  await client.appendMessages({
    conversationId: "d",
    messages: [
      { role: Role.ROLE_USER, content: "hello" },
      { role: Role.ROLE_TOOL, toolResult: result },
    ],
  });
  await page.goto(`${page.url().split("#")[0]}#/conversations/d`);
  await page.locator('[data-sequence="2"]', { hasText: "much rain" }).waitFor();
});

test("the open conversation is in view in the list, and stays marked", options, async (t) => {
  const { client, open } = await startConsole(t);
  for (let i = 0; i < 60; i++) {
    await converse(client, `c${i}`, "hello");
  }
  const page = await open("#/conversations/c10");
  const row = page.locator('.row[aria-selected="true"]', { hasText: "c10" });
  await row.waitFor();
  const isInView = () =>
    row.evaluate((element) => {
      const { top, bottom } = element.getBoundingClientRect();
      const list = element.closest(".virtual-list")!.getBoundingClientRect();
      return top >= list.top - 1 && bottom <= list.bottom + 1;
    });
  assert.ok(await isInView(), "the row is out of view");
  assert.ok(await row.evaluate((element) => element.classList.contains("chosen")));
  await converse(client, "c3", "again");
  await converse(client, "new", "hello");
  await page.getByText("61 conversations", { exact: true }).waitFor();
  await row.waitFor();
  assert.ok(await row.evaluate((element) => element.classList.contains("chosen")));
  await page.keyboard.press("j");
  await page.locator(".row.chosen", { hasText: "c9" }).waitFor();
});

test("the message that the user reads stays in its place while older ones load", options, async (t) => {
  const { client, open } = await startConsole(t);
  await client.createConversation({ conversation: { id: "c", retention: { maxMessages: 1000 } } });
  await converse(
    client,
    "c",
    ...Array.from({ length: 100 }, (_, i) => `message ${i}\n${"line\n".repeat(i % 9)}`),
  );
  const page = await open("#/conversations/c");
  await page.locator('[data-sequence="100"]').waitFor();
  const moved = await page.evaluate(async () => {
    const scroll = document.querySelector(".scroll")!;
    const frames = async (n: number) => {
      for (let i = 0; i < n; i++) {
        await new Promise((resolve) => requestAnimationFrame(resolve));
      }
    };
    while (scroll.scrollTop > 700) {
      scroll.scrollTop -= 200; // The groups on the way are laid out.
      await frames(2);
    }
    const read = document.querySelector('[data-sequence="55"]')!;
    const top = () => read.getBoundingClientRect().top;
    scroll.scrollTop = 100;
    const before = top();
    while (!document.querySelector('[data-sequence="1"]')) {
      await frames(1);
    }
    await frames(3);
    return top() - before;
  });
  assert.ok(Math.abs(moved) <= 2, `the message has moved by ${moved} pixels`);
});
