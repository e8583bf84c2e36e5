import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { EventEmitter, once } from "node:events";
import { copyFile, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";

import { build } from "vite";

import { start } from "../../dist/test/process.js";

const names = [process.env["PARLEY_CHROMIUM"] || "chromium", "chromium-headless-shell", "google-chrome"];
const browser = names.find((name) => {
  try {
    execFileSync(name, ["--version"], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
});
/** In CI, a browser that is missing is a failure. */
const isSkipped = !browser && process.env["CI"] !== "true";
export const options = { timeout: 300_000, skip: isSkipped && `none of ${names.join(", ")} is on the PATH` };

/** What a page shows. */
export interface State {
  /** When the page was loaded. */
  readonly loaded: number;
  readonly status: string;
  readonly error?: string;
  readonly texts: string[];
  readonly ids: string[];
}

/** A page in a browser, which runs commands of the test and reports what it shows. */
export class Page extends EventEmitter {
  readonly #commands: [name: string, text?: unknown][] = [];
  origin = "";
  #code = "";
  /** Is rejected when the browser ends. */
  #closed: Promise<never> | undefined;
  /** The states since the page was loaded that are not checked yet. */
  #states: State[] = [];
  /** When the page was loaded, and the page before, whose last reports may arrive late. */
  #loaded: number | undefined;
  #unloaded: number | undefined;

  /** Serves the page. */
  async serve(t: TestContext): Promise<void> {
    const server = createServer(async (request, response) => {
      let body = "";
      for await (const chunk of request) {
        body += chunk;
      }
      if (request.url === "/report") {
        const state: State = JSON.parse(body);
        if (state.loaded !== this.#unloaded) {
          this.#loaded = state.loaded;
          this.#states.push(state);
          this.emit("state");
        }
        response.end();
      } else if (request.url === "/command") {
        while (this.#commands.length === 0) {
          await once(this, "command");
          if (response.destroyed) {
            return; // The page was reloaded.
          }
        }
        response.end(JSON.stringify(this.#commands.shift()));
      } else if (request.url === "/page.js") {
        response.setHeader("content-type", "text/javascript");
        response.end(this.#code);
      } else if (request.url === "/") {
        this.#unloaded = this.#loaded;
        this.#states = [];
        this.emit("load");
        response.setHeader("content-type", "text/html");
        response.end('<!DOCTYPE html><title>chat</title><script type="module" src="/page.js"></script>');
      } else {
        response.writeHead(404).end(); // The icon of the page.
      }
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    t.after(() => {
      server.closeAllConnections();
      server.close();
    });
    this.origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  }

  /** Bundles the page NAME-page.mjs with the snippet NAME.mjs of the documentation for a server, and opens it. */
  async open(t: TestContext, name: string, url: string): Promise<void> {
    const folder = await mkdtemp(fileURLToPath(new URL("page-", import.meta.url)));
    const source = (name: string) => fileURLToPath(new URL(`../${name}`, import.meta.url));
    const snippet = await readFile(source(`snippets/${name}.mjs`), "utf8");
    const served = snippet.replace("http://127.0.0.1:8080", url).replace("/ag-ui/echo", "/ag-ui/own");
    await writeFile(join(folder, "conversation.mjs"), served);
    await copyFile(source(`test/${name}-page.mjs`), join(folder, "page.mjs"));
    const built = await build({
      root: folder,
      configFile: false,
      logLevel: "error",
      // Only then does React run effects twice, as it does while a page is developed.
      mode: "development",
      define: { "process.env.NODE_ENV": '"development"' },
      build: {
        write: false,
        minify: false,
        target: "esnext",
        rollupOptions: { input: join(folder, "page.mjs") },
      },
    });
    const [output] = [built].flat();
    assert.ok(output && "output" in output);
    this.#code = output.output[0].code;
    const data = await mkdtemp(join(tmpdir(), "parley-"));
    const flags = [
      "--headless",
      "--disable-gpu",
      "--disable-dev-shm-usage",
      "--no-first-run",
      "--no-proxy-server",
    ];
    const more = ["--disable-background-networking", "--disable-component-update", "--disable-sync"];
    const sandbox = process.getuid?.() === 0 ? ["--no-sandbox"] : []; // It does not start as root.
    const args = [...flags, ...more, ...sandbox, "--remote-debugging-port=0", `--user-data-dir=${data}`];
    const { ended, lines } = start(t, browser ?? names[0]!, ...args, this.origin);
    this.#closed = ended.then((code) => {
      throw new Error(`the browser ended with ${code}:\n${lines.join("\n")}`);
    });
    this.#closed.catch(() => {}); // The end of the test closes it.
    for (const each of [folder, data]) {
      t.after(() => rm(each, { recursive: true, force: true, maxRetries: 3 }));
    }
  }

  run(command: string, text?: unknown): void {
    this.#commands.push(text ? [command, text] : [command]);
    this.emit("command");
  }

  async reload(): Promise<void> {
    this.run("reload");
    await Promise.race([once(this, "load"), this.#closed!]);
  }

  /** Waits for the next state with these texts. The page must have had no error. */
  async shows(status: string, ...texts: string[]): Promise<State> {
    for (;;) {
      for (let state = this.#states.shift(); state; state = this.#states.shift()) {
        assert.equal(state.error, undefined);
        if (state.status === status && texts.join("\n") === state.texts.join("\n")) {
          return state;
        }
      }
      await Promise.race([once(this, "state"), this.#closed!]);
    }
  }
}
