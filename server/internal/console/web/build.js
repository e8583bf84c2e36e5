// Builds the files of the console: `node build.js [FOLDER]` replaces FOLDER, by default ../dist. Everything that the
// page needs is in them: it requests nothing from other hosts.
import { cpSync, mkdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "../dist");
rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { console: "src/main.ts", style: "src/style.css" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "linked",
  logLevel: "warning",
});
for (const file of ["index.html", "icon.svg"]) {
  cpSync(join(here, "src", file), join(out, file));
}
// The license wants its text with every copy, and the file of the package does not mark it as such.
cpSync(join(here, "node_modules/uplot/LICENSE"), join(out, "uplot-license.txt"));
