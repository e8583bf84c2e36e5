import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { AgentServiceDefinition, Message, type RespondResponse, Role } from "@parleyhq/client";
import { type Client, ClientError, createChannel, createClient, Status } from "nice-grpc";

import { shopAgent, start, startShop } from "./process.js";

const created = [{ name: "Flour" }, { name: "Sugar" }, { name: "Salt" }];
const priced = [{ name: "Flour" }, { name: "Sugar", cents: 50 }, { name: "Salt" }];

function user(content: string): Message {
  return Message.fromPartial({ role: Role.ROLE_USER, content });
}

/** Returns an answer with structured data. */
function listed(...lists: [type: string, value: unknown][]): Message {
  const structuredData = lists.map(([type, value]) => ({ type, value }));
  return Message.fromPartial({ role: Role.ROLE_ASSISTANT, structuredData });
}

function connect(t: TestContext, address: string): Client<AgentServiceDefinition> {
  const channel = createChannel(address);
  t.after(() => channel.close());
  return createClient(AgentServiceDefinition, channel);
}

/** Returns the pieces of an answer: text as strings, any other piece as an object. */
async function pieces(answer: AsyncIterable<RespondResponse>): Promise<unknown[]> {
  const found = [];
  for await (const { piece } of answer) {
    found.push(piece?.$case === "text" ? piece.value : { [piece!.$case]: piece!.value });
  }
  return found;
}

test("answers", { timeout: 60_000 }, async (t) => {
  const shop = await startShop(t);
  const client = connect(t, shop.address);
  const change = (summary: string, value: unknown): unknown[] => [
    { structuredData: { type: "product_list", value } },
    { summary },
  ];
  const list = listed(["product_list", created]);
  const noProducts = ["There ", "are ", "no ", "products ", "yet.", { summary: "found no products" }];
  const none = { summary: "did not find a product" };
  const table: { name: string; history?: Message[]; content: string; want: unknown[] }[] = [
    {
      name: "create",
      content: "create three products",
      want: ["Created ", "Flour, ", "Sugar ", "and ", "Salt.", ...change("created three products", created)],
    },
    {
      name: "price",
      history: [list],
      content: "Sugar costs 50 cents",
      want: ["Sugar ", "costs ", "50 ", "cents.", ...change("set a price", priced)],
    },
    {
      name: "price in another case",
      history: [list],
      content: "sUGAR costs 50 cents",
      want: ["Sugar ", "costs ", "50 ", "cents.", ...change("set a price", priced)],
    },
    {
      name: "price of nothing",
      history: [list],
      content: "Pepper costs 1 cents",
      want: ["There ", "is ", "no ", "product ", "Pepper.", none],
    },
    { name: "price without a list", content: "Sugar costs 50 cents", want: noProducts },
    {
      name: "first",
      history: [list],
      content: "the first one is sold out",
      want: [
        "Flour ",
        "is ",
        "sold ",
        "out.",
        ...change("marked a product as sold out", [
          { name: "Flour", sold_out: true },
          { name: "Sugar" },
          { name: "Salt" },
        ]),
      ],
    },
    {
      name: "second",
      history: [list],
      content: "The second one is sold out",
      want: [
        "Sugar ",
        "is ",
        "sold ",
        "out.",
        ...change("marked a product as sold out", [
          { name: "Flour" },
          { name: "Sugar", sold_out: true },
          { name: "Salt" },
        ]),
      ],
    },
    {
      name: "third",
      history: [list],
      content: "the third one is sold out",
      want: [
        "Salt ",
        "is ",
        "sold ",
        "out.",
        ...change("marked a product as sold out", [
          { name: "Flour" },
          { name: "Sugar" },
          { name: "Salt", sold_out: true },
        ]),
      ],
    },
    {
      name: "third of one",
      content: "the third one is sold out",
      history: [listed(["product_list", [{ name: "Tea" }]])],
      want: ["There ", "is ", "no ", "third ", "product.", none],
    },
    { name: "sold out without a list", content: "the second one is sold out", want: noProducts },
    {
      name: "the newest list is used with all of its fields",
      content: "the second one is sold out",
      history: [list, listed(["product_list", priced]), listed(["note", ["Tea"]]), user("hm")],
      want: [
        "Sugar ",
        "is ",
        "sold ",
        "out.",
        ...change("marked a product as sold out", [
          { name: "Flour" },
          { name: "Sugar", cents: 50, sold_out: true },
          { name: "Salt" },
        ]),
      ],
    },
    {
      name: "data that is not a list is skipped",
      content: "Salt costs 7 cents",
      history: [list, listed(["product_list", "Salt"], ["product_list", [null]], ["product_list", null])],
      want: [
        "Salt ",
        "costs ",
        "7 ",
        "cents.",
        ...change("set a price", [{ name: "Flour" }, { name: "Sugar" }, { name: "Salt", cents: 7 }]),
      ],
    },
    {
      name: "anything else",
      history: [user("hello"), listed()],
      content: "How  are you?",
      want: [
        "You ",
        "said: ",
        "How  ",
        "are ",
        "you?. ",
        "I ",
        "know ",
        "3 ",
        "messages.",
        { summary: "repeated what was said" },
      ],
    },
  ];
  for (const { name, history = [], content, want } of table) {
    await t.test(name, async () => {
      assert.deepEqual(await pieces(client.respond({ messages: [...history, user(content)] })), want);
    });
  }
});

