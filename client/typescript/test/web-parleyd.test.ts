import assert from "node:assert/strict";
import { join } from "node:path";
import { type TestContext, test } from "node:test";

import type { Client, ConversationChange, ExportConversationsResponse, ParleyError } from "@parleyhq/client";
import type { Client as WebClient } from "@parleyhq/client/web";

import { browserOptions, startPage } from "./browser.js";
import { HTTPServer } from "./http-server.js";
import { textOf } from "./model.js";
import { connect, createToken, options, ScriptedAgent, serveAgent, tempFolder } from "./parleyd.js";
import { startProxy } from "./proxy.js";
import { read } from "./streams.js";
import { connectWeb, startWebParleyd } from "./web.js";

/** Starts an agent, a server and a proxy in front of it. Returns them with a web client of the proxy. */
async function behindProxy(t: TestContext, { data, more = {} }: { data?: string; more?: object } = {}) {
  const scripted = new ScriptedAgent();
  const agent = (await serveAgent(t, scripted)).address;
  const server = await startWebParleyd(t, { agent, data, more: { ...more } });
  const proxy = await startProxy(t, server.host);
  const url = `http://${proxy.address}`;
  return { scripted, agent, server, proxy, url, client: connectWeb(t, url) };
}

const message = (content: string) => ({ role: "ROLE_USER" as const, content });

test("replies and streams over HTTP equal those over gRPC", options, async (t) => {
  const { address, url } = await startWebParleyd(t);
  const grpc = connect(t, address);
  const http = connectWeb(t, url);
  await http.appendMessages({
    conversationId: "a/1 ü",
    createWith: { title: "T", labels: { a: "b" }, retention: { noExpiry: true } },
    messages: [
      message("Größe 😀"),
      {
        role: "ROLE_ASSISTANT",
        content: "",
        toolCalls: [{ id: "c", name: "find", arguments: "{}" }],
        native: { type: "form", value: Uint8Array.from({ length: 256 }, (_, i) => i) },
        structuredData: [{ type: "x", value: { a: [null, 1.5, "ü"] } }],
        usage: { inputTokens: 5 },
      },
    ],
    records: [{ key: "k/1", value: Uint8Array.of(0, 255), mediaType: "a/b", labels: { c: "" } }],
  });
  const { items } = await read(
    http.chat({ conversationId: "c", content: "hi", createWith: { retention: { noExpiry: true } } }),
  );
  assert.ok(textOf(items).includes("hi"));
  const reads: Record<string, (client: Client | WebClient) => unknown> = {
    getConversation: (c) => c.getConversation({ conversationId: "a/1 ü" }),
    loadConversation: (c) => c.loadConversation({ conversationId: "a/1 ü", recordPrefixes: ["k"] }),
    listConversations: (c) => c.listConversations({ labels: { a: "b" } }),
    listMessages: (c) => c.listMessages({ conversationId: "a/1 ü", ascending: true, pageSize: 1 }),
    getContext: (c) => c.getContext({ conversationId: "a/1 ü", window: { maxMessages: 1 } }),
    getRoutingSummary: (c) => c.getRoutingSummary({ conversationId: "a/1 ü", messageLimit: 0 }),
    batchGetRoutingSummaries: (c) => c.batchGetRoutingSummaries({ conversationIds: ["a/1 ü", "none"] }),
    listAgents: (c) => c.listAgents(),
    getTurn: (c) => c.getTurn({ turnId: items[0]!.turnId }),
    listTurns: (c) => c.listTurns({ states: ["TURN_STATE_COMPLETED", "TURN_STATE_FAILED"] }),
    getRecords: (c) => c.getRecords({ conversationId: "a/1 ü", keys: ["k/1", "none"] }),
    listRecords: (c) => c.listRecords({ conversationId: "a/1 ü", descending: true }),
    "records.get": (c) => c.records("a/1 ü").get("k/1"),
    "resumeTurn without an id": (c) => read(c.resumeTurn({ conversationId: "c" }) as AsyncIterable<unknown>),
    "resumeTurn after its end": (c) =>
      read(c.resumeTurn({ conversationId: "c", afterIndex: items.at(-1)!.index }) as AsyncIterable<unknown>),
    exportConversations: (c) =>
      read(c.exportConversations({ includeRecords: true }) as AsyncIterable<unknown>),
    "an error": async (c) => {
      const { error } = await read(
        c.resumeTurn({ conversationId: "c", turnId: "none" }) as AsyncIterable<unknown>,
      );
      const { code, reason, message } = error as { code: string; reason: string; message: string };
      return { code, reason, message };
    },
    "an invalid request": async (c) => {
      const invalid = c.appendMessages({
        conversationId: "c",
        messages: [message(""), {}],
        createWith: { id: "d" },
      });
      const error = (await invalid.catch((error: unknown) => error)) as Record<string, unknown>;
      return [error["code"], error["reason"], error["fieldViolations"]];
    },
  };
  for (const [name, call] of Object.entries(reads)) {
    // The clone of a Buffer is a Uint8Array.
    assert.deepEqual(structuredClone(await call(http)), structuredClone(await call(grpc)), name);
  }
});

