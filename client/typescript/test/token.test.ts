import assert from "node:assert/strict";
import { EventEmitter, getEventListeners, once } from "node:events";
import { writeFileSync } from "node:fs";
import { rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { inspect } from "node:util";
import { ChannelCredentials, Client, type ClientOptions, ParleyError } from "@parleyhq/client";
import { type CallContext, Metadata, ServerError, Status } from "nice-grpc";

import { connectionSettings } from "../src/options.js";
import { FakeServer } from "./fake-server.js";
import { finished, numbered, short, started, text } from "./model.js";
import { tempFolder } from "./parleyd.js";
import { read } from "./streams.js";

const options = { timeout: 60_000 };
const secret = "parley_secret";

/** Starts a server that accepts some tokens, and a client of it. */
async function signedIn(t: TestContext, clientOptions: ClientOptions, ...valid: string[]) {
  const server = new FakeServer();
  const accepted = new Set(valid);
  server.check = ({ metadata }) => {
    if (!accepted.has(metadata.get("authorization")?.replace("Bearer ", "") ?? "")) {
      throw rejection();
    }
  };
  const address = await server.serve(t);
  const client = new Client(address, clientOptions);
  t.after(() => client.close());
  const sent = () => server.calls.map(({ metadata }) => metadata.get("authorization"));
  return { server, accepted, address, client, sent };
}

function rejection(): ServerError {
  return new ServerError(Status.UNAUTHENTICATED, "no valid credential");
}

/** Replaces a file as a program that rotates tokens does. */
async function replace(path: string, content: string): Promise<void> {
  await writeFile(`${path}.new`, content);
  await rename(`${path}.new`, path);
}

const sources: Record<string, (folder: string) => Promise<ClientOptions>> = {
  "a string": async () => ({ token: "a" }),
  "a function": async () => ({ token: () => "a" }),
  "an async function": async () => ({ token: async () => "a" }),
  async "a file"(folder) {
    const tokenFile = join(folder, "token");
    await writeFile(tokenFile, "\ufeff a\r\n");
    return { tokenFile };
  },
};
for (const [name, source] of Object.entries(sources)) {
  test(`all calls have the token: ${name}`, options, async (t) => {
    const { server, client, sent } = await signedIn(t, await source(await tempFolder(t)), "a");
    server.turn = async function* () {
      yield* numbered("t", started("c"), text("hi"), finished());
    };
    await client.getConversation({ conversationId: "c" });
    await client.importConversations([{}]);
    for (const stream of [
      client.chat({ content: "hello" }),
      client.resumeTurn({ conversationId: "c" }),
      client.exportConversations({}),
    ]) {
      assert.ifError((await read<unknown>(stream)).error);
    }
    assert.deepEqual(sent(), Array(5).fill("Bearer a"));
  });
}

test("a client without a token sends none", options, async (t) => {
  const { client, sent } = await signedIn(t, {});
  await assert.rejects(client.getConversation({}), { name: "ParleyError", code: "UNAUTHENTICATED" });
  assert.deepEqual(sent(), [undefined]);
});

test("the token function is called for each call", options, async (t) => {
  let count = 0;
  const { client, sent } = await signedIn(t, { token: () => `t${++count}` }, "t1", "t2");
  await client.getConversation({});
  await client.getConversation({});
  assert.deepEqual(sent(), ["Bearer t1", "Bearer t2"]);
});

test("a file that changes is read again", options, async (t) => {
  const tokenFile = join(await tempFolder(t), "token");
  const { client, sent } = await signedIn(t, { tokenFile }, "first", "other");
  await assert.rejects(client.getConversation({}), {
    code: "UNAUTHENTICATED",
    message: /^UNAUTHENTICATED: the token file ".*token" cannot be read: ENOENT/,
  });
  await writeFile(tokenFile, "first\n");
  await client.getConversation({});
  await replace(tokenFile, "other\n"); // It has the same size.
  await client.getConversation({});
  // The token is valid, so calls continue while the file is written in place or missing.
  await writeFile(tokenFile, "");
  await client.getConversation({});
  await rm(tokenFile);
  await client.getConversation({});
  assert.deepEqual(sent(), ["Bearer first", "Bearer other", "Bearer other", "Bearer other"]);
});

const badFiles: Record<string, { content: string; want: RegExp }> = {
  empty: { content: " \n", want: /token" is empty$/ },
  "two lines": { content: `${secret}\n${secret}\n`, want: /contains a space, a line break/ },
  "with the scheme": { content: `Bearer ${secret}`, want: /set only the token, without "Bearer"$/ },
  "too large": { content: secret.repeat(10_000), want: /has 130000 bytes, want a token of at most 13312/ },
};
for (const [name, { content, want }] of Object.entries(badFiles)) {
  test(`a file without a valid token: ${name}`, options, async (t) => {
    const tokenFile = join(await tempFolder(t), "token");
    await writeFile(tokenFile, content);
    const { client, sent } = await signedIn(t, { tokenFile });
    const { error } = await read(client.chat({ content: "hello" }));
    assert.ok(error instanceof ParleyError && error.code === "UNAUTHENTICATED", inspect(error));
    assert.match(error.message, want);
    assert.doesNotMatch(inspect(error), /secret/);
    assert.deepEqual(sent(), []);
  });
}

test("a folder is no token file", options, async (t) => {
  const { client } = await signedIn(t, { tokenFile: await tempFolder(t) });
  await assert.rejects(client.getConversation({}), { message: /is not a regular file$/ });
});

test("a rejected call is sent again with another token, once", options, async (t) => {
  const tokens = ["old", "new", "worse", "worst", "same", "same"];
  const { client, sent } = await signedIn(t, { token: () => tokens.shift()! }, "new");
  await client.getConversation({});
  assert.deepEqual(sent(), ["Bearer old", "Bearer new"]);
  await assert.rejects(client.getConversation({}), { code: "UNAUTHENTICATED" });
  assert.deepEqual(sent().slice(2), ["Bearer worse", "Bearer worst"]);
  await assert.rejects(client.getConversation({}), { code: "UNAUTHENTICATED" });
  assert.deepEqual(sent().slice(4), ["Bearer same"]);
  assert.deepEqual(tokens, []);
});

test("a rejected export is sent again, an import is not", options, async (t) => {
  const tokens = ["old", "new", "old", "new"];
  const { server, client, sent } = await signedIn(t, { token: () => tokens.shift()! }, "new");
  server.turn = async function* () {};
  assert.ifError((await read(client.exportConversations({}))).error);
  await assert.rejects(client.importConversations([{}]), { code: "UNAUTHENTICATED" });
  assert.deepEqual(sent(), ["Bearer old", "Bearer new", "Bearer old"]);
  assert.deepEqual(tokens, ["new"]);
  assert.deepEqual(server.imported, []);
});

test("a file is read again after a rejection", options, async (t) => {
  const tokenFile = join(await tempFolder(t), "token");
  await writeFile(tokenFile, "old");
  const { server, client, accepted, sent } = await signedIn(t, { tokenFile }, "old");
  await client.getConversation({});
  // The operator replaces the token while a call is running.
  const { check } = server;
  server.check = (context) => {
    server.check = check;
    writeFileSync(tokenFile, "new");
    accepted.clear();
    accepted.add("new");
    check(context);
  };
  await client.getConversation({});
  assert.deepEqual(sent(), ["Bearer old", "Bearer old", "Bearer new"]);
  // A rejected token in a missing file fails with what is wrong with the file.
  accepted.clear();
  await rm(tokenFile);
  await assert.rejects(client.getConversation({}), { message: /cannot be read: ENOENT/ });
});

const errors: Record<string, unknown> = {
  "an Error": new RangeError("error of the caller"),
  "a ParleyError": new ParleyError("NOT_FOUND", "error of the caller"),
  "an AbortError": new DOMException("error of the caller", "AbortError"),
};
for (const [name, failure] of Object.entries(errors)) {
  test(`an error of the token function is thrown unchanged: ${name}`, options, async (t) => {
    for (const token of [
      () => {
        throw failure;
      },
      () => Promise.reject(failure),
    ]) {
      const { client, sent } = await signedIn(t, { token });
      const isSame = (error: unknown) => error === failure;
      await assert.rejects(client.getConversation({}), isSame);
      assert.equal((await read(client.chat({ content: "hello" }))).error, failure);
      assert.equal((await read(client.exportConversations({}))).error, failure);
      assert.deepEqual(sent(), []);
    }
  });
}

test("the token function returns no valid token", options, async (t) => {
  const table: [unknown, RegExp][] = [
    [undefined, /^UNAUTHENTICATED: the result of the token function is undefined, want a string$/],
    [null, /is null, want a string$/],
    ["", /is empty$/],
    [`${secret}\n`, /contains a space, a line break/],
    [`${secret}ü`, /contains a space, a line break/],
  ];
  for (const [result, want] of table) {
    const { client, sent } = await signedIn(t, { token: () => result as string });
    await assert.rejects(client.getConversation({}), (error) => {
      assert.ok(error instanceof ParleyError);
      assert.match(error.message, want);
      assert.doesNotMatch(inspect(error), /secret/);
      return true;
    });
    assert.deepEqual(sent(), []);
  }
});

test("the signal and close end the wait for a token", options, async (t) => {
  const controller = new AbortController();
  const { signal } = controller;
  const asked = new EventEmitter();
  let count = 0;
  const { client, sent } = await signedIn(t, {
    token: () => {
      asked.emit(`${++count}`);
      return new Promise(() => {});
    },
  });
  const allAsked = once(asked, "4");
  const call = assert.rejects(client.getConversation({}, { signal }), { name: "AbortError" });
  const stream = read(client.chat({ content: "hello" }, { signal }));
  const other = assert.rejects(client.getConversation({}), { message: "CANCELLED: the client is closed" });
  const iterator = client.chat({ content: "hello" })[Symbol.asyncIterator]();
  const left = iterator.next();
  await allAsked;
  controller.abort();
  await call;
  assert.equal(((await stream).error as Error).name, "AbortError");
  assert.deepEqual(getEventListeners(signal, "abort"), []);
  await iterator.return!();
  assert.deepEqual(await left, { done: true, value: undefined });
  client.close();
  await other;
  assert.deepEqual(sent(), []);
});

/** A stream whose token expires after its first events. */
function expiring(events: ReturnType<typeof short>, onExpiry = () => {}) {
  return async function* (_: unknown, { metadata }: CallContext) {
    if (metadata.get("authorization") === "Bearer old") {
      yield* events.slice(0, 2);
      onExpiry();
      throw rejection();
    }
    yield* events.slice(2);
  };
}

test("a stream resumes with another token after its token has expired", options, async (t) => {
  const tokenFile = join(await tempFolder(t), "token");
  for (const source of [undefined, { tokenFile }]) {
    await writeFile(tokenFile, "old");
    let token = "old";
    const { server, client, sent } = await signedIn(t, source ?? { token: () => token }, "old", "new");
    server.turn = expiring(short());
    const { items, error } = await read(client.chat({ content: "hello" }), async (_, count) => {
      if (count === 1) {
        token = "new";
        await replace(tokenFile, "new");
      }
    });
    assert.ifError(error);
    assert.deepEqual(items, short());
    assert.deepEqual(sent(), ["Bearer old", "Bearer new"]);
    assert.deepEqual(
      server.calls.map(({ method }) => method),
      ["chat", "resumeTurn"],
    );
  }
});

test("a stream ends with its token if there is no other", options, async (t) => {
  const { server, client, sent } = await signedIn(t, { token: "old" }, "old");
  server.turn = expiring(short());
  const { items, error } = await read(client.chat({ content: "hello" }));
  assert.deepEqual(items, short().slice(0, 2));
  assert.equal((error as ParleyError).code, "UNAUTHENTICATED");
  assert.deepEqual(sent(), ["Bearer old"]);
});

test("a stream ends if the server rejects the other token", options, async (t) => {
  const tokens = ["old", "new", "new", "new"];
  const { server, client, accepted, sent } = await signedIn(
    t,
    { token: () => tokens.shift()! },
    "old",
    "new",
  );
  server.turn = expiring(short(), () => accepted.clear());
  const { items, error } = await read(client.chat({ content: "hello" }));
  assert.deepEqual(items, short().slice(0, 2));
  assert.equal((error as ParleyError).message, "UNAUTHENTICATED: no valid credential");
  assert.deepEqual(sent(), ["Bearer old", "Bearer new"]);
  assert.deepEqual(tokens, []);
});

test("an error of the token function ends an expired stream", options, async (t) => {
  const failure = new RangeError("error of the caller");
  let count = 0;
  const token = () => {
    if (count++ > 0) {
      throw failure;
    }
    return "old";
  };
  const { server, client } = await signedIn(t, { token }, "old");
  server.turn = expiring(short());
  const { items, error } = await read(client.chat({ content: "hello" }));
  assert.equal(error, failure);
  assert.equal(items.length, 2);
});

test("an export whose token expires ends", options, async (t) => {
  let count = 0;
  const { server, client } = await signedIn(t, { token: () => `t${++count}` }, "t1", "t2");
  server.turn = async function* () {
    yield* short().slice(0, 1);
    throw rejection();
  };
  const { items, error } = await read(client.exportConversations({}));
  assert.equal(items.length, 1);
  assert.equal((error as ParleyError).code, "UNAUTHENTICATED");
  assert.match(inspect(error), /^ParleyError: UNAUTHENTICATED: no valid credential\n/);
  assert.equal(server.calls.length, 1);
  assert.equal(count, 1);
});

test("a call may set its own credential and tenant", options, async (t) => {
  const { server, client, sent } = await signedIn(t, { token: "a", tenant: "acme" }, "a", "b");
  await client.getConversation({});
  const metadata = Metadata({
    Authorization: "Bearer b",
    "parley-tenant": "other",
    "trace-bin": Buffer.of(1),
  });
  await client.getConversation({}, { metadata });
  await assert.rejects(client.getConversation({}, { metadata: Metadata({ authorization: "Bearer c" }) }), {
    code: "UNAUTHENTICATED",
  });
  assert.deepEqual(sent(), ["Bearer a", "Bearer b", "Bearer c"]);
  assert.deepEqual(
    server.calls.map(({ metadata }) => metadata.get("parley-tenant")),
    ["acme", "other", "acme"],
  );
  assert.deepEqual(server.calls[1]!.metadata.get("trace-bin"), Buffer.of(1));
  assert.equal([...metadata].length, 3, "the caller's metadata was changed");
});

test("errors and inspect show no token", options, async (t) => {
  for (const token of [secret, () => secret]) {
    const { client } = await signedIn(t, { token });
    await assert.rejects(client.getConversation({}), (error) => {
      assert.doesNotMatch(inspect(error, { depth: Infinity, showHidden: true }), /secret/);
      return true;
    });
    const { error } = await read(client.chat({ content: "hello" }));
    assert.doesNotMatch(inspect(error, { depth: Infinity, showHidden: true }), /secret/);
    assert.doesNotMatch(inspect(client, { depth: Infinity, showHidden: true }), /secret/);
    assert.doesNotMatch(JSON.stringify(client), /secret/);
  }
});

/** Returns the metadata of a call of a client with these options and variables. */
async function signed(clientOptions: ClientOptions, environment: Record<string, string>) {
  const { signIn } = connectionSettings("127.0.0.1:1", clientOptions, environment);
  const metadata = new Map((await signIn.sign(() => false)).metadata);
  return [metadata.get("authorization"), metadata.get("parley-tenant")];
}

test("environment variables are the defaults of options", options, async (t) => {
  const path = join(await tempFolder(t), "token");
  await writeFile(path, "file");
  const [all, none] = [
    { PARLEY_TOKEN: "env", PARLEY_TENANT: "acme" },
    { PARLEY_TOKEN: "", PARLEY_TENANT: "" },
  ];
  assert.deepEqual(await signed({}, {}), [undefined, undefined]);
  assert.deepEqual(await signed({}, none), [undefined, undefined]);
  assert.deepEqual(await signed({ token: undefined, tokenFile: undefined, tenant: undefined }, all), [
    "Bearer env",
    "acme",
  ]);
  assert.deepEqual(await signed({}, { PARLEY_TOKEN_FILE: path }), ["Bearer file", undefined]);
  assert.deepEqual(await signed({ token: "mine", tenant: "own" }, all), ["Bearer mine", "own"]);
  assert.deepEqual(await signed({ tokenFile: path }, all), ["Bearer file", "acme"]);
  assert.deepEqual(await signed({ token: "mine" }, { PARLEY_TOKEN_FILE: path }), ["Bearer mine", undefined]);
  assert.deepEqual(await signed({ token: "", tenant: "" }, all), [undefined, undefined]);
  assert.deepEqual(await signed({ tokenFile: "" }, { PARLEY_TOKEN_FILE: path }), [undefined, undefined]);
  assert.deepEqual(await signed({ token: "", tokenFile: path }, all), ["Bearer file", "acme"]);
});

const remote = "parley.example:443";
const insecure = ChannelCredentials.createInsecure();
const faulty: Record<string, { target?: string; given?: object; environment?: object; want: RegExp }> = {
  "two sources": { given: { token: "a", tokenFile: "b" }, want: /^token and tokenFile are both set/ },
  "two variables": {
    environment: { PARLEY_TOKEN: "a", PARLEY_TOKEN_FILE: "b" },
    want: /^PARLEY_TOKEN and PARLEY_TOKEN_FILE are both set/,
  },
  "a long token": {
    given: { token: secret.repeat(1000) },
    want: /^token has 13000 characters, want at most 12288$/,
  },
  "a token of another type": { given: { token: 1 }, want: /^token is number, want a string$/ },
  "a token with a line break": { given: { token: `${secret}\n` }, want: /^token contains a space, a line/ },
  "a token that is not printable": { given: { token: `${secret}\0` }, want: /^token contains a space/ },
  "a token with its scheme": { given: { token: `Bearer ${secret}` }, want: /without "Bearer"$/ },
  "a variable with a line break": {
    environment: { PARLEY_TOKEN: `${secret}\n` },
    want: /^PARLEY_TOKEN contains a space, a line break/,
  },
  "a null as token": { given: { token: null }, want: /^token is null, want a string$/ },
  "a null as path": { given: { tokenFile: null }, want: /^tokenFile is null, want the path of a file$/ },
  "a path of another type": { given: { tokenFile: 1 }, want: /^tokenFile is number, want the path/ },
  "a null as tenant": { given: { tenant: null }, want: /^tenant is null, want 1 to 64 letters/ },
  "all tenants": { given: { tenant: "*" }, want: /^tenant is "\*", want/ },
  "a tenant with a line break": { given: { tenant: "a\nb" }, want: /^tenant is "a\\nb", want/ },
  "a long tenant": { given: { tenant: "a".repeat(65) }, want: /^tenant is "a{65}", want/ },
  "a tenant of another type": { given: { tenant: 1 }, want: /^tenant is 1, want/ },
  "a variable with a bad tenant": {
    environment: { PARLEY_TENANT: ".a" },
    want: /^PARLEY_TENANT is "\.a", want/,
  },
  "a token in plaintext": {
    target: remote,
    given: { token: secret, credentials: insecure },
    want: /^token would be sent to another machine in plaintext; use TLS/,
  },
  "the token of a variable in plaintext": {
    target: remote,
    given: { credentials: insecure },
    environment: { PARLEY_TOKEN: secret },
    want: /^PARLEY_TOKEN would be sent to another machine in plaintext/,
  },
};
for (const [name, { target = "127.0.0.1:1", given = {}, environment = {}, want }] of Object.entries(faulty)) {
  test(`options that cannot be used: ${name}`, () => {
    assert.throws(
      () => connectionSettings(target, given as ClientOptions, environment as Record<string, string>),
      (error) => {
        assert.ok(error instanceof TypeError);
        assert.match(error.message, want);
        assert.doesNotMatch(inspect(error), /secret/);
        return true;
      },
    );
  });
}

test("a token may be sent in plaintext", () => {
  for (const [target, given] of [
    ["127.0.0.1:1", {}],
    ["unix:/run/parley.sock", {}],
    [remote, { tls: false }],
    ["127.0.0.1:1", { credentials: insecure }],
  ] as const) {
    const { credentials } = connectionSettings(target, { token: secret, ...given }, {});
    assert.equal(credentials._isSecure(), false, target);
  }
  assert.equal(connectionSettings(remote, { token: secret }, {}).credentials._isSecure(), true);
});
