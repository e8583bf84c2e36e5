import assert from "node:assert/strict";
import { test } from "node:test";

import { Chat } from "@ai-sdk/react";
import { Client } from "@parleyhq/client";
import { ParleyChatTransport } from "@parleyhq/client/ai-sdk";

import { startProxy } from "../../dist/test/proxy.js";
import { Scripts } from "./scripts.js";
import { Parleyd } from "./server.js";

// The client gives up after a minute without a connection.
test("an answer that ends while the connection is lost is resumed", { timeout: 180_000 }, async (t) => {
  const agent = new Scripts();
  const server = await Parleyd.start(t, agent);
  const proxy = await startProxy(t, server.address);
  const client = new Client(proxy.address);
  t.after(() => client.close());
  let end: { isDisconnect: boolean } | undefined;
  const transport = new ParleyChatTransport({ client });
  const chat = new Chat({ id: "c", transport, onFinish: (finished) => (end = finished) });
  const sent = chat.sendMessage({ text: "slow" });
  await new Promise<void>((resolve) => {
    const unsubscribe = chat["~registerMessagesCallback"](() => {
      if (JSON.stringify(chat.messages).includes("Once upon")) {
        unsubscribe();
        resolve();
      }
    });
  });
  proxy.refuse(Infinity);
  proxy.cut();
  agent.release();
  await sent;
  assert.equal(end?.isDisconnect, true);
  assert.equal(chat.status, "error");

  proxy.refuse(0);
  await chat.resumeStream(); // useChat does so when the page becomes visible.
  assert.equal(chat.status, "ready");
  const texts = chat.messages.map(({ parts }) =>
    parts.map((part) => ("text" in part ? part.text : "")).join(""),
  );
  assert.deepEqual(texts, ["slow", "Once upon a time."]);
});
