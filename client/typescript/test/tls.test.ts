import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type TestContext, test } from "node:test";

import { ServerCredentials } from "@grpc/grpc-js";
import { ChannelCredentials, Client, type ClientOptions } from "@parleyhq/client";

import { connectionSettings } from "../src/options.js";
import { type Authority, createAuthority } from "./certificates.js";
import { FakeServer } from "./fake-server.js";
import { tempFolder } from "./parleyd.js";

const options = { timeout: 60_000 };

/** Starts a server with a certificate of a new authority. Returns its address with localhost. */
async function secured(t: TestContext, wantsCertificate = false): Promise<Authority & { address: string }> {
  const authority = await createAuthority(t);
  const { certFile, keyFile } = await authority.issue("server", "DNS:localhost,IP:127.0.0.1");
  const pair = { private_key: await readFile(keyFile), cert_chain: await readFile(certFile) };
  const credentials = ServerCredentials.createSsl(await readFile(authority.caFile), [pair], wantsCertificate);
  const address = await new FakeServer().serve(t, credentials);
  return { ...authority, address: address.replace("127.0.0.1", "localhost") };
}

async function call(t: TestContext, address: string, clientOptions: ClientOptions): Promise<void> {
  const client = new Client(address, clientOptions);
  t.after(() => client.close());
  await client.getConversation({});
}

test("TLS with an authority of the caller", options, async (t) => {
  const { address, caFile } = await secured(t);
  const ca = await readFile(caFile);
  const trusted: Record<string, ClientOptions> = {
    "the path of a file": { caFile },
    "a Buffer": { ca },
    "a string, and tls": { ca: ca.toString(), tls: true },
    "credentials of the caller": { credentials: ChannelCredentials.createSsl(ca) },
  };
  for (const [name, clientOptions] of Object.entries(trusted)) {
    await t.test(name, () => call(t, address, clientOptions));
  }
  const other = await createAuthority(t);
  const untrusted: Record<string, { given: ClientOptions; want: RegExp }> = {
    "Node's certificates": { given: { tls: true }, want: /self.signed certificate|unable to verify/ },
    "another authority": { given: { caFile: other.caFile }, want: /certificate/ },
    "another name": {
      given: { caFile, channelOptions: { "grpc.ssl_target_name_override": "parley.example" } },
      want: /parley\.example/,
    },
    plaintext: { given: {}, want: /./ },
  };
  for (const [name, { given, want }] of Object.entries(untrusted)) {
    await t.test(`fails: ${name}`, () =>
      assert.rejects(call(t, address, given), { code: "UNAVAILABLE", message: want }),
    );
  }
});

test("TLS with a client certificate", options, async (t) => {
  const { address, caFile, issue } = await secured(t, true);
  const { certFile, keyFile } = await issue("shop", "URI:spiffe://example/shop");
  await call(t, address, { caFile, certFile, keyFile });
  await assert.rejects(call(t, address, { caFile }), { code: "UNAVAILABLE" });
});

