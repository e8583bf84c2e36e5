import assert from "node:assert/strict";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type TestContext, test } from "node:test";

import { connect, options, startParleyd } from "./parleyd.js";
import { folder, start } from "./process.js";

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
  Errors: /^NOT_FOUND: .*nobody:knows/,
};
const agent = "An agent of your own";

test("the snippets are in order", async () => {
  const headings = ["Install", "Append", "Load", "Chat", "Route", "Watch", agent, "Errors"];
  assert.deepEqual(Object.keys(await snippets()), headings);
});

test("the snippets have their expected output", options, async (t) => {
  const { Install: connecting, ...rest } = await snippets();
  const { address } = await startParleyd(t);
  const begin = connecting!.replace("127.0.0.1:50051", address);
  assert.notEqual(begin, connecting);
  const programs = Object.keys(wanted).map((name) => [name, `${begin}\n${rest[name]}\nclient.close();\n`]);
  const made = await compile(t, Object.fromEntries(programs));
  for (const [name, want] of Object.entries(wanted)) {
    await t.test(name, async (t) => {
      const program = start(t, process.execPath, join(made, `${name}.js`));
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
