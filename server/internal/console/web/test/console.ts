import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { type Client, Role } from "@parleyhq/client";
import { type BrowserContextOptions, chromium, type Page, type Request } from "playwright-core";
import {
  connect,
  options as parleydOptions,
  type Settings,
  startParleyd,
} from "../../../../../client/typescript/test/parleyd.js";
import type { Program } from "../../../../../client/typescript/test/process.js";

const browserPath = [process.env["PARLEY_CHROMIUM"], "chromium", "chromium-headless-shell", "google-chrome"]
  .map((name) => {
    try {
      return (
        name && execFileSync("/bin/sh", ["-c", 'command -v "$1"', "sh", name], { encoding: "utf8" }).trim()
      );
    } catch {
      return undefined;
    }
  })
  .find((path) => path);

/** The options of tests that need parleyd and a browser. In CI, a browser that is missing is a failure. */
export const options = {
  ...parleydOptions,
  timeout: 120_000,
  skip:
    parleydOptions.skip ||
    (browserPath || process.env["CI"] === "true" ? false : "no chromium or google-chrome is on the PATH"),
};

/** A server with its console. */
export interface Console {
  readonly server: Program;
  readonly url: string;
  readonly client: Client;
  /** The errors of pages so far. The test fails if there are any at its end. */
  readonly faults: string[];
  /** Opens a place of the console, such as "#/turns", in a browser. */
  open(place?: string, context?: BrowserContextOptions): Promise<Page>;
}

/** Starts a server on free ports, and a browser for its console. Both end with the test. */
export async function startConsole(t: TestContext, settings: Settings = {}): Promise<Console> {
  const server = await startParleyd(t, {
    ...settings,
    more: { http_address: "127.0.0.1:0", ...settings.more },
  });
  const url = `http://${await server.find(/"msg":"serving http".*"address":"([^"]+)"/)}`;
  const client = connect(t, server.address);
  let shots = 0;
  const faults: string[] = [];
  t.after(() => assert.deepEqual(faults, [], "errors of the page"));
  return {
    faults,
    server,
    url,
    client,
    async open(place = "", context = {}) {
      const browser = await chromium.launch({
        ...(browserPath ? { executablePath: browserPath } : {}),
        args: ["--disable-dev-shm-usage", ...(process.getuid?.() === 0 ? ["--no-sandbox"] : [])],
      });
      const page = await browser.newPage({ viewport: { width: 1200, height: 800 }, ...context });
      page.setDefaultTimeout(60_000);
      const requests: string[] = [];
      const running = new Set<Request>();
      calls.set(page, running);
      page.on("requestfinished", (request) => running.delete(request));
      page.on("requestfailed", (request) => running.delete(request));
      page.on("pageerror", (error) => faults.push(String(error.stack ?? error)));
      page.on("console", (message) => {
        // The browser reports requests that fail, also those that a test lets fail.
        if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) {
          faults.push(message.text());
        }
      });
      page.on("request", (request) => {
        requests.push(request.url());
        if (request.headers()["accept"] !== "text/event-stream") {
          running.add(request);
        }
      });
      t.after(async () => {
        if (!page.isClosed()) {
          const name = `${t.name.replace(/\W+/g, "-")}${shots++ || ""}.png`;
          await page.screenshot({ path: join("screenshots", name) }).catch(() => {});
        }
        await browser.close();
        const others = requests.filter(
          (request) => !request.startsWith(`${url}/`) && !request.startsWith("blob:"),
        );
        assert.deepEqual(others, [], "requests to other hosts");
      });
      await page.goto(`${url}/${place}`);
      return page;
    },
  };
}

/** The requests of each page that have no complete reply yet, without streams. */
const calls = new WeakMap<Page, Set<Request>>();

/** Waits until a page has read what it shows. */
export async function settle(page: Page): Promise<void> {
  const running = calls.get(page)!;
  // The next call of a view begins when the previous one has ended, within two frames.
  for (let idle = 0; idle < 3; idle++) {
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 20))));
    if (running.size > 0) {
      idle = -1;
    }
  }
}

/** Appends messages by turns of user and assistant. The first one creates the conversation. */
export async function converse(client: Client, conversationId: string, ...texts: string[]): Promise<void> {
  await client.appendMessages({
    conversationId,
    messages: texts.map((content, index) => ({
      role: index % 2 === 0 ? Role.ROLE_USER : Role.ROLE_ASSISTANT,
      content,
    })),
  });
}

/** Returns a port that is free now. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, "close");
  return port;
}
