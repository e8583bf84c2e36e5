import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import type { ServerResponse } from "node:http";
import { type TestContext, test } from "node:test";
import { isDeepStrictEqual } from "node:util";

import * as api from "@parleyhq/client";
import * as web from "@parleyhq/client/web";
import { Client, type ClientOptions, Metadata, ParleyError } from "@parleyhq/client/web";

import * as enums from "../src/gen/enums.js";
import { messages, methods } from "../src/gen/schema.js";
import { fieldsOf, fromJSON, toJSON } from "../src/web/json.js";
import { type Answer, broken, failure, HTTPServer, json, stream, turnEvent } from "./http-server.js";
import { read } from "./streams.js";

const options = { timeout: 60_000 };

/** Starts a server and a client of it. */
async function connected(t: TestContext, clientOptions: ClientOptions = {}) {
  const server = new HTTPServer();
  const url = await server.serve(t);
  const client = new Client(url, clientOptions);
  t.after(() => client.close());
  return { server, url, client };
}

const started = turnEvent(1, { started: { conversation: { id: "c" } } });
const finished = turnEvent(3, { finished: { turn: { id: "t", state: "TURN_STATE_COMPLETED" } } });
const text = (piece: string, offset = 0) => turnEvent(2, { textDelta: { text: piece, offset } });

/** Returns the text of a turn that the server answers. */
async function chat(client: Client): Promise<string> {
  const { items, error } = await read(client.chat({ content: "hello" }));
  if (error) {
    throw error;
  }
  return items.map(({ event }) => (event?.$case === "textDelta" ? event.value.text : "")).join("");
}

/** Returns numbers from 0 to limit - 1, always the same ones. */
function numbers(seed: number): (limit: number) => number {
  let state = seed;
  return (limit) => {
    state = (state * 1103515245 + 12345) % 2 ** 31;
    return Math.floor((state / 2 ** 31) * limit);
  };
}

/** Returns a message with random fields. */
function randomMessage(name: string, next: (limit: number) => number, depth = 0): Record<string, unknown> {
  const message: Record<string, unknown> = {};
  for (const field of fieldsOf(name)) {
    if (next(3) === 0) {
      continue;
    }
    const value = () => randomValue(field.kind, next, depth);
    if (field.oneof) {
      message[field.oneof] ??= { $case: field.name, value: value() };
    } else if (field.shape === "*") {
      message[field.name] = Array.from({ length: next(3) }, value);
    } else if (field.shape === "%") {
      message[field.name] = Object.fromEntries(
        [
          ["a", value()],
          ["b c", value()],
        ].slice(next(3)),
      );
    } else {
      message[field.name] = value();
    }
  }
  return message;
}

function randomValue(kind: string, next: (limit: number) => number, depth: number): unknown {
  const choose = <T>(...values: T[]) => values[next(values.length)];
  switch (kind) {
    case "string":
      return choose("", "a", "größer 😀", '"\\\n\u0000', "\u2028");
    case "bool":
      return choose(false, true);
    case "int32":
      return choose(0, 1, -1, 2 ** 31 - 1, -(2 ** 31));
    case "int64":
      return choose(0, 1, -1, Number.MAX_SAFE_INTEGER, Number.MIN_SAFE_INTEGER);
    case "bytes":
      return choose(new Uint8Array(0), Uint8Array.of(0, 255, 254), new Uint8Array(40_000).fill(7));
    case "Timestamp":
      return choose(new Date(0), new Date(1), new Date("2026-11-28T22:00:00.123Z"), new Date(-1000));
    case "Duration":
      return choose({ seconds: 0, nanos: 0 }, { seconds: 5, nanos: 1 }, { seconds: -5, nanos: -500_000_000 });
    case "FieldMask":
      return choose(["title"], ["title", "retention.max_messages"]);
    case "Struct":
      return choose({}, { a: [null, 1.5, { b: "c" }] });
    case "Value":
      return choose<unknown>(null, 0, "", false, [], {}, { a: [null, 1.5, { b: "c" }] });
    default: {
      const values = new Map(Object.entries(enums)).get(kind);
      if (values) {
        return choose(...Object.keys(values).filter((value) => value !== "UNRECOGNIZED"));
      }
      return depth > 3 ? {} : randomMessage(kind, next, depth + 1);
    }
  }
}

