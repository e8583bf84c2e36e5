import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { test } from "node:test";

import { type Client, Role } from "@parleyhq/client";

import { tempFolder } from "../../../../../client/typescript/test/parleyd.js";

import { converse, options, settle, startConsole } from "./console.js";

const axe = readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** The places of the console, with something that each of them shows. */
const places = [
  "#/conversations",
  "#/conversations/c/messages",
  "#/conversations/c/routing",
  "#/conversations/c/context",
  "#/conversations/c/context?max_messages=2",
  "#/conversations/c/turns",
  "#/conversations/c/log",
  "#/conversations/c/details",
  "#/conversations/missing",
  "#/turns",
  "#/turns?state=waiting",
  "#/turns?state=all",
  "#/log",
  "#/log?text=weather&days=7",
  "#/server",
];

/** Appends messages of every kind, and runs a turn. */
async function fillConversation(client: Client): Promise<void> {
  await client.createConversation({
    conversation: { id: "c", title: "The weather in Oslo and other questions", labels: { team: "red" } },
  });
  await client.appendMessages({
    conversationId: "c",
    messages: [
      {
        role: Role.ROLE_USER,
        content: "What is the weather?",
        attachments: [{ uri: "https://files.example/map.png", filename: "map.png", mediaType: "image/png" }],
      },
      {
        role: Role.ROLE_ASSISTANT,
        agent: "planner",
        content: "I ask the service.",
        reasoning: "There is a tool for it.",
        summary: "asked for the weather",
        structuredData: [{ type: "place", value: { city: "Oslo", position: [59.9, 10.7] } }],
        toolCalls: [{ id: "call-1", name: "weather", arguments: '{"city": "Oslo"}' }],
      },
      {
        role: Role.ROLE_TOOL,
        toolResult: { callId: "call-1", name: "weather", content: "no network", isError: true },
      },
      {
        role: Role.ROLE_ASSISTANT,
        agent: "planner",
        toolCalls: [{ id: "call-2", name: "weather", arguments: '{"city": "Oslo"}' }],
      },
    ],
  });
  for await (const _ of client.chat({ conversationId: "c", content: "Are you there?", agent: "echo" })) {
    // Until the turn ends.
  }
  await client.forkConversation({ conversationId: "c", newConversationId: "fork", atSequence: 4 });
}

for (const scheme of ["light", "dark"] as const) {
  test(`every view is accessible, ${scheme}`, options, async (t) => {
    const { client, url, faults, open } = await startConsole(t, {
      data: await tempFolder(t),
      more: { interaction_log: true },
    });
    await fillConversation(client);
    const page = await open("", { colorScheme: scheme, bypassCSP: true });
    await page.addScriptTag({ content: await axe });
    for (const place of places) {
      await page.goto(`${url}/${place}`);
      await settle(page);
      const problems = await page.evaluate(async () => {
        const { violations } = await (window as never as { axe: typeof import("axe-core") }).axe.run(
          document,
          {
            runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
          },
        );
        return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
      });
      assert.deepEqual(problems, [], place);
    }
    faults.length = 0;
  });
}

test("every view fits a width of 360 pixels", options, async (t) => {
  const { client, url, open } = await startConsole(t, {
    data: await tempFolder(t),
    more: { interaction_log: true },
  });
  await fillConversation(client);
  await converse(client, "x".repeat(256), `https://example.com/${"y".repeat(3000)}`, "z".repeat(3000));
  const page = await open("", { viewport: { width: 360, height: 640 } });
  for (const place of [...places, `#/conversations/${"x".repeat(256)}`]) {
    await page.goto(`${url}/${place}`);
    await settle(page);
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= 360, `${place} is ${width} pixels wide`);
    const wide = await page
      .locator(".wide")
      .evaluateAll((all) => all.filter((one) => one.scrollWidth > one.clientWidth).length);
    assert.equal(wide, 0, `${place} has tables that scroll sideways`);
    const messages = await page
      .locator(".scroll")
      .evaluateAll((all) => all.map((one) => one.clientHeight / innerHeight));
    assert.ok(
      messages.every((share) => share > 0.5),
      `${place} has ${messages.join()} of the height for messages`,
    );
    const name = place.replace(/\W+/g, "-").slice(0, 60);
    await page.screenshot({ path: `screenshots/narrow${name}.png` });
  }
});

test("the keys move, open, filter and leave", options, async (t) => {
  const { client, open } = await startConsole(t);
  for (const id of ["one", "two", "three"]) {
    await converse(client, id, `hello ${id}`);
  }
  const page = await open();
  await page.locator(".row").nth(2).waitFor();
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  await page.keyboard.press("k");
  await page.locator(".row.chosen", { hasText: "two" }).waitFor();
  await page.keyboard.press("Enter");
  await page.locator(".conversation-head h2", { hasText: "two" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByText("Choose a conversation.").waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("thr");
  await page.keyboard.press("Enter");
  await page.locator(".conversation-head h2", { hasText: "three" }).waitFor();
  await page.getByText("1 match among").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement?.getAttribute("type")), "search");
});
