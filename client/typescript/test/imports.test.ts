import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire, isBuiltin } from "node:module";
import { dirname, join } from "node:path";
import { test } from "node:test";

import { folder } from "./process.js";

/**
 * Returns the packages that a module of this package imports, directly or through other modules of it. builtins adds
 * the modules of Node.
 */
async function packagesOf(entry: string, builtins = false): Promise<Set<string>> {
  const packages = new Set<string>();
  const seen = new Set<string>();
  const pending = [entry];
  for (let file = pending.pop(); file !== undefined; file = pending.pop()) {
    if (seen.has(file)) {
      continue;
    }
    seen.add(file);
    const code = await readFile(file, "utf8");
    for (const [, name] of code.matchAll(/(?:\bfrom|\brequire\(|\bimport\(?)\s*"([^"]+)"/g)) {
      if (name!.startsWith(".")) {
        pending.push(createRequire(file).resolve(join(dirname(file), name!)));
      } else if (builtins || !isBuiltin(name!)) {
        packages.add(name!);
      }
    }
  }
  return packages;
}

test("the core imports only its dependencies, and no framework", async () => {
  const { dependencies } = JSON.parse(await readFile(join(folder, "package.json"), "utf8")) as {
    dependencies: { [name: string]: string };
  };
  for (const entry of ["dist/src/index.js", "dist/esm/index.js"]) {
    const packages = [...(await packagesOf(join(folder, entry)))].map((name) =>
      name
        .split("/")
        .slice(0, name.startsWith("@") ? 2 : 1)
        .join("/"),
    );
    assert.ok(packages.includes("nice-grpc"), packages.join());
    assert.deepEqual(
      packages.filter((name) => !(name in dependencies)),
      [],
    );
  }
});

/** What the ids of conversations need. It imports no package itself. */
const hashes = ["@noble/hashes/sha2", "@noble/hashes/utils"];

test("the adapters import their frameworks and the core by its name", async () => {
  for (const [adapter, frameworks] of [
    ["langgraph", ["@langchain/langgraph-checkpoint"]],
    ["openai-agents", ["@openai/agents-core"]],
  ] as const) {
    for (const format of ["src", "esm"]) {
      const packages = await packagesOf(join(folder, "dist", format, "adapters", `${adapter}.js`));
      assert.deepEqual([...packages].sort(), [...frameworks, ...hashes, "@parleyhq/client"].sort());
    }
  }
});

test("the web client imports neither a package nor a module of Node", async () => {
  for (const format of ["src", "esm"]) {
    assert.deepEqual([...(await packagesOf(join(folder, "dist", format, "web", "index.js"), true))], []);
  }
});

test("the transport for the AI SDK imports no module of Node, and no package but hashes", async () => {
  for (const format of ["src", "esm"]) {
    const entry = join(folder, "dist", format, "adapters", "ai-sdk.js");
    assert.deepEqual([...(await packagesOf(entry, true))], hashes);
  }
});

test("the agent of AG-UI imports no module of Node, and only the client of AG-UI", async () => {
  for (const format of ["src", "esm"]) {
    const entry = join(folder, "dist", format, "adapters", "ag-ui.js");
    assert.deepEqual([...(await packagesOf(entry, true))], ["@ag-ui/client"]);
  }
});
