import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { Client } from "@parleyhq/client";
import { createToken, tempFolder } from "../../../../../client/typescript/test/parleyd.js";
import { converse, options, startConsole } from "./console.js";

test("the page signs in, and shows what the role may do", options, async (t) => {
  const file = join(await tempFolder(t), "tokens.yaml");
  const writer = await createToken(t, file, "--role=writer", "--name=ann", "--tenant=red");
  const reader = await createToken(t, file, "--role=reader", "--name=bob", "--tenant=red");
  const { server, open } = await startConsole(t, { more: { auth_token_file: file } });
  const address = await server.find(/"msg":"serving grpc".*"address":"([^"]+)"/);
  const client = new Client(address, { token: writer });
  t.after(() => client.close());
  await converse(client, "c", "hello");

  const page = await open("#/conversations/c");
  await page.getByLabel("Token", { exact: true }).fill("parley_wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("the server does not accept this token").waitFor();
  await page.getByLabel("Token", { exact: true }).fill(reader);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.locator('[data-sequence="1"]').waitFor();
  assert.match(await page.locator(".caller").innerText(), /bob · reader · red/);
  assert.deepEqual(await page.locator(".actions button").allInnerTexts(), ["Export"]);
  assert.equal(await page.locator("textarea").count(), 0);
  const kept = await page.evaluate(() =>
    JSON.stringify([localStorage, sessionStorage, document.cookie, location.href]),
  );
  assert.ok(!kept.includes(reader), "the token is in the memory of the page only");

  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Token", { exact: true }).fill(writer);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("button", { name: "Delete…" }).waitFor();
  await page.reload();
  await page.getByLabel("Token", { exact: true }).waitFor();
});

test("a caller for all tenants names one, and keeps the token in the form", options, async (t) => {
  const file = join(await tempFolder(t), "tokens.yaml");
  const token = await createToken(t, file, "--role=reader", "--name=ann", "--tenant=*");
  const { open } = await startConsole(t, { more: { auth_token_file: file } });
  const page = await open();
  await page.getByLabel("Token", { exact: true }).fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("this credential is for all tenants; name the tenant to show").waitFor();
  await page.getByLabel("Tenant").fill("red");
  await page.keyboard.press("Enter");
  await page.getByText("0 conversations", { exact: true }).waitFor();
  assert.match(await page.locator(".caller").innerText(), /ann · reader · red/);
  await page.getByRole("link", { name: "Log" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Interaction log" }).waitFor();
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), "Log");
});

test("a read-only console has no button that changes anything", options, async (t) => {
  const { client, open } = await startConsole(t, { more: { console_read_only: true } });
  await converse(client, "c", "hello");
  const page = await open("#/conversations/c");
  await page.locator('[data-sequence="1"]').waitFor();
  await page.getByText("read only").waitFor();
  assert.deepEqual(await page.locator(".detail button").allInnerTexts(), ["Export"]);
});

test("there is no console if it is off", options, async (t) => {
  const { url } = await startConsole(t, { more: { console: false } });
  for (const path of ["/", "/console/console.js", "/console/session"]) {
    assert.equal((await fetch(url + path)).status, 404, path);
  }
});