test("the text before a failure arrives", { timeout: 60_000 }, async (t) => {
  const shop = await startShop(t);
  const client = connect(t, shop.address);
  const said: string[] = [];
  const isClosed = { name: "ClientError", code: Status.UNAVAILABLE, details: "the shop is closed" };
  await assert.rejects(async () => {
    for await (const { piece } of client.respond({ messages: [user("fail")] })) {
      said.push(piece?.$case === "text" ? piece.value : "");
    }
  }, isClosed);
  assert.deepEqual(said, ["This will "]);
  const isEmpty = { name: "ClientError", code: Status.INVALID_ARGUMENT, details: /messages is empty/ };
  await assert.rejects(pieces(client.respond({})), isEmpty);
});

for (const signal of ["SIGINT", "SIGTERM"] as const) {
  test(`a cancelled answer does not delay the stop after ${signal}`, { timeout: 60_000 }, async (t) => {
    const shop = await startShop(t);
    const client = connect(t, shop.address);
    let ticks = 0;
    for await (const { piece } of client.respond({ messages: [user("slow")] })) {
      assert.deepEqual(piece, { $case: "text", value: "tick " });
      if (++ticks === 2) {
        break; // which cancels the call
      }
    }
    shop.kill(signal);
    assert.equal(await shop.ended, 0);
    assert.equal(shop.lines.length, 1, shop.lines.join("\n"));
  });
}

test("a stop cancels a running answer", { timeout: 60_000 }, async (t) => {
  const shop = await startShop(t);
  const client = connect(t, shop.address);
  let ticks = 0;
  await assert.rejects(async () => {
    for await (const _ of client.respond({ messages: [user("slow")] })) {
      if (++ticks === 1) {
        shop.kill("SIGTERM");
      }
    }
  }, ClientError);
  assert.equal(await shop.ended, 0);
  assert.match(shop.lines.at(-1) ?? "", /cancelled the answers/);
});

test("invalid flags are reported at the start", { timeout: 60_000 }, async (t) => {
  const shop = await startShop(t);
  const table: { args: string[]; want: RegExp }[] = [
    { args: ["--address", shop.address], want: /EADDRINUSE/ },
    { args: ["--address", "127.0.0.1"], want: /"127.0.0.1", want HOST:PORT/ },
    { args: ["--address", "127.0.0.1:65536"], want: /want HOST:PORT/ },
    { args: ["--port", "7003"], want: /--port/ },
  ];
  for (const { args, want } of table) {
    await t.test(args.join(" "), async (t) => {
      const refused = start(t, process.execPath, shopAgent, ...args);
      assert.equal(await refused.ended, 1);
      assert.match(refused.lines.join("\n"), want);
      assert.doesNotMatch(refused.lines.join("\n"), /serves/);
    });
  }
});
