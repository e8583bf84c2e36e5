import assert from "node:assert/strict";
import { test } from "node:test";

import { Agent, type Client, type Piece, type RespondRequest, Role } from "@parleyhq/client";
import type { Page } from "playwright-core";

import { ScriptedAgent, serveAgent, tempFolder } from "../../../../../client/typescript/test/parleyd.js";
import { percents, rates, sizes, topOf } from "../src/scales.js";
import { converse, options, settle, startConsole } from "./console.js";

/** Calls a tool for each question, without a text, and answers its result. */
class CallingAgent extends Agent {
  override async *respond({ messages }: RespondRequest): AsyncGenerator<Piece> {
    yield messages.at(-1)?.toolResult
      ? "rain"
      : { toolCall: { id: "call-1", name: "weather", arguments: "{}" } };
  }
}

/** Asks, and waits until the turn has ended. */
async function ask(client: Client, conversationId: string, content = "a question"): Promise<void> {
  for await (const _ of client.chat({ conversationId, content })) {
    // Until the turn ends.
  }
}

/** Makes a page hidden or visible, as a browser does when the user chooses another tab. */
async function setHidden(page: Page, isHidden: boolean): Promise<void> {
  await page.evaluate((isHidden) => {
    Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
    Object.defineProperty(document, "visibilityState", {
      value: isHidden ? "hidden" : "visible",
      configurable: true,
    });
    document.dispatchEvent(new Event("visibilitychange"));
  }, isHidden);
}

test(
  "a turn that waits leads to its conversation, where it can be answered, and to its events",
  options,
  async (t) => {
    const { address } = await serveAgent(t, new CallingAgent());
    const { client, open } = await startConsole(t, { agent: address });
    await client.createConversation({ conversation: { id: "c", title: "The weather in Oslo" } });
    await ask(client, "c");
    for (const state of ["waiting", "all"]) {
      const page = await open(`#/turns?state=${state}`);
      const row = page.locator("tr.turn");
      await row.locator(".conversation-cell", { hasText: "The weather in Oslo c" }).waitFor();
      await row.getByRole("link", { name: "The weather in Oslo" }).click();
      await page.getByLabel("Result of weather").waitFor();
      await page.goBack();
      await row.getByRole("link", { name: "input required Events" }).click();
      await page.locator("tr.turn-event.finished").waitFor();
      await page.getByRole("link", { name: "Answer in Messages" }).click();
      await page.getByLabel("Result of weather").waitFor();
      await page.locator(".tabs").getByRole("link", { name: "Turns" }).click();
      await row.getByRole("link", { name: "input required Events" }).waitFor();
      const events = row.getByText("Events", { exact: true });
      assert.match(await events.evaluate((link) => getComputedStyle(link).textDecorationLine), /underline/);
    }
  },
);

test("a hidden page closes its watch, and shows what has changed when it is visible", options, async (t) => {
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const { client, open } = await startConsole(t, { agent: address });
  await converse(client, "c", "hello", "hello");
  const page = await open("#/conversations/c");
  await page.locator('[data-sequence="2"]').waitFor();
  await page.getByLabel("Message", { exact: true }).fill("tell me");
  await page.keyboard.press("Enter");
  agent.send("one ");
  await page.locator(".answer").getByText("one").waitFor();
  const watcherCount = async () => (await client.getStats({})).watcherCount;
  assert.equal(await watcherCount(), 1);
  const closed = page.waitForEvent("requestfailed", (request) => request.url().includes("/v1/watch"));
  await setHidden(page, true);
  await closed;
  agent.send("two ");
  await page.locator(".answer").getByText("two").waitFor(); // The stream of the answer is open.
  await converse(client, "another", "a new conversation");
  await settle(page);
  assert.equal(await page.locator(".row", { hasText: "another" }).count(), 0);
  assert.equal(await watcherCount(), 0);
  await setHidden(page, false);
  await page.locator(".row", { hasText: "a new conversation" }).waitFor();
  agent.send("three");
  agent.end();
  await page.locator('[data-sequence="4"]', { hasText: "one two three" }).waitFor();
  await page.locator(".row .running").waitFor({ state: "detached" });
});

test("more tabs load than a browser opens connections to a host", options, async (t) => {
  const { client, url, open } = await startConsole(t);
  await converse(client, "c", "hello");
  const first = await open();
  const context = await first.context().browser()!.newContext();
  for (let i = 0; i < 8; i++) {
    const page = await context.newPage();
    page.setDefaultTimeout(20_000);
    await page.goto(url);
    await page.locator(".row", { hasText: "hello" }).waitFor();
    await setHidden(page, true);
  }
});

