import assert from "node:assert/strict";
import { test } from "node:test";

import { options, Page } from "./page.js";
import { Scripts } from "./scripts.js";
import { Parleyd } from "./server.js";

test("a page shows an answer, reloads in the middle, and continues without a gap", options, async (t) => {
  const agent = new Scripts();
  const page = new Page();
  await page.serve(t);
  const flags = ["--http-address=127.0.0.1:0", `--http-allowed-origins=${page.origin}`];
  const server = await Parleyd.start(t, agent, ...flags);
  await page.open(t, "ag-ui", await server.httpURL());

  await page.shows("ready", "");
  page.run("send", "hi");
  const first = ["user: hi", "assistant: re: hi"];
  await page.shows("ready", ...first);
  page.run("send", "slow");
  const before = await page.shows("streaming", ...first, "user: slow", "assistant: Once upon");
  for (let reload = 0; reload < 2; reload++) {
    await page.reload();
    const after = await page.shows("streaming", ...first, "user: slow", "assistant: Once upon");
    assert.deepEqual(after.ids, before.ids);
  }
  agent.release();
  const all = [...first, "user: slow", "assistant: Once upon a time."];
  const end = await page.shows("ready", ...all);
  assert.deepEqual(end.ids, before.ids);
  await page.reload();
  assert.deepEqual((await page.shows("ready", ...all)).ids, before.ids);
  assert.equal(agent.requests.length, 2);
  const { messages } = await server.client.listMessages({ conversationId: "user@example.com" });
  assert.equal(messages.length, 4);
});

test("a page that stops an answer shows what is stored of it", options, async (t) => {
  const page = new Page();
  await page.serve(t);
  const flags = ["--http-address=127.0.0.1:0", `--http-allowed-origins=${page.origin}`];
  const server = await Parleyd.start(t, new Scripts(), ...flags);
  await page.open(t, "ag-ui", await server.httpURL());
  await page.shows("ready", "");
  page.run("send", "slow");
  await page.shows("streaming", "user: slow", "assistant: Once upon");
  page.run("stop");
  await page.shows("ready", "user: slow", "assistant: Once upon");
  const { turns } = await server.client.listTurns({ conversationId: "user@example.com" });
  assert.equal(turns[0]!.state, "TURN_STATE_CANCELLED");
});
