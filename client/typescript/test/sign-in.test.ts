import assert from "node:assert/strict";
import { EventEmitter, once } from "node:events";
import { rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { inspect } from "node:util";

import { Client, type ClientOptions, type Metadata, ParleyError } from "@parleyhq/client";

import { createAuthority } from "./certificates.js";
import { textOf } from "./model.js";
import { createToken, options, ScriptedAgent, serveAgent, startParleyd, tempFolder } from "./parleyd.js";
import { start } from "./process.js";
import { read } from "./streams.js";

/** Starts a parleyd with TLS and a token of each of these kinds, given as flags of parleyd token create. */
async function secured(t: TestContext, ...kinds: string[][]) {
  const { caFile, issue } = await createAuthority(t);
  const { certFile, keyFile } = await issue("server", "DNS:localhost,IP:127.0.0.1");
  const tokenFile = join(await tempFolder(t), "tokens");
  const tokens: string[] = [];
  for (const flags of kinds) {
    tokens.push(await createToken(t, tokenFile, ...flags));
  }
  const more = { tls_cert_file: certFile, tls_key_file: keyFile, auth_token_file: tokenFile };
  const { address } = await startParleyd(t, { more });
  return { target: address.replace("127.0.0.1", "localhost"), caFile, tokens };
}

/** Returns a client. The end of the test closes it. */
function open(t: TestContext, target: string, clientOptions: ClientOptions): Client {
  const client = new Client(target, clientOptions);
  t.after(() => client.close());
  return client;
}

async function append(client: Client, conversationId: string): Promise<void> {
  await client.appendMessages({ conversationId, messages: [{ role: "ROLE_USER", content: "hello" }] });
}

/** Replaces a file as a program that rotates tokens does. */
async function replace(path: string, content: string): Promise<void> {
  await writeFile(`${path}.new`, content);
  await rename(`${path}.new`, path);
}

/** A token expires after some seconds, and its streams end 30 s later. */
const longer = { ...options, timeout: 120_000 };

const writer = ["--tenant=acme", "--role=writer"];

test("a token from each source signs in over TLS", options, async (t) => {
  const { target, caFile, tokens } = await secured(t, writer);
  const [token] = tokens as [string];
  const tokenFile = join(await tempFolder(t), "token");
  await writeFile(tokenFile, `${token}\n`);
  const sources: Record<string, ClientOptions> = {
    "a string": { token },
    "a function": { token: () => token },
    "an async function": { token: async () => token },
    "a file": { tokenFile },
  };
  for (const [name, source] of Object.entries(sources)) {
    await t.test(name, async (t) => {
      await append(open(t, target, { caFile, ...source }), "c");
    });
  }
  const program = `
    import { Client } from "@parleyhq/client";
    const client = new Client("${target}");
    const { messages } = await client.loadConversation({ conversationId: "c" });
    console.log(messages.length);`;
  for (const variable of [`PARLEY_TOKEN=${token}`, `PARLEY_TOKEN_FILE=${tokenFile}`]) {
    await t.test(variable.split("=", 1)[0]!, async (t) => {
      const variables = [variable, "PARLEY_TENANT=acme", `PARLEY_TLS_CA_FILE=${caFile}`];
      const node = [process.execPath, "--input-type=module", "--eval", program];
      const running = start(t, "env", ...variables, ...node);
      assert.equal(await running.ended, 0, running.lines.join("\n"));
      assert.deepEqual(running.lines, ["4"]);
    });
  }
});

test("a wrong token and no token", options, async (t) => {
  const { target, caFile } = await secured(t, writer);
  const wrong = `parley_${"x".repeat(43)}`;
  const calls: Record<string, (client: Client) => Promise<unknown>> = {
    append: (client) => append(client, "c"),
    chat: async (client) => Promise.reject((await read(client.chat({ content: "hello" }))).error),
    watch: async (client) => Promise.reject((await read(client.watchConversations())).error),
  };
  const messages = new Set<string>();
  for (const source of [{ token: wrong }, { token: () => wrong }, {}]) {
    const client = open(t, target, { caFile, ...source });
    for (const [name, call] of Object.entries(calls)) {
      await assert.rejects(call(client), (error) => {
        assert.ok(error instanceof ParleyError, name);
        assert.deepEqual([error.code, error.reason], ["UNAUTHENTICATED", "UNAUTHENTICATED"], name);
        assert.doesNotMatch(inspect(error, { depth: Infinity, showHidden: true }), /xxxx/);
        messages.add(error.message);
        return true;
      });
    }
  }
  assert.equal(messages.size, 1, [...messages].join("\n"));
});

test("roles and tenants", options, async (t) => {
  const several = ["--tenant=acme", "--tenant=other", "--role=writer"];
  const { target, caFile, tokens } = await secured(t, ["--tenant=acme", "--role=reader"], several);
  const [reader, token] = tokens as [string, string];
  await assert.rejects(append(open(t, target, { caFile, token: reader }), "c"), {
    code: "PERMISSION_DENIED",
    reason: "PERMISSION_DENIED",
    metadata: { needed_role: "writer" },
  });
  await assert.rejects(append(open(t, target, { caFile, token }), "c"), {
    code: "INVALID_ARGUMENT",
    reason: "TENANT_REQUIRED",
  });
  await assert.rejects(append(open(t, target, { caFile, token, tenant: "third" }), "c"), {
    code: "PERMISSION_DENIED",
    reason: "PERMISSION_DENIED",
  });
  await append(open(t, target, { caFile, token, tenant: "acme" }), "c");
  const { conversations } = await open(t, target, { caFile, token: reader }).listConversations({});
  assert.deepEqual(
    conversations.map(({ conversation }) => conversation?.id),
    ["c"],
  );
  const other = open(t, target, { caFile, token, tenant: "other" });
  await assert.rejects(other.getConversation({ conversationId: "c" }), { reason: "CONVERSATION_NOT_FOUND" });
});

test("a client certificate signs in", options, async (t) => {
  const { caFile, issue } = await createAuthority(t);
  const server = await issue("server", "DNS:localhost,IP:127.0.0.1");
  const { address } = await startParleyd(t, {
    more: {
      tls_cert_file: server.certFile,
      tls_key_file: server.keyFile,
      tls_client_ca_file: caFile,
      client_certificates: [{ uri: "spiffe://example/acme", tenants: ["acme"], role: "writer" }],
    },
  });
  const target = address.replace("127.0.0.1", "localhost");
  await append(open(t, target, { caFile, ...(await issue("acme", "URI:spiffe://example/acme")) }), "c");
  const without = [{}, await issue("foreign", "URI:spiffe://example/foreign")];
  for (const files of without) {
    const client = open(t, target, { caFile, ...files });
    await assert.rejects(append(client, "c"), { code: "UNAUTHENTICATED", reason: "UNAUTHENTICATED" });
  }
});

test("streams resume with another token after theirs has expired", longer, async (t) => {
  const folder = await tempFolder(t);
  const [tokens, tokenFile] = [join(folder, "tokens"), join(folder, "token")];
  const short = await createToken(t, tokens, ...writer, "--expires=10s");
  const long = await createToken(t, tokens, ...writer, "--expires=1d");
  await writeFile(tokenFile, short);
  const scripted = new ScriptedAgent();
  const agent = (await serveAgent(t, scripted)).address;
  const { address } = await startParleyd(t, { agent, more: { auth_token_file: tokens } });

  // This stream has no other token.
  const ending = read(open(t, address, { token: short }).watchConversations());
  const progress = new EventEmitter();
  const expiries: Date[] = [];
  const onHeader = (header: Metadata) => {
    expiries.push(new Date(header.get("parley-credential-expires") ?? ""));
    progress.emit(`watch ${expiries.length}`);
  };
  const answers: string[] = [];
  const watching = (async () => {
    const changes = open(t, address, { tokenFile }).watchConversations({}, { onHeader });
    for await (const { payload } of changes) {
      if (payload?.$case === "message" && payload.value.role === "ROLE_ASSISTANT") {
        answers.push(payload.value.content);
        break;
      }
    }
  })();
  let token = short;
  let asked = 0;
  const client = open(t, address, {
    token: () => {
      progress.emit(`chat ${++asked}`);
      return token;
    },
  });
  scripted.send("Once ", "upon ");
  const chatting = read(client.chat({ conversationId: "c", content: "go" }), async ({ event }) => {
    if (event?.$case === "textDelta" && event.value.text.includes("upon")) {
      token = long;
      await replace(tokenFile, long);
    }
  });
  // The chat asks for a token at first, after the rejection, and to resume.
  await Promise.all([once(progress, "watch 2"), once(progress, "chat 3")]);
  scripted.send("a ", "time");
  scripted.end();
  const { items, error } = await chatting;
  assert.ifError(error);
  assert.equal(textOf(items), "Once upon a time");
  assert.equal(scripted.runs, 1);
  await watching;
  assert.deepEqual(answers, ["Once upon a time"]);
  assert.equal(expiries.length, 2);
  assert.ok(expiries[1]!.getTime() - expiries[0]!.getTime() > 3600e3, inspect(expiries));
  const ended = await ending;
  assert.ok(ended.items.length > 0);
  assert.equal((ended.error as ParleyError).reason, "UNAUTHENTICATED");
});

test("a stream resumes with another token after its token was revoked", options, async (t) => {
  const folder = await tempFolder(t);
  const [tokens, newTokens, tokenFile] = ["tokens", "new", "token"].map((name) => join(folder, name));
  await writeFile(tokenFile!, await createToken(t, tokens!, ...writer));
  const next = await createToken(t, newTokens!, ...writer);
  const server = await startParleyd(t, { more: { auth_token_file: tokens } });
  const client = open(t, server.address, { tokenFile: tokenFile! });
  let streams = 0;
  const onHeader = () => {
    streams++;
  };
  let revocation: Promise<void> | undefined;
  const revoke = async () => {
    await replace(tokenFile!, next);
    await rename(newTokens!, tokens!);
    server.kill("SIGHUP");
  };
  for await (const { kind } of client.watchConversations({}, { onHeader })) {
    if (kind === "CHANGE_KIND_MESSAGE_APPENDED") {
      break;
    }
    revocation ??= revoke();
    await revocation;
    if (streams === 2) {
      await append(client, "c");
    }
  }
  assert.equal(streams, 2);
});