for (const name of Object.keys(messages)) {
  // A status is only in the answers of an append, which the transport reads itself.
  if (messages[name]!.includes(":Status")) {
    continue;
  }
  test(`a message has the same form as over gRPC: ${name}`, () => {
    const type = (api as unknown as Record<string, { fromPartial(object: object): object }>)[name]!;
    const next = numbers(name.length);
    for (let round = 0; round < 50; round++) {
      const message = randomMessage(name, next);
      const received = fromJSON(name, JSON.parse(JSON.stringify(toJSON(name, message))));
      // The difference of long values would take minutes to print.
      assert.ok(
        isDeepStrictEqual(received, { ...type.fromPartial(message) }),
        JSON.stringify(message).slice(0, 2000),
      );
    }
  });
}

test("fields, cases and values of newer servers do not break the client", () => {
  const change = fromJSON("ConversationChange", { kind: "CHANGE_KIND_NEW", newField: { a: 1 }, newCase: {} });
  assert.equal(change["kind"], "UNRECOGNIZED");
  assert.equal(change["payload"], undefined);
  assert.equal("newField" in change, false);
  assert.equal(fromJSON("ConversationChange", { kind: 99 })["kind"], "UNRECOGNIZED");
});

test("any text can be a key", () => {
  const labels = JSON.parse('{"__proto__": "a", "constructor": "b"}');
  const { conversation } = fromJSON("GetConversationResponse", {
    conversation: toJSON("Conversation", { labels }),
  });
  assert.deepEqual((conversation as api.Conversation).labels, labels);
});

test("the forms of JSON are those of the protos", () => {
  const duration = (nanos: string) =>
    fromJSON("PurgeConversationsRequest", { inactiveFor: nanos })["inactiveFor"];
  assert.deepEqual(duration("1.5s"), { seconds: 1, nanos: 500_000_000 });
  assert.deepEqual(duration("-0.000000001s"), { seconds: 0, nanos: -1 });
  const { updateTime } = fromJSON("Record", { updateTime: "2026-11-28T22:00:00.123456789Z" });
  assert.equal((updateTime as Date).toISOString(), "2026-11-28T22:00:00.123Z");
  assert.throws(() => fromJSON("Record", { revision: "9007199254740993" }), /above 2\^53 - 1/);
  assert.deepEqual(toJSON("RecordWrite", { ifRevision: 0, value: Uint8Array.of(251, 255) }), {
    ifRevision: "0",
    value: "+/8=",
  });
  assert.deepEqual(toJSON("Message", { content: "a\ud800b" }), { content: "a\ufffdb" });
});

const invalid: Record<string, [call: (client: Client) => Promise<unknown>, fault: RegExp]> = {
  "1.5 for an integer": [(c) => c.listConversations({ pageSize: 1.5 }), /pageSize is 1\.5, want an integer/],
  "an integer above 32 bits": [
    (c) => c.listConversations({ pageSize: 2 ** 31 }),
    /want an integer of 32 bits/,
  ],
  "an integer above 2^53": [
    (c) => c.writeRecords({ writes: [{ key: "k", ifRevision: 2 ** 53 }] }),
    /writes\.ifRevision is 9007199254740992, want/,
  ],
  "NaN in structured data": [
    (c) =>
      c
        .chat({ structuredData: [{ type: "a", value: [Number.NaN] }] })
        [Symbol.asyncIterator]()
        .next(),
    /structuredData\.value contains NaN/,
  ],
  "no list": [(c) => c.appendMessages({ messages: "a" as never }), /messages is string, want an array/],
  "no object": [(c) => c.getConversation(null as never), /it is null, want an object/],
  "no date": [
    (c) => c.createConversation({ conversation: { createTime: 1 as never } }),
    /createTime is number/,
  ],
  "metadata that is not valid": [(c) => c.getStats({}, { metadata: [["a b", "c"]] as never }), /a b/],
};
for (const [name, [call, fault]] of Object.entries(invalid)) {
  test(`an invalid request fails before it is sent: ${name}`, options, async (t) => {
    const { server, client } = await connected(t);
    await assert.rejects(call(client), (error: ParleyError) => {
      assert.equal(error.code, "INVALID_ARGUMENT");
      assert.match(error.message, /^INVALID_ARGUMENT: the request cannot be sent: /);
      assert.match(error.message, fault);
      return true;
    });
    assert.equal(server.requests.length, 0);
  });
}

test("an id that a URL would lose is refused before the request is sent", options, async (t) => {
  const { server, client } = await connected(t);
  for (const id of [".", ".."]) {
    await assert.rejects(client.deleteConversation({ conversationId: id }), {
      reason: "INVALID_REQUEST",
      fieldViolations: [{ field: "conversation_id", description: 'must not be "." or ".."' }],
    });
    await assert.rejects(client.updateConversation({ conversation: { id } }), {
      fieldViolations: [{ field: "conversation.id", description: 'must not be "." or ".."' }],
    });
  }
  assert.equal(server.requests.length, 0);
});

