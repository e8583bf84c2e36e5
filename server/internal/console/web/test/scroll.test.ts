import assert from "node:assert/strict";
import { test } from "node:test";

import { type Client, Role } from "@parleyhq/client";
import type { Page } from "playwright-core";
import { ScriptedAgent, serveAgent } from "../../../../../client/typescript/test/parleyd.js";
import { converse, options, startConsole } from "./console.js";

/** Appends exchanges with long answers, then a tool call that waits. */
async function converseAtLength(client: Client, id: string, exchanges: number, lines: number): Promise<void> {
  const long = Array.from({ length: lines }, (_, i) => `${i}. Step ${i} of the plan: pack the chair.`);
  await converse(
    client,
    id,
    ...Array.from({ length: 2 * exchanges }, (_, i) => (i % 2 === 0 ? "a plan" : long.join("\n"))),
  );
  await client.appendMessages({
    conversationId: id,
    messages: [
      { role: Role.ROLE_USER, content: "what is left?" },
      {
        role: Role.ROLE_ASSISTANT,
        content: "I ask the stock.",
        toolCalls: [{ id: "call-1", name: "stock", arguments: '{"sku": "A"}' }],
      },
    ],
  });
}

/** Waits until the messages are drawn, and returns how far they are from their end. Heights settle frame by frame. */
async function distanceFromEnd(page: Page): Promise<number> {
  return page.locator(".scroll").evaluate(async (scroll) => {
    let height = 0;
    for (let same = 0; same < 10; same++) {
      await new Promise((resolve) => requestAnimationFrame(resolve));
      same = scroll.scrollHeight === height ? same : 0;
      height = scroll.scrollHeight;
    }
    return scroll.scrollHeight - scroll.clientHeight - scroll.scrollTop;
  });
}

for (const [name, viewport] of [
  ["a wide page", { width: 1200, height: 800 }],
  ["a phone", { width: 360, height: 640 }],
] as const) {
  test(`long messages open at the newest one, on ${name}`, options, async (t) => {
    const { client, open, url } = await startConsole(t);
    const page = await open("", { viewport });
    for (const [exchanges, lines] of [
      [8, 30],
      [3, 100],
      [1, 60],
      [9, 12],
      [30, 40],
    ] as const) {
      const id = `c-${exchanges}-${lines}`;
      await converseAtLength(client, id, exchanges, lines);
      await page.goto(`${url}/#/conversations/${id}`);
      for (const way of ["opened", "loaded again"]) {
        const send = page.getByRole("button", { name: "Send the result" });
        await send.waitFor();
        assert.ok((await distanceFromEnd(page)) <= 1, `${id}, ${way}, is not at its end`);
        const isInView = await send.evaluate((button) => {
          const { top, bottom } = button.closest(".scroll")!.getBoundingClientRect();
          const own = button.getBoundingClientRect();
          return own.top >= top && own.bottom <= bottom;
        });
        assert.ok(isInView, `${id}, ${way}: the form of the call is out of view`);
        await page.reload();
      }
    }
  });
}

test("the page stays where the user scrolls to, and offers the new messages", options, async (t) => {
  const agent = new ScriptedAgent();
  const { address } = await serveAgent(t, agent);
  const { client, open } = await startConsole(t, { agent: address });
  await converseAtLength(client, "c", 8, 30);
  const page = await open("#/conversations/c");
  await page.getByRole("button", { name: "Send the result" }).waitFor();
  const scroll = page.locator(".scroll");
  await scroll.hover();
  await page.mouse.wheel(0, -300);
  await page.waitForFunction(() => {
    const element = document.querySelector(".scroll")!;
    return element.scrollHeight - element.clientHeight - element.scrollTop >= 300;
  });
  const news = page.getByRole("button", { name: "New messages below" });
  assert.equal(await news.count(), 0);
  const top = await scroll.evaluate((element) => element.scrollTop);
  await converse(client, "c", "is anybody there?");
  await news.waitFor();
  await distanceFromEnd(page);
  assert.equal(await scroll.evaluate((element) => element.scrollTop), top);
  await news.click();
  assert.ok((await distanceFromEnd(page)) <= 1);
  assert.equal(await news.count(), 0);

  await page.mouse.move(600, 400);
  await page.mouse.wheel(0, -1500);
  await page.waitForFunction(() => {
    const element = document.querySelector(".scroll")!;
    return element.scrollHeight - element.clientHeight - element.scrollTop >= 1000;
  });
  await page.getByLabel("Message", { exact: true }).fill("my question");
  await page.keyboard.press("Enter");
  await page.locator(".answer").waitFor();
  assert.ok((await distanceFromEnd(page)) <= 1, "the own question is out of view");
  agent.send("line\n".repeat(50));
  await page.locator(".answer", { hasText: "line" }).waitFor();
  assert.ok((await distanceFromEnd(page)) <= 1, "the answer is out of view");
  // The user scrolls up while the answer grows.
  await page.mouse.wheel(0, -200);
  for (let i = 0; i < 20; i++) {
    agent.send(`piece ${i}\n`.repeat(3));
  }
  await page.locator(".answer", { hasText: "piece 19" }).waitFor();
  assert.ok((await distanceFromEnd(page)) > 150, "the page scrolls away from what the user reads");
  const read = () =>
    page.evaluate(() => {
      const all = document.querySelectorAll(".answer, .message-group:last-child .message:last-child");
      return [...all].at(-1)!.getBoundingClientRect().top;
    });
  const before = await read();
  agent.end();
  await page.locator(".answer").waitFor({ state: "detached" });
  await distanceFromEnd(page);
  const moved = (await read()) - before;
  assert.ok(Math.abs(moved) <= 2, `the answer has moved by ${moved} pixels when it was stored`);
});
