import assert from "node:assert/strict";
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type TestContext, test } from "node:test";

import { tempFolder } from "./parleyd.js";
import { folder, start } from "./process.js";

const options = { timeout: 180_000 };

/** Runs a program to its end. Returns its output. */
async function run(t: TestContext, command: string, ...args: string[]): Promise<string> {
  const program = start(t, command, ...args);
  assert.equal(await program.ended, 0, `${command} ${args.join(" ")}:\n${program.lines.join("\n")}`);
  return program.lines.join("\n");
}

interface Lock {
  packages: Record<string, { version?: string; dev?: boolean; dependencies?: Record<string, string> }>;
}

/** Creates a separate project and installs the packed package there with npm. Returns its folder. */
async function project(t: TestContext): Promise<string> {
  const made = await tempFolder(t);
  await run(t, "npm", "pack", "--ignore-scripts", "--loglevel=error", `--pack-destination=${made}`);
  const { packages } = JSON.parse(await readFile(join(folder, "package-lock.json"), "utf8")) as Lock;
  const { "": own, ...others } = packages;
  const tarball = `file:parleyhq-client-${own!.version}.tgz`;
  const dependencies = { "@parleyhq/client": tarball };
  await writeFile(join(made, "package.json"), JSON.stringify({ name: "other", dependencies }));
  const lock = {
    name: "other",
    lockfileVersion: 3,
    packages: {
      "": { name: "other", dependencies },
      "node_modules/@parleyhq/client": {
        version: own!.version,
        resolved: tarball,
        dependencies: own!.dependencies,
      },
      // The project has the same versions as the package, so npm finds them in its cache.
      ...Object.fromEntries(Object.entries(others).filter(([, { dev }]) => !dev)),
    },
  };
  await writeFile(join(made, "package-lock.json"), JSON.stringify(lock));
  await copyFile(join(folder, ".npmrc"), join(made, ".npmrc"));
  await run(t, "npm", "ci", `--prefix=${made}`, "--prefer-offline", "--ignore-scripts", "--loglevel=error");
  return made;
}

const use = `
class Echo extends Agent {
  override async *respond({ messages }: RespondRequest): AsyncGenerator<Piece> {
    yield messages.at(-1)?.content ?? "";
  }
}
const client = new Client("127.0.0.1:1");
const role: Role = Role.ROLE_USER;
const send = (): Promise<AppendMessagesResponse> => client.appendMessages({ messages: [{ role }] });
const code: Code = new ParleyError("NOT_FOUND", "nothing").code;
console.log(typeof send, code, role, typeof serve, new Echo() instanceof Agent, Metadata({ a: "b" }).get("a"));
client.close();
`;
const names = `Agent, type AppendMessagesResponse, Client, type Code, Metadata, ParleyError, type Piece,
  type RespondRequest, Role, serve`;
/** A program of a web page: it has the types of the DOM and none of Node. */
const page = `import { Client, Metadata, ParleyError, Role, type AppendMessagesResponse, type Code } from "@parleyhq/client/web";
const client = new Client(location.origin, { token: () => "t", fetch });
const send = (value: Uint8Array): Promise<AppendMessagesResponse> =>
  client.appendMessages(
    { messages: [{ role: Role.ROLE_USER, native: { type: "t", value } }] },
    { metadata: Metadata({ traceparent: "t" }), signal: AbortSignal.timeout(1000) },
  );
async function show(element: HTMLElement): Promise<void> {
  for await (const { event } of client.chat({ content: "hi" })) {
    element.append(event?.$case === "textDelta" ? event.value.text : "");
  }
}
const code: Code = new ParleyError("NOT_FOUND", "nothing").code;
console.log(typeof send, typeof show, code);
`;
const output = "function NOT_FOUND ROLE_USER function true b";

test("another project installs the package and imports it in each way", options, async (t) => {
  const made = await project(t);
  const node = (...args: string[]) => run(t, process.execPath, ...args);

  await t.test("both ways give the same module", async () => {
    const program = join(made, "both.mjs");
    await writeFile(
      program,
      `import { createRequire } from "node:module";
      import * as imported from "@parleyhq/client";
      const required = createRequire(import.meta.url)("@parleyhq/client");
      const names = Object.keys(required);
      console.log(names.length > 100, names.filter((name) => imported[name] !== required[name]).length);`,
    );
    assert.equal(await node(program), "true 0");
  });

  await t.test("the web client is imported and required", async () => {
    const code = 'console.log(typeof Client, new Client("http://127.0.0.1").close())';
    await writeFile(join(made, "web.mjs"), `import { Client } from "@parleyhq/client/web"; ${code}`);
    await writeFile(join(made, "web.cjs"), `const { Client } = require("@parleyhq/client/web"); ${code}`);
    for (const file of ["web.mjs", "web.cjs"]) {
      assert.equal(await node(join(made, file)), "function undefined");
    }
  });

  for (const [module, moduleResolution, files] of [
    ["node16", "node16", ["esm.mts", "cjs.cts", "required.cts"]],
    ["nodenext", "nodenext", ["esm.mts", "cjs.cts", "required.cts"]],
    ["esnext", "bundler", ["esm.mts"]],
    ["commonjs", "bundler", ["cjs.cts", "required.cts"]],
  ] as const) {
    await t.test(`TypeScript: module ${module}, resolution ${moduleResolution}`, async () => {
      const src = join(made, `${module}-${moduleResolution}`);
      await mkdir(src);
      await writeFile(join(src, "esm.mts"), `import { ${names} } from "@parleyhq/client";\n${use}`);
      await writeFile(join(src, "cjs.cts"), `import { ${names} } from "@parleyhq/client";\n${use}`);
      await writeFile(
        join(src, "required.cts"),
        `import parley = require("@parleyhq/client");\nconst client: parley.Client = new parley.Client("127.0.0.1:1");\n` +
          `client.close();\nconsole.log("${output}");`,
      );
      await writeFile(join(src, "page.mts"), page);
      const web = {
        module,
        moduleResolution,
        target: "es2022",
        lib: ["es2022", "dom"],
        types: [],
        strict: true,
      };
      await writeFile(
        join(src, "tsconfig.web.json"),
        JSON.stringify({ compilerOptions: { ...web, noEmit: true }, files: ["page.mts"] }),
      );
      await run(t, join(folder, "node_modules", ".bin", "tsc"), "--project", join(src, "tsconfig.web.json"));
      const compilerOptions = { module, moduleResolution, target: "es2022", lib: ["es2023"], strict: true };
      await writeFile(join(src, "tsconfig.json"), JSON.stringify({ compilerOptions, files }));
      await run(t, join(folder, "node_modules", ".bin", "tsc"), "--project", src);
      for (const file of files) {
        assert.equal(await node(join(src, file.replace(/ts$/, "js"))), output);
      }
    });
  }
});