test("TLS or plaintext", options, async (t) => {
  const { caFile, issue } = await createAuthority(t);
  const { certFile, keyFile } = await issue("shop", "DNS:shop");
  const variables = {
    PARLEY_TLS_CA_FILE: caFile,
    PARLEY_TLS_CERT_FILE: certFile,
    PARLEY_TLS_KEY_FILE: keyFile,
  };
  const missing = {
    PARLEY_TLS_CA_FILE: "/missing/ca",
    PARLEY_TLS_CERT_FILE: "/missing/cert",
    PARLEY_TLS_KEY_FILE: "/missing/key",
  };
  const [local, socket, remote] = ["127.0.0.1:1", "unix:/run/parley.sock", "parley.example:1"];
  const table: [string, ClientOptions, Record<string, string>, boolean][] = [
    [local, {}, {}, false],
    [socket, {}, {}, false],
    [remote, {}, {}, true],
    [remote, { tls: false }, {}, false],
    [local, { tls: true }, {}, true],
    [local, { caFile }, {}, true],
    [socket, { ca: await readFile(caFile) }, {}, true],
    [local, { certFile, keyFile }, {}, true],
    [local, {}, variables, true],
    [local, {}, { PARLEY_TLS_CA_FILE: caFile }, true],
    [local, {}, { PARLEY_TLS_CA_FILE: "", PARLEY_TLS_CERT_FILE: "", PARLEY_TLS_KEY_FILE: "" }, false],
    [local, { caFile: "", certFile: "" }, missing, false],
    [local, { ca: "", keyFile: "" }, missing, false],
    [remote, { caFile: "", certFile: "", keyFile: "" }, missing, true],
    [remote, { tls: false, caFile: "" }, missing, false],
    [remote, { tls: false }, missing, false],
    [remote, { tls: false }, { PARLEY_TLS_CERT_FILE: certFile }, false],
    [local, { caFile, certFile, keyFile }, missing, true],
    [local, { ca: await readFile(caFile, "utf8"), certFile, keyFile }, missing, true],
    [local, { credentials: ChannelCredentials.createInsecure() }, missing, false],
  ];
  for (const [target, given, environment, want] of table) {
    const { credentials } = connectionSettings(target, given, environment);
    assert.equal(
      credentials._isSecure(),
      want,
      `${target} ${Object.keys(given)} ${Object.keys(environment)}`,
    );
  }
});

test("certificates and options that cannot be used", options, async (t) => {
  const { caFile, issue } = await createAuthority(t);
  const { certFile, keyFile } = await issue("shop", "DNS:shop");
  const other = await issue("other", "DNS:other");
  const folder = await tempFolder(t);
  const write = async (name: string, content: string) => {
    await writeFile(join(folder, name), content);
    return join(folder, name);
  };
  const text = await write("text", "no certificate");
  const broken = await write("broken", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  const credentials = ChannelCredentials.createSsl();
  const table: [object, Record<string, string>, RegExp][] = [
    [{ caFile: join(folder, "missing") }, {}, /^caFile: ENOENT: .*missing'$/],
    [{}, { PARLEY_TLS_CA_FILE: join(folder, "missing") }, /^PARLEY_TLS_CA_FILE: ENOENT/],
    [{ caFile: text }, {}, /^caFile: ".*text" contains no certificate in PEM form$/],
    [{ caFile: keyFile }, {}, /^caFile: ".*key" contains no certificate in PEM form$/],
    [{ caFile: broken }, {}, /^caFile: ".*broken" contains an invalid certificate: /],
    [{ ca: "no certificate" }, {}, /^ca contains no certificate in PEM form$/],
    [{ ca: 1 }, {}, /^ca is number, want certificates in PEM form$/],
    [{ caFile: 1 }, {}, /^caFile is number, want the path of a file$/],
    [{ certFile: null }, {}, /^certFile is null, want the path of a file$/],
    [{ ca: "x", caFile }, {}, /^ca and caFile are both set; set one of them$/],
    [{ certFile }, {}, /^certFile is set without a key/],
    [{ keyFile }, {}, /^keyFile is set without a certificate/],
    [{ keyFile }, { PARLEY_TLS_CERT_FILE: certFile }, /^keyFile is set without a certificate/],
    [{}, { PARLEY_TLS_CERT_FILE: certFile }, /^PARLEY_TLS_CERT_FILE is set without a key/],
    [{ certFile: text, keyFile }, {}, /^certFile: ".*text" contains no certificate/],
    [{ certFile, keyFile: text }, {}, /^keyFile: ".*text" is not the unencrypted key, in PEM form, of/],
    [{ certFile, keyFile: other.keyFile }, {}, /^keyFile: ".*other\.key" is not the .*: .*mismatch/],
    [{ tls: "yes" }, {}, /^tls is string, want true, false or undefined$/],
    [{ tls: false, caFile }, {}, /^tls is false, but caFile is set; remove one of them$/],
    [{ tls: false, certFile, keyFile }, {}, /^tls is false, but certFile is set/],
    [{ credentials, caFile }, {}, /^credentials and caFile are both set; set one of them$/],
    [{ credentials, tls: true }, {}, /^credentials and tls are both set/],
  ];
  for (const [given, environment, message] of table) {
    assert.throws(() => connectionSettings("127.0.0.1:1", given, environment), { message });
  }
});
