import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import {
  Agent,
  type ConversationChange,
  type Input,
  jsonValue,
  jsonWrite,
  ParleyError,
  type Record as ParleyRecord,
  type Piece,
  type RecordChange,
  RecordServiceDefinition,
  type Records,
  type RecordWrite,
  RevisionMismatchError,
  type TurnEvent,
  type WatchConversationsRequest,
} from "@parleyhq/client";
import { createServer, ServerError, type ServiceImplementation, Status } from "nice-grpc";

import { connect, options, serveAgent, startParleyd } from "./parleyd.js";

/** The state of a graph. */
interface State {
  step: number;
}

/** Starts a server. Returns its client and the records of a new conversation "c". */
async function startRecords(t: TestContext, more: Readonly<{ [key: string]: unknown }> = {}) {
  const client = connect(t, (await startParleyd(t, { more })).address);
  await client.loadConversation({ conversationId: "c" });
  return { client, records: client.records("c") };
}

async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const item of items) {
    all.push(item);
  }
  return all;
}

const keysOf = (records: readonly ParleyRecord[]) => records.map(({ key }) => key);
const say = (...records: Input<RecordWrite>[]) => ({
  conversationId: "c",
  messages: [{ role: "ROLE_USER" as const, content: "hello" }],
  records,
});
const bytes = (text: string) => new TextEncoder().encode(text);

test("a record has the value, the revision and the fields of its last write", options, async (t) => {
  const { client, records } = await startRecords(t);
  assert.equal(await records.get("a"), undefined);
  const first = await records.put("a", bytes("old"), { labels: { kind: "old" } });
  assert.equal(first, (await client.getConversation({ conversationId: "c" })).conversation?.version);
  const revision = await records.put("a", Uint8Array.of(0, 255), {
    mediaType: "image/x",
    labels: { kind: "new" },
  });
  const { updateTime, ...rest } = (await records.get("a"))!;
  assert.ok(updateTime instanceof Date);
  assert.deepEqual(rest, {
    conversationId: "c",
    key: "a",
    value: Buffer.of(0, 255),
    mediaType: "image/x",
    revision,
    labels: { kind: "new" },
    expireTime: undefined,
    sizeBytes: 2,
  });
  await records.delete("a");
  assert.equal(await records.get("a"), undefined);
  assert.ok((await records.put("a", bytes("again"), { ifRevision: 0 })) > revision + 1);
  const version = async () => (await client.getConversation({ conversationId: "c" })).conversation?.version;
  const before = (await version())!;
  await records.delete("never there");
  assert.equal(await version(), before + 1);
  assert.equal((await records.write([{ key: "never there", delete: true }])).revision, 0);
});

test("JSON is read as it was written", options, async (t) => {
  const { records } = await startRecords(t);
  for (const value of [
    null,
    false,
    0,
    -1.5,
    "",
    'ü😀\u2028"\\',
    [],
    {},
    [null, [1, {}]],
    { a: { "": ["b"] } },
  ]) {
    const revision = await records.putJSON("value", value, { labels: { a: "b" } });
    assert.deepEqual(await records.getJSON("value"), { value, revision });
    const record = (await records.get("value"))!;
    assert.deepEqual([record.mediaType, record.labels], ["application/json", { a: "b" }]);
    assert.deepEqual(jsonValue(record), value);
  }
  const date = new Date(0);
  await records.putJSON("value", { date, left: undefined, own: { toJSON: () => [1] } });
  assert.deepEqual((await records.getJSON("value")).value, { date: date.toJSON(), own: [1] });
  assert.deepEqual(await records.getJSON("other"), { value: undefined, revision: 0 });
  for (let wanted = 1; wanted <= 3; wanted++) {
    const { value, revision } = await records.getJSON<State>("state");
    assert.equal(value?.step ?? 0, wanted - 1);
    await records.putJSON<State>("state", { step: wanted }, { ifRevision: revision });
  }
});

