import assert from "node:assert/strict";
import { test } from "node:test";

import {
  AdminServiceDefinition,
  Client,
  ConversationServiceDefinition,
  InteractionLogServiceDefinition,
  RecordServiceDefinition,
} from "@parleyhq/client";

import { start } from "./process.js";

test("the client has every call", () => {
  for (const { methods } of [
    ConversationServiceDefinition,
    InteractionLogServiceDefinition,
    AdminServiceDefinition,
    RecordServiceDefinition,
  ]) {
    for (const name of Object.keys(methods)) {
      const method = name === "appendStream" ? "appender" : name;
      assert.equal(typeof Client.prototype[method as keyof Client], "function", method);
    }
  }
});

test("the package contains only the files that its users need", { timeout: 60_000 }, async (t) => {
  const pack = start(t, "npm", "pack", "--dry-run", "--json", "--ignore-scripts", "--loglevel=error");
  assert.equal(await pack.ended, 0, pack.lines.join("\n"));
  const json = pack.lines.slice(pack.lines.findIndex((line) => /^[[{]/.test(line))).join("\n");
  const [{ files }] = Object.values(JSON.parse(json)) as [{ files: { path: string }[] }];
  const paths = files.map(({ path }) => path);
  for (const path of [
    "LICENSE",
    "README.md",
    "package.json",
    "dist/src/package.json",
    "dist/src/index.js",
    "dist/src/index.d.ts",
    "dist/src/web/index.js",
    "dist/src/adapters/ag-ui.js",
    "dist/src/adapters/ai-sdk.js",
    "dist/src/adapters/langgraph.js",
    "dist/src/adapters/openai-agents.js",
    "dist/esm/package.json",
    "dist/esm/index.js",
    "dist/esm/web/index.js",
    "dist/esm/web/index.d.ts",
    "dist/esm/gen/index.parley.v1.d.ts",
    "dist/esm/adapters/ag-ui.d.ts",
    "dist/esm/adapters/ai-sdk.d.ts",
    "dist/esm/adapters/langgraph.d.ts",
    "dist/esm/adapters/openai-agents.d.ts",
  ]) {
    assert.ok(paths.includes(path), `${path} is missing`);
  }
  const rest = paths.filter(
    (path) =>
      !/^(LICENSE|README\.md|(dist\/(src|esm)\/)?package\.json|dist\/(src|esm)\/.*\.(js|d\.ts))$/.test(path),
  );
  assert.deepEqual(rest, []);
  const generated = paths.filter((path) => /^dist\/esm\/gen\/.*\.js$/.test(path));
  assert.deepEqual(generated.sort(), ["dist/esm/gen/enums.js", "dist/esm/gen/schema.js"]);
});
