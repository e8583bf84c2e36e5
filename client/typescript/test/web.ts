import type { TestContext } from "node:test";

import { Client, type ClientOptions } from "@parleyhq/client/web";

import { type Settings, startParleyd } from "./parleyd.js";
import type { Program } from "./process.js";

/** Starts parleyd with an HTTP address. */
export async function startWebParleyd(
  t: TestContext,
  { more = {}, ...settings }: Settings = {},
): Promise<Program & { address: string; url: string; host: string }> {
  const program = await startParleyd(t, { ...settings, more: { http_address: "127.0.0.1:0", ...more } });
  const host = await program.find(/"msg":"serving http".*"address":"([^"]+)"/);
  return { ...program, host, url: `http://${host}` };
}

/** Returns a web client of this server. The end of the test closes it. */
export function connectWeb(t: TestContext, url: string, options: ClientOptions = {}): Client {
  const client = new Client(url, options);
  t.after(() => client.close());
  return client;
}