test("a value that is not JSON is neither written nor read", options, async (t) => {
  const { records } = await startRecords(t);
  const circle: unknown[] = [];
  circle.push(circle);
  for (const value of [
    undefined,
    () => 1,
    1n,
    circle,
    Number.NaN,
    [Number.POSITIVE_INFINITY],
    { a: -1 / 0 },
    { a: new Map([["b", 1]]) },
    [new Set()],
    { a: Uint8Array.of(1) },
    Buffer.of(1),
    new Float64Array(1),
    new DataView(new ArrayBuffer(1)),
    { a: new ArrayBuffer(1) },
    new SharedArrayBuffer(1),
    [undefined],
    { a: () => 1 },
    [Symbol("a")],
    { a: new Date(Number.NaN) },
  ]) {
    const wanted = { code: "INVALID_ARGUMENT", message: /record "a"/ };
    await assert.rejects(records.putJSON("a", value), wanted);
    assert.throws(() => jsonWrite("a", value), wanted);
  }
  await assert.rejects(records.put("a", "text" as never), { code: "INVALID_ARGUMENT" });
  assert.equal(await records.get("a"), undefined);
  for (const value of [Uint8Array.of(), bytes("{"), Uint8Array.of(34, 255, 34)]) {
    await records.put("a", value);
    await assert.rejects(records.getJSON("a"), { name: "SyntaxError", message: /record "a" is not JSON/ });
  }
});

test("a revision mismatch names the record, and nothing is written", options, async (t) => {
  const { client, records } = await startRecords(t);
  const revision = await records.put("b", bytes("1"));
  const batch = [
    { key: "a", value: Buffer.from("2") },
    { key: "b", value: Buffer.from("2"), ifRevision: revision + 1 },
    { key: "c", value: Buffer.from("2"), ifRevision: 7 },
  ];
  const appender = client.appender();
  const writes: (() => Promise<unknown>)[] = [
    () => records.write(batch),
    () => records.put("b", bytes("2"), { ifRevision: revision + 1 }),
    () => records.putJSON("b", 2, { ifRevision: 0 }),
    () => records.delete("b", { ifRevision: revision - 1 }),
    () => client.appendMessages(say(...batch)),
    () => appender.append(say(...batch)),
    () => collect(client.chat({ conversationId: "c", content: "hello", records: batch })),
  ];
  const mismatch = async (write: () => Promise<unknown>) => {
    const error = await write().then(
      () => assert.fail("the write succeeded"),
      (error: unknown) => error,
    );
    assert.ok(error instanceof RevisionMismatchError && error instanceof ParleyError, String(error));
    assert.deepEqual(
      [error.name, error.code, error.reason],
      ["RevisionMismatchError", "ABORTED", "REVISION_MISMATCH"],
    );
    return { key: error.key, currentRevision: error.currentRevision, tenantScope: error.tenantScope };
  };
  for (const write of writes) {
    assert.deepEqual(await mismatch(write), { key: "b", currentRevision: revision, tenantScope: false });
  }
  await appender.close();
  const ofTenant = { key: "b", tenantScope: true, ifRevision: 1 };
  assert.deepEqual(await mismatch(() => records.write([{ key: "b" }, ofTenant])), {
    key: "b",
    currentRevision: 0,
    tenantScope: true,
  });
  assert.deepEqual(keysOf(await collect(records.list())), ["b"]);
  const { conversation } = await client.getConversation({ conversationId: "c" });
  assert.deepEqual([conversation?.version, conversation?.messageCount], [revision, 0]);
});

test("the error of a request over gRPC's limit says what to do", options, async (t) => {
  const { client, records } = await startRecords(t);
  const batch = ["a", "b"].map((key) => ({ key, value: new Uint8Array(3 << 20) }));
  const appender = client.appender();
  const writes: (() => Promise<unknown>)[] = [
    () => records.write(batch),
    () => client.appendMessages(say(...batch)),
    () => appender.append(say(...batch)),
    () => collect(client.chat({ conversationId: "c", content: "hello", records: batch })),
  ];
  for (const write of writes) {
    await assert.rejects(write, {
      code: "RESOURCE_EXHAUSTED",
      message:
        /the request has 6291\d+ bytes, the limit is 4194304; send fewer or smaller messages and records$/,
    });
  }
  await appender.close();
});