test("an import and a backup over HTTP", options, async (t) => {
  const data = await tempFolder(t);
  const { url } = await startWebParleyd(t, { data });
  const client = connectWeb(t, url);
  for (const conversationId of ["a", "b"]) {
    await client.appendMessages({
      conversationId,
      messages: [message("one"), message("two")],
      records: [{ key: "k", value: new Uint8Array(2 << 20).fill(7) }],
    });
  }
  const exported: ExportConversationsResponse[] = [];
  for await (const entry of client.exportConversations({ includeRecords: true })) {
    exported.push(entry);
  }
  const other = connectWeb(t, (await startWebParleyd(t)).url);
  const reply = await other.importConversations(exported);
  assert.equal(reply.importedCount, 2, JSON.stringify(reply));
  assert.deepEqual((await other.records("b").get("k"))?.value, new Uint8Array(2 << 20).fill(7));
  assert.equal((await other.importConversations(exported)).skippedCount, 2);
  assert.equal((await other.importConversations([])).importedCount, 0);
  let size = 0;
  let last = 0;
  for await (const { chunk, sizeBytes } of client.backupStore()) {
    size += chunk.length;
    last = sizeBytes || last;
  }
  assert.ok(size > 4 << 20);
  assert.equal(size, last);
});

/** Reads a turn while the connection breaks in the middle of events. */
async function chatOverBreaks(
  { scripted, proxy }: Awaited<ReturnType<typeof behindProxy>>,
  client: WebClient,
  pieces: string[],
) {
  scripted.send(pieces[0]!);
  let sent = 1;
  return await read(client.chat({ conversationId: "c", content: "go" }), ({ event }) => {
    if (event?.$case !== "textDelta") {
      return;
    }
    if (sent === pieces.length) {
      scripted.end();
    } else if (sent % 2 === 1) {
      proxy.cut();
    } else {
      proxy.cutAfter(200 + 20 * sent); // Within the next bytes.
      proxy.cut();
    }
    scripted.send(...pieces.slice(sent, ++sent));
  });
}

test("chat over HTTP resumes over reset connections", options, async (t) => {
  const all = await behindProxy(t);
  const pieces = Array.from({ length: 40 }, (_, i) => `größer ${i}, `);
  const { items, error } = await chatOverBreaks(all, all.client, pieces);
  assert.ifError(error);
  assert.equal(textOf(items), pieces.join(""));
  assert.deepEqual(
    items.map(({ index }) => index),
    items.map((_, i) => i + 1),
  );
  const last = items.at(-1)?.event;
  assert.ok(last?.$case === "finished");
  assert.equal(last.value.messages[0]?.content, pieces.join(""));
  assert.equal(all.scripted.runs, 1);
  assert.ok(all.proxy.opened > 20, `${all.proxy.opened} connections`);
});