test("a label that a URL cannot name is refused before the request is sent", options, async (t) => {
  const { server, client } = await connected(t);
  for (const key of ["a[b", "[", "a\nb"]) {
    const field = `labels[${JSON.stringify(key)}]`;
    await assert.rejects(
      client.listConversations({ labels: { ok: "x", [key]: "v" } }),
      (error: ParleyError) => {
        assert.equal(error.code, "INVALID_ARGUMENT");
        assert.equal(error.reason, "INVALID_REQUEST");
        assert.deepEqual(
          error.fieldViolations.map((violation) => violation.field),
          [field],
        );
        assert.match(
          error.message,
          /must not contain "\[" or a line break over HTTP.*; use the client over gRPC$/,
        );
        return true;
      },
    );
  }
  assert.equal(server.requests.length, 0);
});

test("a request that is too large is refused before it is sent", options, async (t) => {
  const { server, client } = await connected(t);
  const large = "x".repeat(4 << 20);
  const code = "RESOURCE_EXHAUSTED";
  await assert.rejects(client.chat({ content: large })[Symbol.asyncIterator]().next(), {
    code,
    message: /limit/,
  });
  const appender = client.appender();
  await assert.rejects(appender.append({ messages: [{ content: large }] }), { code });
  await appender.close();
  const sequences = Array.from({ length: 2000 }, (_, i) => i);
  await assert.rejects(client.clearConversation({ conversationId: "c", sequences }), {
    code,
    message: /path/,
  });
  assert.equal(server.requests.length, 0);
});

test("a target is a URL of HTTP", () => {
  for (const target of [
    "127.0.0.1:8080",
    "parley.example",
    "ftp://a",
    "https://a?b",
    "https://a#b",
    "https://u:p@a",
    "",
  ]) {
    assert.throws(() => new Client(target), /^TypeError: the target is .*, want a URL/, target);
  }
  for (const option of [{ token: "a b" }, { tenant: "-" }, { tls: true as never }]) {
    assert.throws(() => new Client("https://a", option), TypeError);
  }
});

test("a token is not sent to another machine in plaintext", () => {
  const token = "secret";
  for (const target of ["http://parley.example", "http://192.168.0.1:80", "http://127.example"]) {
    assert.throws(() => new Client(target, { token }), /plaintext; use https, or set tls to false/);
    new Client(target, { token, tls: false });
    new Client(target);
  }
  for (const target of [
    "http://localhost:1",
    "http://127.0.0.2",
    "http://[::1]:2",
    "https://parley.example",
  ]) {
    new Client(target, { token });
  }
});

test("the path of the target comes before those of the server", options, async (t) => {
  const { server, url } = await connected(t);
  for (const path of ["", "/", "/a/b", "/a/b/"]) {
    await new Client(url + path).getConversation({ conversationId: "x/y ü" });
  }
  const want = "/v1/conversations/x%2Fy%20%C3%BC";
  assert.deepEqual(
    server.requests.map((request) => request.url),
    [want, want, `/a/b${want}`, `/a/b${want}`],
  );
});

test("the fetch of the options sends the requests", options, async (t) => {
  const urls: string[] = [];
  const { client, url } = await connected(t, {
    fetch: async (input, init) => {
      urls.push(String(input));
      assert.equal((init as { cache?: string }).cache, "no-store");
      return await fetch(input, init);
    },
  });
  await client.getStats();
  assert.deepEqual(urls, [`${url}/v1/stats`]);
});

test("the metadata of a call replaces the token and the tenant", options, async (t) => {
  const { server, client } = await connected(t, { token: () => "mine", tenant: "acme" });
  await client.getStats();
  await client.getStats({}, { metadata: Metadata({ Authorization: "Bearer other", "x-request-id": "r" }) });
  await client.getStats({}, { metadata: new Metadata({ "parley-tenant": "b" }) });
  assert.deepEqual(
    server.requests.map(({ headers }) => [
      headers.authorization,
      headers["parley-tenant"],
      headers["x-request-id"],
    ]),
    [
      ["Bearer mine", "acme", undefined],
      ["Bearer other", "acme", "r"],
      ["Bearer mine", "b", undefined],
    ],
  );
});