test("a list has the records of all its pages", options, async (t) => {
  const { records } = await startRecords(t);
  const keys = Array.from({ length: 230 }, (_, i) => `step/${String(i).padStart(3, "0")}`);
  for (let start = 0; start < keys.length; start += 100) {
    await records.write(keys.slice(start, start + 100).map((key) => ({ key, value: Buffer.from(key) })));
  }
  await records.put("step", bytes("shorter"));
  await records.put("steq", bytes("later"));
  const listed = async (...fields: Parameters<Records["list"]>) =>
    keysOf(await collect(records.list(...fields)));
  const prefix = "step/";
  assert.deepEqual(await listed(), ["step", ...keys, "steq"]);
  assert.deepEqual(await listed({ prefix }), keys);
  assert.deepEqual(await listed({ prefix, pageSize: 7 }), keys);
  assert.deepEqual(await listed({ prefix, pageSize: 100, descending: true }), [...keys].reverse());
  assert.deepEqual(await listed({ prefix, afterKey: "step/1", pageSize: 50 }), keys.slice(100));
  assert.deepEqual(
    await listed({ prefix, afterKey: "step/100", descending: true }),
    keys.slice(0, 100).reverse(),
  );
  assert.deepEqual(await listed({ prefix: "nothing" }), []);
  for await (const { key, value } of records.list({ prefix })) {
    assert.equal(value.toString(), key);
  }
  for await (const { value, sizeBytes } of records.list({ prefix, keysOnly: true })) {
    assert.deepEqual([value.length, sizeBytes], [0, 8]);
  }
  const again = records.list({ prefix: "step" });
  assert.equal((await collect(again)).length, 231);
  assert.equal((await collect(again)).length, 231);
});

test("the loop over many keys also gets the records that did not fit", options, async (t) => {
  const { client, records } = await startRecords(t);
  for (const key of ["a", "b", "c"]) {
    await records.put(key, Buffer.alloc(2 << 20, key));
  }
  const small = Array.from({ length: 99 }, (_, i) => `small/${String(i).padStart(2, "0")}`);
  await records.write(small.map((key) => ({ key })));
  const reply = await client.getRecords({ conversationId: "c", keys: ["b", "none", "a"] });
  assert.deepEqual([keysOf(reply.records), reply.omittedKeys], [["b"], ["a"]]);
  const got = await collect(records.getAll(["b", "none", "a", ...small, "c", "b"]));
  assert.deepEqual(keysOf(got).sort(), ["a", "b", "c", ...small]);
  assert.ok(got.every(({ key, value }) => value.length === (key.length > 1 ? 0 : 2 << 20)));
  assert.deepEqual(await collect(records.getAll([])), []);
  const wanted = { code: "INVALID_ARGUMENT", message: /keys is the string "abc", want an array/ };
  assert.throws(() => records.getAll("abc" as never), wanted);
});

test("the records of the tenant are others, and may expire", options, async (t) => {
  const { client, records } = await startRecords(t);
  const tenant = client.tenantRecords();
  await records.put("a", bytes("of the conversation"));
  const first = await tenant.put("a", bytes("old"), { ifRevision: 0 });
  const second = await tenant.put("a", bytes("new"), { ifRevision: first, ttl: { seconds: 60 } });
  assert.ok(second > first);
  const record = (await tenant.get("a"))!;
  assert.deepEqual([record.conversationId, record.value.toString(), record.revision], ["", "new", second]);
  assert.equal(record.expireTime!.getTime() - record.updateTime!.getTime(), 60_000);
  assert.equal((await records.get("a"))?.value.toString(), "of the conversation");
  await assert.rejects(records.put("a", bytes("x"), { ttl: { seconds: 60 } }), { code: "INVALID_ARGUMENT" });
  await tenant.delete("a");
  assert.deepEqual(await collect(tenant.list()), []);

  const batch = [jsonWrite("both", 1), jsonWrite("both", 2, { tenantScope: true })];
  const { conversation } = await client.getConversation({ conversationId: "c" });
  const ifVersion = conversation!.version;
  const { revision, tenantRevision } = await records.write(batch, { ifVersion });
  assert.deepEqual(await records.getJSON("both"), { value: 1, revision });
  assert.deepEqual(await tenant.getJSON("both"), { value: 2, revision: tenantRevision });
  await assert.rejects(records.write(batch, { ifVersion }), { reason: "VERSION_MISMATCH" });
});

test("a call with the same requestId writes once", options, async (t) => {
  const { records } = await startRecords(t);
  const revision = await records.putJSON("a", 1, { requestId: "r1" });
  await records.putJSON("a", 2);
  assert.equal(await records.putJSON("a", 1, { requestId: "r1" }), revision);
  await records.delete("a", { requestId: "r2" });
  await records.put("a", bytes("3"), { requestId: "r3" });
  await records.delete("a", { requestId: "r2" });
  assert.equal((await records.getJSON("a")).value, 3);
});

test("the calls do not make a conversation, and an empty id is not the tenant", options, async (t) => {
  const { client } = await startRecords(t);
  const records = client.records("never made");
  for (const call of [
    () => records.get("a"),
    () => records.put("a", bytes("1")),
    () => collect(records.list()),
    () => collect(records.getAll(["a"])),
  ]) {
    await assert.rejects(call, { reason: "CONVERSATION_NOT_FOUND" });
  }
  assert.throws(() => client.records(""), { code: "INVALID_ARGUMENT", message: /tenantRecords/ });
});

