import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { type ImportConversationsRequest, type Input, Role } from "@parleyhq/client";

import { converse, options, startConsole } from "./console.js";

/** The number of conversations. The long round, with PARLEY_LONG=1, is the one to quote. */
const total = process.env["PARLEY_LONG"] ? 100_000 : 3_000;

/** The most memory that the page may use for scripts, in bytes. */
const maxHeap = 20 << 20;

/** The most memory that the process of the page may use, in bytes: layout, styles and code of the browser included. */
const maxPage = 150 << 20;

/** Returns the memory of a process of Linux in bytes. Of memory that n processes share, it has 1/n. */
function proportionalSize(id: number): number {
  const size = /^Pss: +(\d+) kB$/m.exec(readFileSync(`/proc/${id}/smaps_rollup`, "utf8"))?.[1];
  assert.ok(size, `smaps_rollup of process ${id} has no Pss`);
  return Number(size) * 1024;
}

/** Returns conversations with one message each, a millisecond apart. */
async function* conversations(): AsyncGenerator<Input<ImportConversationsRequest>> {
  const end = Date.now();
  for (let i = 0; i < total; i++) {
    const time = new Date(end - total + i);
    yield {
      conversation: {
        id: `conversation-${i}`,
        title: `A conversation about subject ${i}`,
        labels: { team: `${i % 7}` },
        version: 1,
        lastSequence: 1,
        createTime: time,
        updateTime: time,
        lastAppendTime: time,
      },
      messages: [
        {
          id: `${i}`,
          sequence: 1,
          role: Role.ROLE_USER,
          content: `What is subject ${i}?`,
          exchange: 1,
          createTime: time,
        },
      ],
    };
  }
}

test("many conversations and messages stay usable", { ...options, timeout: 600_000 }, async (t) => {
  const { client, open } = await startConsole(t, {
    more: { max_conversations: 0, max_conversation_bytes: "64MiB" },
  });
  const { importedCount } = await client.importConversations(conversations());
  assert.equal(importedCount, total);
  await client.createConversation({ conversation: { id: "long", retention: { maxMessages: 1000 } } });
  const texts = Array.from(
    { length: 100 },
    (_, i) => `Message ${i}: ${"some text of an answer ".repeat(1 + (i % 30))}`,
  );
  for (let i = 0; i < 10; i++) {
    await converse(client, "long", ...texts);
  }

  const page = await open("");
  await page.locator(".row").nth(5).waitFor();
  const timing = await page.evaluate(() => performance.now());
  t.diagnostic(`first view of ${total} conversations: ${timing.toFixed(0)} ms`);
  await page.getByText(`${(total + 1).toLocaleString("en")} conversations`, { exact: true }).waitFor();
  /** Scrolls an element by its pages and returns the longest time between two frames, in milliseconds. */
  const scroll = (selector: string, by: number, steps: number) =>
    page.evaluate(
      async ([selector, by, steps]) => {
        const element = document.querySelector(selector as string)!;
        let longest = 0;
        let last = performance.now();
        for (let i = 0; i < (steps as number); i++) {
          element.scrollTop += by as number;
          const now = await new Promise<number>((resolve) => requestAnimationFrame(resolve));
          longest = Math.max(longest, now - last);
          last = now;
        }
        return longest;
      },
      [selector, by, steps] as const,
    );
  t.diagnostic(
    `longest frame while the list scrolls: ${(await scroll(".virtual-list", 200, 300)).toFixed(0)} ms`,
  );
  const rows = await page.locator(".row").count();
  assert.ok(rows > 5 && rows < 60, `${rows} rows are in the page`);
  const filter = page.getByLabel("Filter by id or title");
  await filter.fill("SATION-0");
  const begin = performance.now();
  await page.getByText("1 match among").waitFor();
  t.diagnostic(`the oldest conversation found by its id: ${(performance.now() - begin).toFixed(0)} ms`);
  await filter.fill("");

  await page.goto(`${new URL(page.url()).origin}/#/conversations/long`);
  await page.locator('[data-sequence="1000"]').waitFor();
  // Older messages load until the first one.
  let longest = 0;
  while ((await page.locator('[data-sequence="1"]').count()) === 0) {
    longest = Math.max(longest, await scroll(".scroll", -300, 20));
  }
  t.diagnostic(`longest frame while 1000 messages scroll and load: ${longest.toFixed(0)} ms`);
  assert.equal(await page.locator(".message").count(), 1000);
  const observed = await page
    .locator(".message")
    .evaluateAll((all) => all.filter((one) => one.checkVisibility({ contentVisibilityAuto: true })).length);
  assert.ok(observed > 0 && observed < 200, `${observed} messages are in groups that the browser lays out`);
  const session = await page.context().newCDPSession(page);
  await session.send("HeapProfiler.collectGarbage");
  const { usedSize, totalSize } = await session.send("Runtime.getHeapUsage");
  t.diagnostic(
    `heap: ${(usedSize / 2 ** 20).toFixed(1)} MiB used, ${(totalSize / 2 ** 20).toFixed(1)} MiB reserved`,
  );
  assert.ok(totalSize < maxHeap, `the heap has ${totalSize} bytes, want ${maxHeap} at most`);
  if (process.platform === "linux") {
    const browser = await page.context().browser()!.newBrowserCDPSession();
    const { processInfo } = await browser.send("SystemInfo.getProcessInfo");
    const sizes = processInfo.filter(({ type }) => type === "renderer").map(({ id }) => proportionalSize(id));
    const largest = Math.max(...sizes);
    t.diagnostic(`process of the page: ${(largest / 2 ** 20).toFixed(0)} MiB`);
    assert.ok(largest < maxPage, `the process of the page has ${largest} bytes, want ${maxPage} at most`);
  }
});