test("browsers send a read and a write without a token without asking first", options, async (t) => {
  const { server, client } = await connected(t);
  await client.appendMessages({ conversationId: "c", messages: [] });
  await client.getConversation({ conversationId: "c" });
  for (const { headers } of server.requests) {
    assert.equal(headers["content-type"], undefined);
  }
});

test("unavailable servers are retried with one requestId, then the call fails", options, async (t) => {
  const { server, client } = await connected(t);
  const cases = [
    { answer: failure(503, 14, "SHUTTING_DOWN"), reason: "SHUTTING_DOWN" },
    { answer: json("bad gateway", 502), reason: "" },
    { answer: broken(), reason: "" },
  ];
  for (const { answer, reason } of cases) {
    server.requests.length = 0;
    server.answers = [answer, answer, json({})];
    await client.createConversation({});
    const ids = server.requests.map(({ body }) => JSON.parse(body).requestId as string);
    assert.equal(ids.length, 3);
    assert.match(ids[0]!, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    assert.equal(new Set(ids).size, 1);

    server.requests.length = 0;
    server.answers = [answer];
    await assert.rejects(client.getStats(), { code: "UNAVAILABLE", reason });
    assert.equal(server.requests.length, 5);
    server.requests.length = 0;
    await assert.rejects(client.deleteConversation({ conversationId: "a" }), { code: "UNAVAILABLE" });
    assert.equal(server.requests.length, 1);
  }
});

for (const status of [301, 302, 303, 307, 308]) {
  test(`a redirect is not followed: ${status}`, options, async (t) => {
    const other = new HTTPServer();
    const location = await other.serve(t);
    const { server, url, client } = await connected(t, { token: "secret" });
    server.answers = [
      (response) => {
        response.writeHead(status, { location: `${location}/v1/stats` });
        response.end();
      },
    ];
    const calls: Record<string, () => Promise<unknown>> = {
      unary: () => client.getStats(),
      write: () => client.appendMessages({ conversationId: "c", messages: [] }),
      stream: () => chat(client),
      appender: () => client.appender().append({ conversationId: "c" }),
      import: () => client.importConversations([{}]),
    };
    for (const [name, call] of Object.entries(calls)) {
      server.requests.length = 0;
      await assert.rejects(call(), (error: ParleyError) => {
        assert.equal(error.code, "FAILED_PRECONDITION", name);
        assert.ok(
          error.message.includes(`${url} redirects calls to "${location}/v1/stats"; `),
          error.message,
        );
        return true;
      });
      assert.equal(server.requests.length, 1, name);
    }
    assert.equal(other.requests.length, 0);
  });
}

test("a function that follows redirects is recognized", options, async (t) => {
  const { server, client } = await connected(t, {
    fetch: (url, init) => fetch(url, { ...init, redirect: "follow" }),
  });
  const redirect: Answer = (response) => {
    response.writeHead(307, { location: "/" }).end();
  };
  server.answers = [redirect, json({})];
  await assert.rejects(client.getStats(), { code: "FAILED_PRECONDITION", message: /redirects calls; / });
});

/** Answers as a proxy with a Retry-After. */
function refusedUntil(status: number, after: string): Answer {
  return (response) => {
    response.writeHead(status, { "retry-after": after }).end("busy");
  };
}

test("a Retry-After is obeyed and reported", options, async (t) => {
  const { server, client } = await connected(t);
  const times: number[] = [];
  const answers: [name: string, answer: (after: string) => Answer][] = [
    ["a proxy", (after) => refusedUntil(503, after)],
    ["a limit of a proxy", (after) => refusedUntil(429, after)],
    [
      "a status without RetryInfo",
      (after) => async (response, request) => {
        response.setHeader("retry-after", after);
        await json({ code: 14, message: "busy" }, 503)(response, request);
      },
    ],
  ];
  const timed =
    (answer: Answer): Answer =>
    (...args) => {
      times.push(performance.now());
      return answer(...args);
    };
  for (const [name, answer] of answers) {
    times.length = 0;
    server.answers = [timed(answer("1")), timed(json({}))];
    await client.getStats();
    assert.ok(times[1]! - times[0]! >= 995, `${name}: ${times[1]! - times[0]!} ms`);

    times.length = 0;
    server.answers = [timed(answer("30"))];
    await assert.rejects(client.getStats(), { code: "UNAVAILABLE", retryDelay: 30_000 });
    assert.equal(times.length, 1, name);
  }
  const date = new Date(Date.now() + 3_600_000).toUTCString();
  server.answers = [answers[0]![1](date)];
  await assert.rejects(client.deleteConversation({ conversationId: "c" }), ({ retryDelay }: ParleyError) => {
    return retryDelay! > 3_590_000 && retryDelay! <= 3_600_000;
  });
  const texts: [after: string, delay: number | undefined][] = [
    ["soon", undefined],
    ["-1", undefined],
    ["0", 0],
    ["Sun, 06 Nov 1994 08:49:37 GMT", 0],
  ];
  for (const [after, delay] of texts) {
    server.answers = [answers[0]![1](after)];
    await assert.rejects(
      client.deleteConversation({ conversationId: "c" }),
      ({ retryDelay }: ParleyError) => {
        assert.equal(retryDelay, delay, after);
        return true;
      },
    );
  }
  // RetryInfo is more precise.
  const type = "type.googleapis.com/google.rpc.RetryInfo";
  server.answers = [
    async (response, request) => {
      response.setHeader("retry-after", "7");
      await failure(503, 14, "SHUTTING_DOWN", { "@type": type, retryDelay: "0.5s" })(response, request);
    },
  ];
  await assert.rejects(client.deleteConversation({ conversationId: "c" }), { retryDelay: 500 });
});

test("a stream that breaks waits for a Retry-After before it resumes", options, async (t) => {
  const { server, client } = await connected(t);
  const times: number[] = [];
  server.answers = [
    broken(started, text("one ")),
    (response) => {
      times.push(performance.now());
      response.writeHead(503, { "retry-after": "6" }).end();
    },
    (response, request) => {
      times.push(performance.now());
      return stream(turnEvent(3, { finished: { turn: { id: "t" } } }))(response, request);
    },
  ];
  assert.equal(await chat(client), "one ");
  assert.ok(times[1]! - times[0]! >= 5995, `${times[1]! - times[0]!} ms`);
  server.answers = [
    broken(started, text("one ")),
    (response) => {
      response.writeHead(503, { "retry-after": "600" }).end();
    },
  ];
  await assert.rejects(chat(client), { code: "UNAVAILABLE", retryDelay: 600_000 });
});

test("a turn that is deleted while its stream is broken ends the stream", options, async (t) => {
  const { server, client } = await connected(t);
  for (const reason of ["TURN_NOT_FOUND", "CONVERSATION_NOT_FOUND"]) {
    server.requests.length = 0;
    server.answers = [broken(started, text("one ")), failure(404, 5, reason)];
    const { items, error } = await read(client.chat({ content: "hello" }));
    assert.equal(items.length, 2);
    assert.ok(error instanceof ParleyError);
    assert.deepEqual([error.code, error.reason], ["NOT_FOUND", reason]);
    assert.equal(server.requests.length, 2);
  }
});

test("errors have the details of the status", options, async (t) => {
  const { server, client } = await connected(t);
  const type = (name: string) => ({ "@type": `type.googleapis.com/google.rpc.${name}` });
  const field = 'messages[2].structuredData[0].labels["aB_c"].callId';
  server.answers = [
    json(
      {
        code: 10,
        message: `invalid: ${field}: is old`,
        details: [
          {
            ...type("ErrorInfo"),
            reason: "VERSION_MISMATCH",
            domain: "parley",
            metadata: { current_version: "3" },
          },
          { ...type("RetryInfo"), retryDelay: "1.5s" },
          { ...type("BadRequest"), fieldViolations: [{ field, description: "is old" }] },
          { ...type("Unknown") },
        ],
      },
      409,
    ),
    failure(409, 10, "REVISION_MISMATCH"),
    json({ code: 16, message: "no" }, 401),
  ];
  const proto = 'messages[2].structured_data[0].labels["aB_c"].call_id';
  await assert.rejects(client.getStats(), {
    name: "ParleyError",
    code: "ABORTED",
    reason: "VERSION_MISMATCH",
    message: `ABORTED VERSION_MISMATCH: invalid: ${proto}: is old`,
    metadata: { current_version: "3" },
    retryDelay: 1500,
    fieldViolations: [{ field: proto, description: "is old" }],
  });
  await assert.rejects(client.getStats(), web.RevisionMismatchError);
  await assert.rejects(client.getStats(), {
    code: "UNAUTHENTICATED",
    reason: "",
    message: "UNAUTHENTICATED: no",
  });
});

test("responses that are not from Parley are errors", options, async (t) => {
  const { server, client } = await connected(t);
  const html =
    (status: number): Answer =>
    (response) => {
      response.writeHead(status, { "content-type": "text/html" });
      response.end("<html>gate</html>");
    };
  const codes = {
    200: "UNIMPLEMENTED",
    400: "FAILED_PRECONDITION",
    401: "UNAUTHENTICATED",
    404: "UNIMPLEMENTED",
    500: "UNKNOWN",
  };
  for (const [status, code] of Object.entries(codes)) {
    server.answers = [html(Number(status))];
    await assert.rejects(client.getStats(), { code, reason: "", message: /not from Parley.*<html>gate/ });
  }
  for (const body of [{ code: 404, message: "no" }, { code: 5, details: "no" }, null, 5]) {
    server.answers = [json(body, 404)];
    await assert.rejects(client.getStats(), {
      code: "UNIMPLEMENTED",
      message: /not from Parley: status 404/,
    });
  }
  server.answers = [json(5)];
  await assert.rejects(client.getStats(), { code: "UNIMPLEMENTED", message: /not from Parley: 5/ });
  server.answers = [html(200)];
  await assert.rejects(chat(client), { code: "UNIMPLEMENTED", message: /not from Parley: <html>gate/ });
});

const answer = 'größer 😀 "\\n';
const all = `${started}${text(answer)}${finished}`;
const severalLines = all.replaceAll('{"event"', '{\ndata: "event"');
const forms: Record<string, () => (string | Uint8Array)[]> = {
  "one piece": () => [all],
  "single bytes": () => Array.from(new TextEncoder().encode(all), (byte) => Uint8Array.of(byte)),
  "lines that end with CR LF": () => [all.replaceAll("\n", "\r\n")],
  "lines that end with CR": () => [all.replaceAll("\n", "\r")],
  "CR and LF in different pieces": () => severalLines.replaceAll("\n", "\r\n").split(/(?<=\r)/),
  "comments and other fields": () => [
    `\ufeff: hello\nretry: 5\n\n:\nevent\nunknown: 1\n${all.replaceAll("data: ", ": heartbeat\ndata:")}: end\n`,
  ],
  "data of several lines": () => [severalLines],
  "an event without data": () => [started, "id: 7\n\nevent: error\n\n", text(answer), finished],
};
for (const [name, pieces] of Object.entries(forms)) {
  test(`server-sent events are read in each form: ${name}`, options, async (t) => {
    const { server, client } = await connected(t);
    server.answers = [stream(...pieces())];
    assert.equal(await chat(client), answer);
    assert.equal(server.requests.length, 1);
  });
}

test("a stream that breaks resumes after the last event", options, async (t) => {
  const { server, client } = await connected(t);
  const queued = turnEvent(1, { queued: { position: 1 } });
  server.answers = [
    broken(started, text("one ")),
    failure(503, 14, "SHUTTING_DOWN"),
    broken(turnEvent(3, { textDelta: { text: "two ", offset: 4 } }), 'id: 4\ndata: {"event": {"tur'),
    stream(turnEvent(4, { textDelta: { text: "three", offset: 8 } }), 'event: error\ndata: {"code": 14}\n\n'),
    stream(turnEvent(5, { finished: { turn: { id: "t" } } })),
  ];
  assert.equal(await chat(client), "one two three");
  assert.deepEqual(
    server.requests.map(({ method, url }) => `${method} ${url}`),
    [
      "POST /v1/chat",
      "GET /v1/conversations/c/turns/t/events?afterIndex=2",
      "GET /v1/conversations/c/turns/t/events?afterIndex=2",
      "GET /v1/conversations/c/turns/t/events?afterIndex=3",
      "GET /v1/conversations/c/turns/t/events?afterIndex=4",
    ],
  );
  server.requests.length = 0;
  server.answers = [broken(queued), stream(started, finished)];
  await chat(client);
  assert.equal(server.requests.length, 2);
  assert.equal(server.requests[0]!.body, server.requests[1]!.body);
});

test("a stream that is complete resumes to nothing", options, async (t) => {
  const { server, client } = await connected(t);
  server.answers = [
    (response) => {
      response.writeHead(204).end();
    },
  ];
  const { items, error } = await read(client.resumeTurn({ conversationId: "c", turnId: "t", afterIndex: 3 }));
  assert.ifError(error);
  assert.deepEqual(items, []);
});

test("an error in a stream ends it", options, async (t) => {
  const { server, client } = await connected(t);
  const error = { code: 5, message: "gone", details: [] };
  server.answers = [stream(started, `event: error\ndata: ${JSON.stringify(error)}\n\n`)];
  const seen = await read(client.chat({ content: "hello" }));
  assert.equal(seen.items.length, 1);
  assert.ok(seen.error instanceof ParleyError && seen.error.code === "NOT_FOUND");
});

test("an export that breaks throws an error", options, async (t) => {
  const { server, client } = await connected(t);
  const entry = 'data: {"conversation": {"id": "a"}}\n\n';
  server.answers = [broken(entry)];
  const seen = await read(client.exportConversations({}));
  assert.equal(seen.items.length, 1);
  assert.ok(seen.error instanceof ParleyError && seen.error.code === "UNAVAILABLE");
  server.answers = [stream(entry, 'data: {"conversation"')];
  assert.match(String((await read(client.exportConversations({}))).error), /ended within a message/);
  server.answers = [stream(entry, `${entry.trimEnd()}\n`)];
  assert.match(String((await read(client.exportConversations({}))).error), /ended within a message/);
});

test("a message without an end does not fill the memory", options, async (t) => {
  const { server, client } = await connected(t);
  let sent = 0;
  const endless =
    (head: string, piece: string): Answer =>
    async (response) => {
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.write(head);
      for (sent = 0; sent < 200 && !response.destroyed; sent++) {
        if (!response.write(piece)) {
          await Promise.race([
            new Promise((resolve) => response.once("drain", resolve)),
            new Promise((resolve) => response.once("close", resolve)),
          ]);
        }
      }
      response.end();
    };
  const piece = "x".repeat(1 << 20);
  for (const [head, rest] of [
    ["data: ", piece],
    ["", `data: ${piece}\n`],
  ] as const) {
    server.answers = [endless(head, rest)];
    assert.match(
      String((await read(client.exportConversations({}))).error),
      /RESOURCE_EXHAUSTED: .* more than/,
    );
    assert.ok(sent < 100, `${sent} MiB`);
  }
  server.answers = [endless('{"a": "', piece)];
  await assert.rejects(client.getStats(), { code: "RESOURCE_EXHAUSTED" });
});

test("a rejected token is replaced once", options, async (t) => {
  let count = 0;
  const { server, client } = await connected(t, { token: async () => `t${++count}` });
  const rejected = failure(401, 16, "UNAUTHENTICATED");
  server.answers = [rejected, json({})];
  await client.getStats();
  server.answers = [rejected];
  await assert.rejects(client.getStats(), { code: "UNAUTHENTICATED", reason: "UNAUTHENTICATED" });
  assert.deepEqual(
    server.requests.map(({ headers }) => headers.authorization),
    ["Bearer t1", "Bearer t2", "Bearer t3", "Bearer t4"],
  );
});

test("a stream whose token expires resumes with another one", options, async (t) => {
  let count = 0;
  const { server, client } = await connected(t, { token: () => `t${++count}` });
  const expired = 'event: error\ndata: {"code": 16, "message": "expired"}\n\n';
  server.answers = [stream(started, expired), stream(text("hi"), finished)];
  assert.equal(await chat(client), "hi");
  assert.deepEqual(
    server.requests.map(({ url, headers }) => `${url} ${headers.authorization}`),
    ["/v1/chat Bearer t1", "/v1/conversations/c/turns/t/events?afterIndex=1 Bearer t3"],
  );
});

test("calls end when their signal aborts or the client is closed", options, async (t) => {
  const { server, client } = await connected(t);
  const closed: Promise<unknown>[] = [];
  server.answers = [
    (response) => {
      closed.push(new Promise((resolve) => response.once("close", resolve)));
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.write(started);
    },
  ];
  const calls: Record<string, (signal?: AbortSignal) => Promise<unknown>> = {
    unary: (signal) => client.getStats({}, signal ? { signal } : {}),
    stream: async (signal) => {
      for await (const _ of client.chat({ content: "a" }, signal ? { signal } : {})) {
      }
    },
  };
  for (const call of Object.values(calls)) {
    await assert.rejects(call(AbortSignal.timeout(50)), { name: "TimeoutError" });
    await assert.rejects(call(AbortSignal.abort(new Error("mine"))), { message: "mine" });
  }
  for (const stream of [client.chat({ content: "a" }), client.exportConversations({})]) {
    for await (const _ of stream as AsyncIterable<unknown>) {
      break;
    }
  }
  const before = server.requests.length;
  const pending = Object.values(calls).map((call) => call());
  while (server.requests.length < before + pending.length) {
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  client.close();
  for (const call of pending) {
    await assert.rejects(call, { code: "CANCELLED" });
  }
  await assert.rejects(client.getStats(), { code: "CANCELLED" });
  await Promise.all(closed);
});

/** Answers the first requests of an appender, and then ends the response. */
function answered(limit: number, end: (response: ServerResponse) => void): Answer {
  return (response, { body }) => {
    const replies = body
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line).append.messages[0].content as string)
      .map((id) => (id === "bad" ? { error: { code: 5 } } : { response: { appended: [{ id }] } }));
    response.writeHead(200, { "content-type": "application/x-ndjson" });
    const lines = replies.slice(0, limit).map((reply) => `${JSON.stringify(reply)}\n`);
    response.write(lines.join(""), () => end(response));
  };
}