test("a list that was scrolled stays as long when its page was hidden", options, async (t) => {
  const { client, open } = await startConsole(t);
  await Promise.all(Array.from({ length: 250 }, (_, i) => converse(client, `c${i}`, "hello")));
  const page = await open();
  await page.getByText("250 conversations", { exact: true }).waitFor();
  const list = page.locator(".virtual-list");
  const scroll = () => list.evaluate((element) => element.scrollTo(0, element.scrollHeight));
  for (const position of ["200", "250"]) {
    await scroll();
    await page.locator(`.row[aria-setsize="${position}"]`).first().waitFor();
  }
  await scroll();
  await page.locator('.row[aria-posinset="250"]').waitFor();
  await setHidden(page, true);
  const read = page.waitForResponse((response) => response.url().includes("/v1/conversations?"));
  await setHidden(page, false);
  await read;
  await settle(page);
  await page.locator('.row[aria-posinset="250"]').waitFor();
});

test("a fork has a preview in the list, and waits for the results of its calls", options, async (t) => {
  const { address } = await serveAgent(t, new CallingAgent());
  const { client, open } = await startConsole(t, { agent: address });
  await ask(client, "c", "what is the weather?");
  const { turns } = await client.listTurns({ conversationId: "c" });
  assert.equal(turns.length, 1);
  const page = await open("#/conversations/c");
  await page.locator(".waiting-count:visible", { hasText: "1" }).waitFor();
  await page.getByRole("link", { name: "1 waits for a result" }).waitFor();
  await page.locator('[data-sequence="2"]').getByRole("button", { name: "Fork here" }).click();
  const fork = page.locator(".row", { hasText: "c (fork at message 2)" });
  await fork.getByText("waits for a result").waitFor();
  await fork.getByText("No text").waitFor();
  await page.locator('[data-sequence="1"]').getByRole("button", { name: "Fork here" }).click();
  await page
    .locator(".row", { hasText: "c (fork at message 1)" })
    .getByText("what is the weather?")
    .waitFor();
  await page.locator("header .waiting-count", { hasText: "2" }).waitFor();
  await page.getByRole("link", { name: "2 wait for a result" }).click();
  await page
    .locator("tr.turn", { hasText: "c (fork at message 2)" })
    .getByText("fork", { exact: true })
    .waitFor();
  await page.reload();
  const row = page.locator("tr.turn", { hasText: "c (fork at message 2)" });
  await row.getByRole("link", { name: "c (fork at message 2)" }).click();
  await page.getByLabel("Result of weather").fill("rain");
  await page.getByRole("button", { name: "Send the result" }).click();
  await page.locator("header .waiting-count", { hasText: "1" }).waitFor();
  await fork.getByText("waits for a result").waitFor({ state: "detached" });
});

test(
  "a conversation on a page that is not loaded has a preview when its title changes",
  options,
  async (t) => {
    const { client, open } = await startConsole(t);
    await converse(client, "old", "one", "two");
    await Promise.all(Array.from({ length: 150 }, (_, i) => converse(client, `c${i}`, "hello")));
    const page = await open();
    await page.getByText("151 conversations", { exact: true }).waitFor();
    await client.updateConversation({
      conversation: { id: "old", title: "an old one" },
      updateMask: ["title"],
    });
    await page.locator(".row", { hasText: "an old one" }).getByText("two").waitFor();
  },
);

test("the log shows the times of UTC, and today newest first", options, async (t) => {
  const { client, open } = await startConsole(t, {
    data: await tempFolder(t),
    more: { interaction_log: true },
  });
  for (const first of [0, 60]) {
    await converse(client, "c", ...Array.from({ length: 60 }, (_, i) => `message ${first + i}.`));
  }
  const page = await open("#/log", { timezoneId: "Asia/Tokyo" });
  await page.getByText("100 entries so far. Days and times are UTC.").waitFor();
  const time = page.locator(".entry time").first();
  const { interactions } = await client.listInteractions({ conversationId: "c", pageSize: 1 });
  const want = interactions[0]!.timestamp!.toISOString().replace("T", " ").replace("Z", "");
  assert.equal(await time.textContent(), want);
  await page.locator(".entry:first-child", { hasText: "message 0." }).waitFor();
  await page.getByLabel("Order").selectOption("newest");
  await page.locator(".entry:first-child", { hasText: "message 119." }).waitFor();
  await page.getByRole("button", { name: "Show more" }).click();
  await page.locator(".entry:last-child", { hasText: "message 0." }).waitFor();
  assert.equal(await page.locator(".entry").count(), 120);
  await converse(client, "c", "the newest");
  await page.reload();
  await page.locator(".entry:first-child", { hasText: "the newest" }).waitFor();
  await page.getByRole("button", { name: "Previous day" }).click();
  await page.getByText("No entries").waitFor();
  assert.ok(await page.getByLabel("Order").isHidden());
  await page.goto(`${page.url().split("#")[0]}#/conversations/c/log`);
  await page.locator(".entry time").first().waitFor();
  assert.equal(await time.textContent(), want);
  const check = page.getByRole("button", { name: "Check for new entries" });
  while (!(await check.isVisible())) {
    await page.getByRole("button", { name: "Show more" }).click();
    await settle(page);
  }
  assert.equal(await check.evaluate((button) => getComputedStyle(button).paddingLeft), "8px");
});