test("chat in a browser resumes over reset connections", browserOptions, async (t) => {
  const page = await startPage(t);
  const more = { http_allowed_origins: page.origin };
  const { scripted, proxy, url } = await behindProxy(t, { more });
  const pieces = Array.from({ length: 12 }, (_, i) => `größer ${i}, `);
  scripted.send(pieces[0]!);
  let sent = 1;
  const reading = page.run("readTurn", { url, content: "go" }, () => {
    if (sent === pieces.length) {
      scripted.end();
    } else {
      proxy.cut();
      scripted.send(pieces[sent++]!);
    }
  });
  const [indexes, text] = (await reading) as [number[], string];
  assert.equal(text, pieces.join(""));
  assert.deepEqual(
    indexes,
    indexes.map((_, i) => i + 1),
  );
  assert.equal(scripted.runs, 1);
  assert.ok(proxy.opened > 5, `${proxy.opened} connections`);
});

test("a worker of a page chats", browserOptions, async (t) => {
  const page = await startPage(t);
  const { url } = await startWebParleyd(t, { more: { http_allowed_origins: page.origin } });
  assert.equal(await page.run("chatInWorker", { url, content: "hello" }), "hello");
});

test("a page whose origin is not allowed gets a hint", browserOptions, async (t) => {
  const page = await startPage(t);
  const { url } = await startWebParleyd(t, { more: { http_allowed_origins: "https://other.example" } });
  await assert.rejects(
    page.run("readTurn", { url, content: "go" }),
    /UNAVAILABLE: cannot reach .*--http-allowed-origins/,
  );
});

test("a page does not follow a redirect", browserOptions, async (t) => {
  const page = await startPage(t);
  const other = new HTTPServer();
  const location = await other.serve(t);
  const server = new HTTPServer();
  const url = await server.serve(t);
  server.answers = [
    (response) => {
      response.writeHead(307, { location, "access-control-allow-origin": page.origin }).end();
    },
  ];
  await assert.rejects(
    page.run("readTurn", { url, content: "go" }),
    /FAILED_PRECONDITION: .* redirects calls;/,
  );
  assert.equal(server.requests.length, 1);
  assert.equal(other.requests.length, 0);
});

test("a conversation that is deleted while a stream is broken ends the stream", options, async (t) => {
  const { scripted, server, proxy, client } = await behindProxy(t);
  const direct = connect(t, server.address);
  scripted.send("one");
  const { items, error } = await read(
    client.chat({ conversationId: "c", content: "go" }),
    async ({ event }) => {
      if (event?.$case === "textDelta") {
        proxy.cut();
        await direct.deleteConversation({ conversationId: "c" });
      }
    },
  );
  assert.equal(textOf(items), "one");
  const { code, reason } = error as ParleyError;
  assert.deepEqual([code, reason], ["NOT_FOUND", "CONVERSATION_NOT_FOUND"]);
});

test("a watch over HTTP resumes over reset connections and a restart", options, async (t) => {
  const data = await tempFolder(t);
  const { agent, server, proxy, client } = await behindProxy(t, { data });
  let direct = connect(t, server.address);
  const append = (content: string) =>
    direct.appendMessages({ conversationId: "c", messages: [message(content)] });
  const seen: string[] = [];
  const steps: Record<string, () => Promise<unknown>> = {
    async first() {
      proxy.cut();
      await append("second");
    },
    async second() {
      server.kill("SIGKILL");
      await server.ended;
      const next = await startWebParleyd(t, { agent, data });
      direct = connect(t, next.address);
      await append("unseen");
      proxy.aim(next.host);
    },
    // The change "unseen" is missing. A program reads the state again after the gap.
    gap: () => append("third"),
  };
  const cursors = new Set<string>();
  for await (const change of client.watchConversations({ conversationIds: ["c"] })) {
    cursors.add(change.cursor);
    const what = describe(change);
    if (what === "heartbeat") {
      if (seen.length === 0) {
        await append("first");
      }
      continue;
    }
    if (what) {
      seen.push(what);
      await steps[what]?.();
    }
    if (what === "third") {
      break;
    }
  }
  assert.deepEqual(seen, ["first", "second", "gap", "third"]);
  assert.equal(cursors.has(""), false);
});

