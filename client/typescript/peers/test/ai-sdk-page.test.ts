import assert from "node:assert/strict";
import { test } from "node:test";

import { options, Page } from "./page.js";
import { Scripts } from "./scripts.js";
import { Parleyd } from "./server.js";

test(
  "a page that reloads in mid-answer shows the complete answer, in the strict mode of React",
  options,
  async (t) => {
    const agent = new Scripts();
    const page = new Page();
    await page.serve(t);
    const flags = ["--http-address=127.0.0.1:0", `--http-allowed-origins=${page.origin}`];
    const server = await Parleyd.start(t, agent, ...flags);
    await page.open(t, "ai-sdk", await server.httpURL());

    await page.shows("ready");
    page.run("sendMessage", { text: "hi" });
    await page.shows("ready", "hi", "re: hi");
    page.run("sendMessage", { text: "slow" });
    const before = await page.shows("streaming", "hi", "re: hi", "slow", "Once upon");
    for (let reload = 0; reload < 2; reload++) {
      await page.reload();
      const after = await page.shows("streaming", "hi", "re: hi", "slow", "Once upon");
      assert.deepEqual(after.ids, before.ids);
    }
    agent.release();
    await page.shows("ready", "hi", "re: hi", "slow", "Once upon a time.");
    await page.reload();
    const end = await page.shows("ready", "hi", "re: hi", "slow", "Once upon a time.");
    assert.deepEqual(end.ids, before.ids);
    assert.equal(agent.requests.length, 2);

    page.run("regenerate");
    for (let id = before.ids[3]; id === before.ids[3]; ) {
      id = (await page.shows("ready", "hi", "re: hi", "slow", "Once upon a time.")).ids[3];
    }
    const { messages } = await server.client.listMessages({ conversationId: "user@example.com" });
    assert.equal(messages.length, 4);
    assert.equal(agent.requests.length, 3);
  },
);
