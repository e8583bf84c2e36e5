import assert from "node:assert/strict";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type TestContext, test } from "node:test";

import { createAuthority } from "./certificates.js";
import { connect, createToken, options, startParleyd, tempFolder } from "./parleyd.js";
import { folder, start } from "./process.js";
import { startWebParleyd } from "./web.js";

/** Returns the first snippet of each section of the README, by its heading. */
async function snippets(): Promise<Record<string, string>> {
  const readme = await readFile(join(folder, "README.md"), "utf8");
  const sections = readme.split(/^## /m).map((section) => {
    const [, code] = /^```ts\n(.*?)^```$/ms.exec(section) ?? [];
    return [section.split("\n", 1)[0]!, code] as const;
  });
  return Object.fromEntries(
    sections.filter((section): section is [string, string] => section[1] !== undefined),
  );
}

/** Compiles programs in a new folder that can import this package by name. Returns the folder. */
async function compile(t: TestContext, programs: Record<string, string>): Promise<string> {
  await mkdir(join(folder, "dist"), { recursive: true });
  const made = await mkdtemp(join(folder, "dist", "readme-"));
  t.after(() => rm(made, { recursive: true }));
  for (const [name, program] of Object.entries(programs)) {
    await writeFile(join(made, `${name}.ts`), program);
  }
  const config = {
    extends: "../../tsconfig.json",
    compilerOptions: { rootDir: ".", outDir: "." },
    include: ["*.ts"],
    exclude: [],
  };
  await writeFile(join(made, "tsconfig.json"), JSON.stringify(config));
  const compiler = start(t, join(folder, "node_modules", ".bin", "tsc"), "--project", made);
  assert.equal(await compiler.ended, 0, compiler.lines.join("\n"));
  return made;
}

const wanted: Record<string, RegExp> = {
  Append: /^shopping has 2 messages$/,
  Load: /^ROLE_USER What do I need for pancakes\?\nROLE_ASSISTANT Flour, eggs and milk\.$/,
  Chat: /^How many eggs\?\nTURN_STATE_COMPLETED$/,
  Route: /^Previous: listed what pancakes need, How many eggs\?\n\[ 'shopping_list by cook' \]$/,
  Watch: /^CHANGE_KIND_HEARTBEAT \nCHANGE_KIND_MESSAGE_APPENDED shopping\nAnd sugar\?$/,
  Keep: /^$/,
  Records: /^state\/list true\n\[ \{ step: 3 \} \]\ncake\.png has 5 bytes\nstate\/list has 10 bytes$/,
  "Append many messages": /^\[ 25, 25, 25, 25 \]$/,
  Replace: /^stored as message 1\nstored as message 2$/,
  Errors: /^NOT_FOUND CONVERSATION_NOT_FOUND: .*nobody:knows/,
};
/** Returns the name of a program's file. */
const fileOf = (heading: string) => heading.replaceAll(" ", "-");

const agent = "An agent of your own";
const signIn = "Sign in and TLS";
const web = "Browsers, edge and workers";

test("the snippets are in order", async () => {
  const first = [
    "Install",
    "Append",
    "Load",
    "Chat",
    "Route",
    "Watch",
    "Keep",
    "Records",
    "Append many messages",
    "Replace",
  ];
  const headings = [...first, agent, signIn, web, "Errors"];
  assert.deepEqual(Object.keys(await snippets()), headings);
});

test("the snippets have their expected output", options, async (t) => {
  const { Install: connecting, ...rest } = await snippets();
  const { address } = await startParleyd(t);
  const begin = connecting!.replace("127.0.0.1:50051", address);
  assert.notEqual(begin, connecting);
  const programs = Object.keys(wanted).map((name) => [
    fileOf(name),
    `${begin}\n${rest[name]}\nclient.close();\n`,
  ]);
  const made = await compile(t, Object.fromEntries(programs));
  for (const [name, want] of Object.entries(wanted)) {
    await t.test(name, async (t) => {
      const program = start(t, process.execPath, join(made, `${fileOf(name)}.js`));
      assert.equal(await program.ended, 0, program.lines.join("\n"));
      assert.match(program.lines.join("\n"), want);
    });
  }
});