test("keys of the filter open a conversation, and move to the list", options, async (t) => {
  const { client, open } = await startConsole(t);
  for (const id of ["one", "two", "three", "thread"]) {
    await converse(client, id, `hello ${id}`);
  }
  const page = await open();
  await page.locator(".row").nth(3).waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("two");
  await page.keyboard.press("Enter");
  await page.locator(".conversation-head h2", { hasText: "two" }).waitFor();
  await page.getByLabel("Filter by id or title").fill("thr");
  await page.getByText("2 matches among").waitFor();
  await page.keyboard.press("ArrowDown");
  assert.equal(await page.evaluate(() => document.activeElement?.getAttribute("role")), "listbox");
  await page.keyboard.press("ArrowDown");
  await page.locator(".row.chosen", { hasText: "three" }).waitFor();
  await page.keyboard.press("Enter");
  await page.locator(".conversation-head h2", { hasText: "three" }).waitFor();
});

test("the cursor of the list is at the conversation that is opened", options, async (t) => {
  const { client, url, open } = await startConsole(t);
  for (const id of ["one", "two", "three"]) {
    await converse(client, id, `hello ${id}`, "hello");
  }
  const page = await open();
  await page.locator(".row.chosen", { hasText: "three" }).waitFor();
  await page.goto(`${url}/#/conversations/one`);
  await page.locator('.row.chosen[aria-selected="true"]', { hasText: "one" }).waitFor();
  await page.keyboard.press("k");
  await page.locator(".row.chosen", { hasText: "two" }).waitFor();
  // The fork comes into the list when it gets its title.
  await client.createConversation({ conversation: { id: "four", title: "four (fork)" } });
  await page.goto(`${url}/#/conversations/one?text=(fork`);
  await page.locator(".row", { hasText: "four (fork)" }).waitFor();
  assert.equal(await page.locator(".row.chosen").count(), 0, "a row is marked that is not open");
  await page.locator('[data-sequence="1"]').getByRole("button", { name: "Fork here" }).click();
  await page.locator('.row.chosen[aria-selected="true"]', { hasText: "one (fork at message 1)" }).waitFor();
  await page.keyboard.press("j");
  await page.locator(".row.chosen", { hasText: "four (fork)" }).waitFor();
  await page.goto(`${url}/#/conversations/one?order=create`);
  await page.locator('.row.chosen[aria-selected="true"]').getByText("one", { exact: true }).waitFor();
  assert.equal(await page.locator(".row.chosen").count(), 1);
});

test(
  "a telephone shows all tabs and buttons, the selects, and the width of a timeline",
  options,
  async (t) => {
    const { address } = await serveAgent(t, new CallingAgent());
    const { client, url, open } = await startConsole(t, { agent: address });
    await ask(client, "c");
    await client.appendMessages({
      conversationId: "c",
      messages: [{ role: Role.ROLE_USER, content: "and now?" }],
    });
    const page = await open("#/conversations/c", { viewport: { width: 360, height: 740 } });
    await page.getByRole("button", { name: "Answer again" }).waitFor();
    for (const part of [".tabs a", ".actions button"]) {
      const ends = await page
        .locator(`${part}:visible`)
        .evaluateAll((all) => all.map((one) => one.getBoundingClientRect().right));
      assert.ok(Math.max(...ends) <= 360, `${part} ends at ${ends.join()}`);
    }
    for (const select of await page.locator(".composer select").all()) {
      const [width, wanted] = await select.evaluate((one: HTMLSelectElement) => {
        const copy = one.cloneNode(true) as HTMLSelectElement;
        copy.style.cssText = "position: absolute; flex: none; max-width: none";
        one.after(copy);
        const widths = [one.getBoundingClientRect().width, copy.getBoundingClientRect().width];
        copy.remove();
        return widths;
      });
      assert.ok(width! >= wanted!, `the select has ${width} of ${wanted} pixels`);
    }
    const { turns } = await client.listTurns({ conversationId: "c" });
    await page.goto(`${url}/#/conversations/c/turns/${turns[0]!.id}`);
    const contents = page.locator("tr.turn-event .contents").first();
    await contents.waitFor();
    const { width } = (await contents.boundingBox())!;
    assert.ok(width > 320, `the contents are ${width} pixels wide`);
  },
);

