// Runs the tests: `node test.js [PATTERN]`. They are bundled first, because they use the servers and agents of the tests
// of the client for TypeScript.
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "node_modules/.tests");
rmSync(out, { recursive: true, force: true });
rmSync(join(here, "screenshots"), { recursive: true, force: true });
mkdirSync(join(here, "screenshots"));
const tests = readdirSync(join(here, "test")).filter((file) => file.endsWith(".test.ts"));
await build({
  absWorkingDir: here,
  entryPoints: tests.map((file) => join("test", file)),
  outdir: out,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  platform: "node",
  format: "esm",
  target: "node18",
  external: ["playwright-core", "axe-core"],
  // Packages of CommonJS call require.
  banner: {
    js: 'import { createRequire as requireOf } from "node:module"; const require = requireOf(import.meta.url);',
  },
  logLevel: "warning",
});
const pattern = process.argv[2] ? ["--test-name-pattern", process.argv[2]] : [];
const files = tests.map((file) => join(out, file.replace(/\.ts$/, ".mjs")));
const { status } = spawnSync(process.execPath, ["--test", "--test-reporter=spec", ...pattern, ...files], {
  stdio: "inherit",
});
process.exit(status ?? 1);
