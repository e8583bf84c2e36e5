// Builds dist: `node build.js`. dist/src is CommonJS, dist/esm the same for the subpaths as ES modules, and dist/test and
// dist/examples are not published.
import { spawnSync } from "node:child_process";
import { cpSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";

// The web client first: the tests use its types. The adapters last: they use those of dist/src.
for (const project of ["tsconfig.web.json", "tsconfig.json", "tsconfig.esm.json"]) {
  const { status } = spawnSync("node_modules/.bin/tsc", ["--project", project], { stdio: "inherit" });
  if (status !== 0) {
    process.exit(status ?? 1);
  }
}
cpSync("src/package.json", "dist/src/package.json");
cpSync("esm", "dist/esm", { recursive: true });
// The web client uses only the types of the code that is generated for gRPC.
const generated = "dist/esm/gen";
for (const file of readdirSync(generated, { recursive: true })) {
  if (file.endsWith(".js") && file !== "schema.js" && file !== "enums.js") {
    rmSync(join(generated, file));
  }
}