test("a turn that was cancelled is no failure", options, async (t) => {
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const { client, url, open } = await startConsole(t, { agent: address });
  const events = client.chat({ conversationId: "c", content: "hello" })[Symbol.asyncIterator]();
  const { value } = await events.next();
  await client.cancelTurn({ conversationId: "c", turnId: value.turnId });
  const page = await open("#/turns?state=all");
  const colour = (selector: string) =>
    page
      .locator(selector)
      .first()
      .evaluate((one) => getComputedStyle(one).color);
  await page.locator("tr.turn .why", { hasText: "CANCELLED" }).waitFor();
  assert.equal(await colour("tr.turn .why bdi"), await colour("tr.turn"));
  await page.goto(`${url}/#/server`);
  await page.locator(".last-turn", { hasText: "cancelled" }).waitFor();
  assert.deepEqual(await page.locator(".last-error", { hasText: "CANCELLED" }).count(), 0);
});

test("the context folds what is left out, and says why a window is small", options, async (t) => {
  const { client, open } = await startConsole(t);
  await converse(client, "c", ...Array.from({ length: 8 }, (_, i) => `message ${i}`));
  const page = await open("#/conversations/c/context?max_messages=3", {
    viewport: { width: 1280, height: 800 },
  });
  const fold = page.locator(".left-out-run");
  await fold.getByText("6 messages left out").waitFor();
  await page.getByText("2 messages in the window").waitFor();
  await page.getByText("A window begins at a message of the user").waitFor();
  assert.equal(await page.locator('article[data-sequence="1"]').isVisible(), false);
  await fold.locator("summary").first().click();
  await page.locator('article[data-sequence="1"]').waitFor();
  await converse(client, "c", "message 8", "message 9");
  await fold.getByText("8 messages left out").waitFor();
  assert.ok(await page.locator('article[data-sequence="1"]').isVisible(), "the fold is closed");
  const tops = await page
    .locator(".window-settings label")
    .evaluateAll((all) => all.map((one) => Math.round(one.getBoundingClientRect().bottom)));
  assert.ok(Math.max(...tops) - Math.min(...tops) < 10, `the settings end at ${tops.join()}`);
});

test("the turn of a message of a fork is that of its origin", options, async (t) => {
  const { client, url, open } = await startConsole(t);
  await ask(client, "c");
  await client.forkConversation({ conversationId: "c", newConversationId: "fork" });
  await client.forkConversation({ conversationId: "fork", newConversationId: "second" });
  const page = await open("#/conversations/second");
  await page.locator('[data-sequence="2"]').getByRole("link", { name: "turn" }).click();
  await page.locator("tr.turn-event.finished").waitFor();
  assert.match(new URL(page.url()).hash, /^#\/conversations\/c\/turns\//);
  await client.deleteConversation({ conversationId: "c" });
  await page.goto(`${url}/#/conversations/second`);
  await page.locator('[data-sequence="2"]').getByRole("link", { name: "turn" }).click();
  await page.getByText("This turn does not exist or is no longer kept.").waitFor();
  assert.equal(await page.locator("parley-timeline table").isVisible(), false);
});

test("the note on a label has a line of its own", options, async (t) => {
  const { client, open } = await startConsole(t);
  await converse(client, "c", "hello");
  const page = await open("#/conversations?label=red");
  await page.getByText("A label has the form name=value.").waitFor();
  // The note is written again whenever the list changes.
  await page.waitForFunction(
    () => (document.querySelector(".list-status .failure")?.getBoundingClientRect().width ?? 0) > 300,
  );
});

test("an attachment that is no link shows where it leads", options, async (t) => {
  const { client, open } = await startConsole(t);
  await client.appendMessages({
    conversationId: "c",
    messages: [
      { role: Role.ROLE_USER, attachments: [{ uri: "javascript:alert(1)", filename: "invoice.pdf" }] },
    ],
  });
  const page = await open("#/conversations/c");
  await page.locator(".attachment", { hasText: "invoice.pdf javascript:alert(1)" }).waitFor();
});

test("rates are rounded, and an axis is not below its values", () => {
  assert.deepEqual([0.104, 0.5, 6.01, 9.96, 61.2].map(rates.format), ["0.1", "0.5", "6", "10", "61"]);
  const mebibyte = 1 << 20;
  assert.equal(topOf(sizes, 50 * mebibyte), 64 * mebibyte);
  assert.equal(topOf(sizes, 33 * mebibyte), 48 * mebibyte);
  assert.equal(topOf(percents, 100), 100);
  assert.equal(topOf(rates, 0), 0.1);
});