test("messages and records are one commit and one read", options, async (t) => {
  const { client, records } = await startRecords(t);
  const shared = jsonWrite("shared", "s", { tenantScope: true });
  const reply = await client.appendMessages(
    say(jsonWrite("state/graph", { step: 1 }), shared, { key: "blob" }),
  );
  const load = { conversationId: "c", recordPrefixes: ["state/"] };
  const loaded = await client.loadConversation(load);
  const context = await client.getContext({ conversationId: "c", recordPrefixes: ["state/", "bl"] });
  assert.deepEqual(keysOf(loaded.records), ["state/graph"]);
  assert.deepEqual(keysOf(context.records), ["blob", "state/graph"]);
  assert.deepEqual(jsonValue<State>(loaded.records[0]!), { step: 1 });
  assert.equal(loaded.records[0]!.revision, reply.conversation?.version);
  assert.equal((await client.tenantRecords().get("shared"))?.revision, reply.tenantRevision);

  const { watchCursor } = await client.listConversations({});
  for await (const { event } of client.chat({
    conversationId: "c",
    content: "note",
    records: [jsonWrite("note", 1)],
  })) {
    assert.ok(event?.$case !== "finished" || event.value.turn?.state === "TURN_STATE_COMPLETED");
  }
  const { value, revision } = await records.getJSON("note");
  assert.equal(value, 1);
  await records.delete("note");
  await client.appendMessages({ conversationId: "c", messages: [{ role: "ROLE_USER", content: "end" }] });

  const changes = async (request: Input<WatchConversationsRequest>) => {
    const seen: RecordChange[] = [];
    for await (const change of client.watchConversations({ ...request, cursor: watchCursor })) {
      if (change.kind === "CHANGE_KIND_RECORD" && change.record) {
        seen.push(change.record);
      }
      if (isEnd(change)) {
        break;
      }
    }
    return seen;
  };
  assert.deepEqual(await changes({}), []);
  const [written, deleted, ...rest] = await changes({ includeRecords: true });
  assert.deepEqual(written, { key: "note", revision, deleted: false });
  assert.deepEqual([deleted?.key, deleted?.deleted, rest], ["note", true, []]);
  assert.ok(deleted!.revision > revision);
});

function isEnd({ payload }: ConversationChange): boolean {
  return payload?.$case === "message" && payload.value.content === "end";
}

test("an empty list of sequences does not clear a conversation", options, async (t) => {
  const { client } = await startRecords(t);
  await client.appendMessages(say());
  const conversationId = "c";
  const refused = { code: "INVALID_ARGUMENT", message: /sequences is empty/ };
  await assert.rejects(client.clearConversation({ conversationId, sequences: [] }), refused);
  for (const [request, left] of [
    [{ sequences: [2] }, 1],
    [{ sequences: [], afterSequence: 1 }, 1],
    [{ sequences: [1] }, 0],
    [{ sequences: undefined }, 0],
  ] as const) {
    const { conversation } = await client.clearConversation({ conversationId, ...request });
    assert.equal(conversation?.messageCount, left);
  }
});

test("the records of an agent are written with its answer", options, async (t) => {
  class Recorder extends Agent {
    override async *respond({ messages }: { messages: { content: string }[] }): AsyncGenerator<Piece> {
      yield "noted";
      if (messages.at(-1)?.content === "late") {
        yield { record: jsonWrite("b", 1) };
        yield { record: jsonWrite("a", 4, { ifRevision: 0 }) };
      } else {
        yield { record: jsonWrite("a", 1) };
        yield { record: { key: "t", value: Buffer.from("2"), tenantScope: true } };
        yield { record: jsonWrite("a", 3) };
      }
      yield ".";
    }
  }
  const { address } = await serveAgent(t, new Recorder());
  const client = connect(t, (await startParleyd(t, { agent: address })).address);
  const chat = async (content: string) => {
    const events = (await collect(client.chat({ conversationId: "c", content }))).map(({ event }) => event);
    const last = events.at(-1);
    assert.ok(last?.$case === "finished");
    return { finished: last.value, records: events.flatMap(recordOf) };
  };
  const good = await chat("good");
  assert.equal(good.finished.turn?.state, "TURN_STATE_COMPLETED");
  assert.deepEqual(good.records, [
    { key: "a", deleted: false, tenantScope: false },
    { key: "t", deleted: false, tenantScope: true },
    { key: "a", deleted: false, tenantScope: false },
  ]);
  const records = client.records("c");
  const { value, revision } = await records.getJSON("a");
  assert.equal(value, 3);
  assert.equal((await client.tenantRecords().getJSON("t")).value, 2);

  const late = await chat("late");
  assert.equal(late.finished.turn?.state, "TURN_STATE_FAILED");
  const [answer] = late.finished.messages;
  assert.deepEqual([answer?.content, answer?.status], ["noted.", "MESSAGE_STATUS_INCOMPLETE"]);
  const left = await collect(records.list());
  assert.deepEqual(
    left.map(({ key, revision }) => [key, revision]),
    [["a", revision]],
  );
});