const ends: Record<string, (response: ServerResponse) => void> = {
  "the connection breaks": (response) => response.destroy(),
  "the response ends early": (response) => response.end(),
  "the server stops": (response) => response.end('{"error": {"code": 14}}\n'),
};
for (const [name, end] of Object.entries(ends)) {
  test(`an appender sends a batch, and again what has no reply: ${name}`, options, async (t) => {
    const { server, client } = await connected(t);
    server.answers = [answered(3, end), answered(5, (response) => response.end())];
    const appender = client.appender();
    const replies = ["a", "b", "bad", "c", "d"].map((content) =>
      appender.append({ conversationId: content, messages: [{ content }] }),
    );
    const results = await Promise.allSettled(replies);
    assert.deepEqual(
      results.map((result) =>
        result.status === "fulfilled" ? result.value.appended[0]?.id : result.reason.code,
      ),
      ["a", "b", "NOT_FOUND", "c", "d"],
    );
    await appender.close();
    const [first, second, ...others] = server.requests.map(({ body }) =>
      body
        .trimEnd()
        .split("\n")
        .map((line) => JSON.parse(line).append.requestId as string),
    );
    assert.equal(first?.length, 5);
    assert.deepEqual(second, first.slice(3));
    assert.deepEqual(others, []);
  });
}

