import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { type TestContext, test } from "node:test";

import { browserOptions, startPage } from "./browser.js";
import { connect, options, startParleyd } from "./parleyd.js";
import { type AnyClient, runStep, type Step } from "./table.js";
import { connectWeb, startWebParleyd } from "./web.js";

const table = new URL("../../../testdata/calls.json", import.meta.url);

async function readSteps(): Promise<Step[]> {
  return (JSON.parse(await readFile(table, "utf8")) as { steps: Step[] }).steps;
}

/** Executes the steps in order. */
async function runTable(t: TestContext, client: AnyClient): Promise<void> {
  const saved: Record<string, string> = {};
  for (const step of await readSteps()) {
    await t.test(step.name, () => runStep(client, step, saved));
  }
}

test("the calls of the table", options, async (t) => {
  await runTable(t, connect(t, (await startParleyd(t)).address));
});

test("the calls of the table over HTTP", options, async (t) => {
  await runTable(t, connectWeb(t, (await startWebParleyd(t)).url));
});

test("the calls of the table in a browser", browserOptions, async (t) => {
  const page = await startPage(t);
  const { url } = await startWebParleyd(t, { more: { http_allowed_origins: page.origin } });
  const steps = await readSteps();
  assert.ok(steps.length > 50);
  assert.deepEqual(await page.run("runTable", { url, steps }), {});
});