function recordOf(event: TurnEvent["event"]) {
  return event?.$case === "record" ? [event.value] : [];
}

test("the error of full records says how large they would be", options, async (t) => {
  const { records } = await startRecords(t, { max_record_bytes: "1KiB" });
  await records.put("a", new Uint8Array(600));
  await assert.rejects(records.put("b", new Uint8Array(500)), {
    reason: "RECORDS_FULL",
    metadata: { bytes: "1358", limit: "1024" },
  });
  await records.delete("a");
  await records.put("b", new Uint8Array(500));
});

/** Serves some methods of RecordService on a free port until the end of the test. Returns the address. */
async function serveRecords(
  t: TestContext,
  methods: Partial<ServiceImplementation<RecordServiceDefinition>>,
): Promise<string> {
  const server = createServer({ "grpc.max_receive_message_length": 4 << 20 });
  const unimplemented = () => {
    throw new ServerError(Status.UNIMPLEMENTED, "not part of this test");
  };
  server.add(RecordServiceDefinition, {
    writeRecords: unimplemented,
    getRecords: unimplemented,
    listRecords: unimplemented,
    ...methods,
  });
  const port = await server.listen("127.0.0.1:0");
  t.after(() => server.forceShutdown());
  return `127.0.0.1:${port}`;
}

test("all attempts of a write have one requestId", { timeout: 60_000 }, async (t) => {
  const ids: string[] = [];
  const address = await serveRecords(t, {
    async writeRecords({ requestId }) {
      ids.push(requestId);
      if (ids.length <= 2) {
        throw new ServerError(Status.UNAVAILABLE, "temporarily unavailable");
      }
      return { revision: Number.MAX_SAFE_INTEGER, tenantRevision: 7 };
    },
  });
  const client = connect(t, address);
  assert.equal(await client.records("c").put("a", new Uint8Array(3 << 20)), Number.MAX_SAFE_INTEGER);
  assert.equal(await client.tenantRecords().put("a", bytes("1")), 7);
  await client.records("c").delete("a", { requestId: "mine" });
  assert.equal(ids.length, 5);
  assert.match(ids[0]!, /^[0-9a-f-]{36}$/);
  assert.equal(new Set(ids.slice(0, 3)).size, 1);
  assert.notEqual(ids[3], ids[0]);
  assert.equal(ids[4], "mine");
});

test("pages are read when they are needed, and until one has no token", { timeout: 60_000 }, async (t) => {
  const requests: object[] = [];
  const pages: { [token: string]: [keys: string, next: string] } = {
    "": ["a", "one"],
    one: ["", "two"],
    two: ["b", ""],
  };
  const address = await serveRecords(t, {
    async listRecords(request) {
      requests.push(request);
      const [keys, nextPageToken] = pages[request.pageToken]!;
      return { records: [...keys].map((key) => ({ key })), nextPageToken };
    },
    async getRecords({ keys }) {
      return { omittedKeys: keys };
    },
  });
  const records = connect(t, address).records("c");
  const fields = { prefix: "p", afterKey: "pa", descending: true, pageSize: 2, keysOnly: true };
  const list = records.list(fields);
  assert.equal(requests.length, 0);
  for await (const { key } of list) {
    assert.equal(key, "a");
    break;
  }
  assert.equal(requests.length, 1);
  requests.length = 0;
  assert.deepEqual(keysOf(await collect(list)), ["a", "b"]);
  assert.deepEqual(
    requests,
    ["", "one", "two"].map((pageToken) => ({ conversationId: "c", ...fields, pageToken })),
  );
  const many = Array.from({ length: 150 }, (_, i) => `${i}`);
  await assert.rejects(collect(records.getAll(many)), { code: "INTERNAL", message: /none of the records/ });
});
