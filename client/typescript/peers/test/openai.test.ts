import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";

import OpenAI, { APIError, BadRequestError } from "openai";

import { Scripts } from "./scripts.js";
import { Parleyd } from "./server.js";

const options = { timeout: 60_000 };

const weather = { id: "c1", name: "weather", arguments: '{"city": "Köln"}' };

/** The official client, unmodified, with the base URL of a server whose agent is "own". */
async function start(t: TestContext) {
  const agent = new Scripts({
    weather: () => ["I ask. ", { toolCall: weather }],
  });
  const server = await Parleyd.start(t, agent, "--http-address=127.0.0.1:0");
  const client = async () => new OpenAI({ baseURL: `${await server.httpURL()}/openai/v1`, apiKey: "any" });
  return { server, agent, client, openai: await client() };
}

test("conversations have their items", options, async (t) => {
  const { openai } = await start(t);
  const conversation = await openai.conversations.create({
    metadata: { topic: "demo" },
    items: [{ type: "message", role: "user", content: "Hello!" }],
  });
  assert.deepEqual(conversation.metadata, { topic: "demo" });
  const created = await openai.conversations.items.create(conversation.id, {
    items: [
      { type: "message", role: "user", content: [{ type: "input_text", text: "two" }] },
      { type: "function_call", call_id: "c", name: "f", arguments: "{}" },
      { type: "function_call_output", call_id: "c", output: "done" },
    ],
  });
  const ids: (string | undefined)[] = [];
  for await (const item of openai.conversations.items.list(conversation.id, { order: "asc", limit: 2 })) {
    ids.push(item.id);
  }
  assert.equal(ids.length, 4);
  assert.deepEqual(
    ids.slice(1),
    created.data.map((item) => item.id),
  );
  const first = await openai.conversations.items.retrieve(ids[0]!, {
    conversation_id: conversation.id,
  });
  assert.ok(first.type === "message" && first.content[0]?.type === "input_text");
  assert.equal(first.content[0].text, "Hello!");
  await openai.conversations.items.delete(ids[3]!, { conversation_id: conversation.id });
  const rest = await openai.conversations.items.list(conversation.id);
  assert.deepEqual(
    rest.data.map((item) => item.id),
    [ids[2], ids[1], ids[0]],
  );
  const updated = await openai.conversations.update(conversation.id, { metadata: { a: "b" } });
  assert.deepEqual(updated.metadata, { a: "b" });
  assert.deepEqual(await openai.conversations.retrieve(conversation.id), updated);
  assert.ok((await openai.conversations.delete(conversation.id)).deleted);
  await assert.rejects(openai.conversations.retrieve(conversation.id), { status: 404 });
});

test("responses continue one another, with tools", options, async (t) => {
  const { openai } = await start(t);
  const first = await openai.responses.create({ model: "own", input: "weather" });
  assert.equal(first.output_text, "I ask. ");
  const call = first.output.find((item) => item.type === "function_call")!;
  assert.equal(call.arguments, weather.arguments);
  const second = await openai.responses.create({
    model: "own",
    previous_response_id: first.id,
    input: [{ type: "function_call_output", call_id: call.call_id, output: "12 °C" }],
  });
  assert.equal(second.output_text, "re: 12 °C");
  assert.deepEqual(await openai.responses.retrieve(second.id), second);
  const input = await openai.responses.inputItems.list(second.id);
  assert.equal(input.data[0]?.type, "function_call_output");
  const models = await openai.models.list();
  assert.deepEqual(
    models.data.map((model) => model.id),
    ["echo", "own"],
  );
});

test("streams are accepted by the client's own accumulator", options, async (t) => {
  const { openai } = await start(t);
  const stream = openai.responses.stream({ model: "own", input: "weather" });
  let text = "";
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") {
      text += event.delta;
    }
  }
  const final = await stream.finalResponse();
  assert.equal(text, "I ask. ");
  assert.equal(final.output_text, text);
  assert.deepEqual(
    final.output.map((item) => item.type),
    ["message", "function_call"],
  );
});

test("a background response continues without its client and can be resumed", options, async (t) => {
  const { openai, agent } = await start(t);
  const begun = await openai.responses.create({ model: "own", input: "slow", background: true });
  assert.equal(begun.status, "in_progress");
  let text = "";
  let last = 0;
  const watched = await openai.responses.retrieve(begun.id, { stream: true });
  for await (const event of watched) {
    last = event.sequence_number;
    if (event.type === "response.output_text.delta") {
      text += event.delta;
      break; // The client leaves.
    }
  }
  agent.release();
  const rest = await openai.responses.retrieve(begun.id, { stream: true, starting_after: last });
  for await (const event of rest) {
    if (event.type === "response.output_text.delta") {
      text += event.delta;
    }
  }
  assert.equal(text, "Once upon a time.");
  const cancelled = await openai.responses.create({ model: "own", input: "slow", background: true });
  assert.ok(["cancelled", "completed"].includes((await openai.responses.cancel(cancelled.id)).status!));
});

test("after a kill of the server in mid-stream the client has the text of the store", options, async (t) => {
  const { openai, server, client } = await start(t);
  const stream = await openai.responses.create({ model: "own", input: "slow", stream: true });
  let id = "";
  await assert.rejects(async () => {
    for await (const event of stream) {
      if (event.type === "response.created") {
        id = event.response.id;
      } else if (event.type === "response.output_text.delta") {
        await server.stop();
      }
    }
    throw new Error("the stream ended");
  });
  await server.restart();
  const restarted = await client();
  const final = await restarted.responses.retrieve(id);
  assert.equal(final.status, "failed");
  const items = await restarted.conversations.items.list(final.conversation!.id, { order: "asc" });
  const stored = items.data.slice(1).map((item) => {
    assert.ok(item.type === "message" && item.content[0]?.type === "output_text");
    return item.content[0].text;
  });
  assert.equal(final.output_text, stored.join(""));
});

test("what is not supported is refused by name", options, async (t) => {
  const { openai } = await start(t);
  const refused = [
    [{ temperature: 0 }, "temperature"],
    [{ tools: [{ type: "web_search" as const }] }, "tools"],
    [{ store: false, previous_response_id: "resp_1" }, "store"],
    [{ model: "nobody" }, "model"],
  ] as const;
  for (const [fields, param] of refused) {
    await assert.rejects(
      openai.responses.create({ model: "own", input: "x", ...fields } as never),
      (error) => error instanceof BadRequestError && error.param === param && !!error.code,
    );
  }
  await assert.rejects(openai.responses.delete("resp_1"), (error) => error instanceof APIError);
});
