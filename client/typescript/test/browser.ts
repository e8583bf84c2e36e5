import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join, normalize } from "node:path";
import type { TestContext } from "node:test";

import { options, tempFolder } from "./parleyd.js";
import { folder, start } from "./process.js";

const browser = [process.env["PARLEY_CHROMIUM"], "chromium", "chromium-headless-shell", "google-chrome"].find(
  (name) => {
    try {
      execFileSync(name!, ["--version"], { stdio: "ignore" });
      return true;
    } catch {
      return false;
    }
  },
);
const missing =
  "no chromium, chromium-headless-shell or google-chrome is on the PATH, and PARLEY_CHROMIUM names none";

/** The options of tests that need parleyd and a browser. In CI, a browser that is missing is a failure. */
export const browserOptions = {
  ...options,
  timeout: 120_000,
  skip: options.skip || (browser || process.env["CI"] === "true" ? false : missing),
};

/** A web page of a test. */
export interface Page {
  /** The origin that the server must allow. */
  readonly origin: string;
  /**
   * Opens the page in a browser. It runs a function of test/page.ts with this argument. Calls onProgress when that
   * function reports progress. Returns the result.
   */
  run(name: string, argument: object, onProgress?: () => void): Promise<unknown>;
}

/** Serves a page that imports the package as browsers do, without a bundler, until the end of the test. */
export async function startPage(t: TestContext): Promise<Page> {
  let call = { name: "", argument: {} };
  let progress = () => {};
  let report: (result: { value?: unknown; error?: string }) => void = () => {};
  const server = createServer(async (request, response) => {
    const { pathname } = new URL(request.url!, "http://page");
    if (pathname === "/progress") {
      progress();
      response.end();
    } else if (request.method === "POST") {
      let body = "";
      for await (const chunk of request) {
        body += chunk;
      }
      report(JSON.parse(body));
      response.end();
    } else if (pathname === "/") {
      response.setHeader("content-type", "text/html; charset=utf-8");
      response.end(html(call));
    } else {
      try {
        const code = await readFile(join(folder, "dist", normalize(pathname)));
        response.setHeader("content-type", "text/javascript");
        response.end(code);
      } catch {
        response.statusCode = 404;
        response.end();
      }
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    origin,
    async run(name, argument, onProgress = () => {}) {
      call = { name, argument };
      progress = onProgress;
      const reported = new Promise<{ value?: unknown; error?: string }>((resolve) => {
        report = resolve;
      });
      const program = start(
        t,
        browser ?? missing,
        "--headless",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-breakpad",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-proxy-server",
        "--remote-debugging-port=0", // Without it, some builds of Chromium exit at once.
        `--user-data-dir=${await tempFolder(t)}`,
        ...(process.getuid?.() === 0 ? ["--no-sandbox"] : []), // Its sandbox does not start as root.
        origin,
      );
      const ended = program.ended.then((code) => {
        throw new Error(`the browser ended with ${code}:\n${program.lines.join("\n")}`);
      });
      const { value, error } = await Promise.race([reported, ended]);
      program.kill("SIGTERM");
      await program.ended;
      if (error !== undefined) {
        throw new Error(error);
      }
      return value;
    },
  };
}

function html(call: { name: string; argument: object }): string {
  return `<!DOCTYPE html><title>test</title>
<script type="importmap">{"imports": {"@parleyhq/client/web": "/esm/web/index.js"}}</script>
<script type="module">
const report = (result) => fetch("/report", { method: "POST", body: JSON.stringify(result) });
window.onerror = (message) => report({ error: message });
try {
  const page = await import("/test/page.js");
  report({ value: await page[${JSON.stringify(call.name)}](${JSON.stringify(call.argument).replaceAll("<", "\\u003c")}) });
} catch (error) {
  report({ error: error.stack ?? String(error) });
}
</script>`;
}