test("the agent answers", options, async (t) => {
  const code = (await snippets())[agent]!;
  const made = await compile(t, { agent: code.replace("127.0.0.1:7003", "127.0.0.1:0") });
  const shouter = start(t, process.execPath, join(made, "agent.js"));
  const server = await startParleyd(t, { agent: await shouter.find(/^the agent serves (.+)$/) });
  const client = connect(t, server.address);
  for await (const { event } of client.chat({ content: "hello there" })) {
    if (event?.$case === "finished") {
      const [answer] = event.value.messages;
      assert.deepEqual([answer?.content, answer?.summary], ["HELLO THERE ", "shouted"]);
    }
  }
  shouter.kill("SIGTERM");
  assert.equal(await shouter.ended, 0);
});

test("the client signs in", options, async (t) => {
  const { caFile, issue } = await createAuthority(t);
  const { certFile, keyFile } = await issue("server", "DNS:localhost,IP:127.0.0.1");
  const made = await tempFolder(t);
  const [tokens, tokenFile] = [join(made, "tokens"), join(made, "parley.token")];
  await writeFile(tokenFile, `${await createToken(t, tokens, "--tenant=acme", "--role=reader")}\n`);
  const more = { tls_cert_file: certFile, tls_key_file: keyFile, auth_token_file: tokens };
  const { address } = await startParleyd(t, { more });
  const { Install: connecting, [signIn]: code } = await snippets();
  let program = `${connecting}\n${code}\nclient.close();\n`;
  for (const [text, replacement] of [
    ["parley.example:50051", address.replace("127.0.0.1", "localhost")],
    ["parley.token", tokenFile],
    ["ca.pem", caFile],
  ] as const) {
    assert.ok(program.includes(`"${text}"`), text);
    program = program.replace(`"${text}"`, JSON.stringify(replacement));
  }
  const running = start(t, process.execPath, join(await compile(t, { program }), "program.js"));
  assert.equal(await running.ended, 0, running.lines.join("\n"));
  assert.deepEqual(running.lines, ["[ 'echo' ]"]);
});

test("the page shows the answer", options, async (t) => {
  const { url } = await startWebParleyd(t);
  const code = (await snippets())[web]!;
  assert.ok(code.includes("http://127.0.0.1:8080"));
  // A page, of which the snippet uses two objects.
  const begin = `
    const shown: string[] = [];
    const document = { body: { append: (text: string) => shown.push(text) } };
    const localStorage = { getItem: (_: string): string | null => null };`;
  const end = 'console.log(shown.join(""));';
  const program = code.replace("http://127.0.0.1:8080", url).replace(/^import .*$/m, (line) => line + begin);
  const made = await compile(t, { page: `${program}\n${end}` });
  const running = start(t, process.execPath, join(made, "page.js"));
  assert.equal(await running.ended, 0, running.lines.join("\n"));
  assert.deepEqual(running.lines, ["How many eggs?"]);
});

test("the table of the README has every option and variable", async () => {
  const readme = await readFile(join(folder, "README.md"), "utf8");
  const files = ["options.ts", "web/options.ts"].map((file) => readFile(join(folder, "src", file), "utf8"));
  const source = (await Promise.all(files)).join("\n");
  const names = new Set(source.match(/PARLEY_\w+|(?<=^ {2}readonly )\w+(?=\?:)/gm));
  assert.ok(names.size > 10, [...names].join());
  for (const name of names) {
    if (name !== "credentials" && name !== "channelOptions") {
      assert.match(readme, new RegExp(`^\\|.*\`${name}\``, "m"), name);
    }
  }
});