function describe({ kind, payload }: ConversationChange): string {
  if (kind === "CHANGE_KIND_HEARTBEAT" || kind === "CHANGE_KIND_GAP") {
    return kind.slice("CHANGE_KIND_".length).toLowerCase();
  }
  return payload?.$case === "message" ? payload.value.content : "";
}

test("an appender over HTTP loses and repeats nothing over reset connections", options, async (t) => {
  const { proxy, client } = await behindProxy(t);
  const appender = client.appender();
  const count = 1500;
  const replies = Array.from({ length: count }, (_, i) =>
    appender.append({
      conversationId: `c${i % 100}`,
      messages: [message(`${i}`)],
      createWith: { retention: { keepAll: true } },
    }),
  );
  for (const at of [0, 100, 101, 500, 1000, 1400]) {
    await replies[at];
    proxy.cut();
  }
  const settled = await Promise.allSettled(replies);
  await appender.close();
  assert.deepEqual(
    settled.filter(({ status }) => status === "rejected"),
    [],
  );
  for (let c = 0; c < 100; c++) {
    const { messages } = await client.listMessages({
      conversationId: `c${c}`,
      ascending: true,
      pageSize: 100,
    });
    assert.deepEqual(
      messages.map(({ content }) => Number(content)),
      Array.from({ length: count / 100 }, (_, i) => 100 * i + c),
    );
  }
  assert.ok(proxy.opened > 2, `${proxy.opened} connections`);
});

test("a call over HTTP is repeated while the server restarts", options, async (t) => {
  const { proxy, client } = await behindProxy(t);
  const request = { conversationId: "c", messages: [message("hello")] };
  await client.appendMessages(request);
  proxy.cut();
  proxy.cutAfter(60); // The reset cuts the reply.
  const { conversation } = await client.appendMessages(request);
  assert.equal(conversation?.lastSequence, 2);
});

test("a token signs in over HTTP", options, async (t) => {
  const file = join(await tempFolder(t), "tokens");
  const reader = await createToken(t, file, "--tenant=acme", "--role=reader");
  const several = await createToken(t, file, "--tenant=acme", "--tenant=other", "--role=writer");
  const { url } = await startWebParleyd(t, { more: { auth_token_file: file } });
  await assert.rejects(connectWeb(t, url).listConversations({}), {
    code: "UNAUTHENTICATED",
    reason: "UNAUTHENTICATED",
  });
  const reading = connectWeb(t, url, { token: reader });
  assert.deepEqual((await reading.listConversations({})).conversations, []);
  await assert.rejects(reading.appendMessages({ conversationId: "c", messages: [message("a")] }), {
    code: "PERMISSION_DENIED",
    reason: "PERMISSION_DENIED",
  });
  await assert.rejects(connectWeb(t, url, { token: several }).listConversations({}), {
    code: "INVALID_ARGUMENT",
    reason: "TENANT_REQUIRED",
  });
  const tokens = ["parley_wrong", several];
  const replaced = connectWeb(t, url, { token: () => tokens.shift() ?? several, tenant: "other" });
  await replaced.appendMessages({ conversationId: "c", messages: [message("a")] });
  const { items, error } = await read(replaced.chat({ conversationId: "c", content: "b" }));
  assert.ifError(error);
  assert.equal(items.at(-1)?.event?.$case, "finished");
});