test("an import is sent in batches that end with a conversation", options, async (t) => {
  const { server, client } = await connected(t);
  server.answers = [json({ importedCount: "2", failures: [{ conversationId: "a", reason: "A" }] })];
  const content = "x".repeat(3 << 20);
  const requests = ["a", "b", "b", "b", "c", "d"].map((id) => ({
    conversation: { id },
    messages: [{ content }],
  }));
  const total = await client.importConversations(requests);
  const batches = server.requests.map(({ body }) =>
    body
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line).conversation.id)
      .join(""),
  );
  assert.deepEqual(batches, ["abbb", "cd"]);
  assert.deepEqual(total, {
    importedCount: 4,
    skippedCount: 0,
    noRoomCount: 0,
    failures: Array(2).fill({ conversationId: "a", reason: "A" }),
  });
  let isLeft = false;
  const waiting = async function* () {
    try {
      yield {};
      await new Promise((resolve) => setTimeout(resolve, 200));
      yield {};
    } finally {
      isLeft = true;
    }
  };
  const started = performance.now();
  const signal = AbortSignal.timeout(20);
  await assert.rejects(client.importConversations(waiting(), { signal }), { name: "TimeoutError" });
  assert.ok(performance.now() - started < 150);
  while (!isLeft) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  const failed = async function* () {
    yield {};
    throw new Error("mine");
  };
  await assert.rejects(client.importConversations(failed()), /^Error: mine$/);
  await assert.rejects(client.importConversations(5 as never), {
    code: "INVALID_ARGUMENT",
    message: /no iterable/,
  });
});

test("the schema has every call of the services", async () => {
  const yaml = await readFile(new URL("../../../../proto/parley/v1/http.yaml", import.meta.url), "utf8");
  const selectors = [...yaml.matchAll(/selector: parley\.v1\.\w+\.(\w+)/g)].map(([, name]) => name!);
  assert.ok(selectors.length > 30);
  for (const name of selectors) {
    const method = name[0]!.toLowerCase() + name.slice(1);
    assert.ok(method in methods, method);
    const own = method === "appendStream" ? "appender" : method;
    assert.equal(typeof Client.prototype[own as keyof Client], "function", own);
  }
});

test("the web client exports the enums", () => {
  const exported = new Map<string, unknown>(Object.entries(web));
  const all = new Map<string, unknown>(Object.entries(api));
  assert.equal(web.Role.ROLE_USER, api.Role.ROLE_USER);
  const names = Object.keys(enums).filter((name) => /^[A-Z]/.test(name));
  assert.equal(names.length, 7);
  for (const name of names) {
    const values = all.get(name);
    assert.deepEqual(exported.get(name), values, name);
  }
});
