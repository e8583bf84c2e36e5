import assert from "node:assert/strict";
import { test } from "node:test";

import { type BaseStore, InMemoryStore, InvalidNamespaceError } from "@langchain/langgraph-checkpoint";
import { ParleyStore } from "@parleyhq/client/langgraph";

import { Parleyd } from "./server.js";

const options = { timeout: 120_000 };

function nameOf({ namespace, key }: { namespace: string[]; key: string }): string {
  return JSON.stringify([namespace, key]);
}

/** Returns a result without times and scores, or the kind of its error. Searches are in no certain order. */
async function result(promise: Promise<unknown>): Promise<unknown> {
  try {
    const got = JSON.parse(
      JSON.stringify((await promise) ?? null, (name, value) =>
        name === "createdAt" || name === "updatedAt" ? undefined : value,
      ),
    );
    return Array.isArray(got) && got[0]?.key !== undefined
      ? got.sort((a, b) => (nameOf(a) < nameOf(b) ? -1 : 1))
      : got;
  } catch (error) {
    return error instanceof InvalidNamespaceError ? "InvalidNamespaceError" : error;
  }
}

test("it does what the in-memory store does", options, async (t) => {
  const server = await Parleyd.start(t);
  const [ours, own] = [new ParleyStore({ server: server.client }), new InMemoryStore()];
  const long = "x".repeat(150);
  const values = [
    { n: 1, color: "red", nested: { a: [1, null, "é"] } },
    { n: 2.5, color: "blue", ok: true },
    { n: 10, color: null },
    { text: "no number", ".": "%", "a/b": "~" },
  ];
  const steps: [name: string, step: (store: BaseStore) => Promise<unknown>][] = [
    ["get of nothing", (s) => s.get(["a"], "k")],
    ["search of nothing", (s) => s.search([])],
    ["list of nothing", (s) => s.listNamespaces()],
    ["delete of nothing", (s) => s.delete(["a"], "k")],
    ...[
      ["a"],
      ["a", "b"],
      ["a", "b", "c"],
      ["a%2Fb"],
      ["a/b", "~x", " y "],
      ["ab"],
      [long, "z"],
      ["é", "\u{1f469}"],
    ].map((namespace): [string, (s: BaseStore) => Promise<unknown>] => [
      `puts in ${namespace}`,
      async (s) => {
        for (const [i, value] of values.entries()) {
          await s.put(namespace, ["k", "user@example.com", "a/b", `${long}2`][i]!, value);
        }
      },
    ]),
    ["get", (s) => s.get(["a"], "a/b")],
    ["get of a long key", (s) => s.get([long, "z"], `${long}2`)],
    ["get of an odd namespace", (s) => s.get(["a/b", "~x", " y "], "user@example.com")],
    ["search all", (s) => s.search([], { limit: 100 })],
    ["search a", (s) => s.search(["a"], { limit: 100 })],
    ["search a, b", (s) => s.search(["a", "b"], { limit: 100, query: "ignored" })],
    ["search a/b", (s) => s.search(["a/b"], { limit: 100 })],
    ["search long", (s) => s.search([long], { limit: 100 })],
    ["number of a page", async (s) => (await s.search([])).length],
    ["number of the rest", async (s) => (await s.search([], { limit: 100, offset: 30 })).length],
    ...[
      { color: "red" },
      { color: null },
      { n: { $gt: 1 } },
      { n: { $gte: 1, $lt: 10 } },
      { n: { $lte: 2.5 }, ok: true },
      { color: { $ne: "red" } },
      { color: { $in: ["red", "blue"] } },
      { color: { $nin: ["red"] } },
      { n: { $eq: 10 } },
      { n: {} },
      { missing: 1 },
      {},
    ].map((filter): [string, (s: BaseStore) => Promise<unknown>] => [
      `filter ${JSON.stringify(filter)}`,
      (s) => s.search(["a"], { filter, limit: 100 }),
    ]),
    ["namespaces", (s) => s.listNamespaces()],
    ["prefix", (s) => s.listNamespaces({ prefix: ["a"] })],
    ["prefix with any", (s) => s.listNamespaces({ prefix: ["*", "b"] })],
    ["suffix", (s) => s.listNamespaces({ suffix: ["b"] })],
    ["depth", (s) => s.listNamespaces({ maxDepth: 1 })],
    ["page", (s) => s.listNamespaces({ limit: 2, offset: 1 })],
    ["delete", (s) => s.delete(["a"], "k")],
    ["get of the deleted", (s) => s.get(["a"], "k")],
    ["put again", (s) => s.put(["a"], "k", { n: 7 })],
    ["get again", (s) => s.get(["a"], "k")],
    [
      "batch",
      (s) =>
        s.batch([
          { namespace: ["a"], key: "k", value: { n: 8 } },
          { namespace: ["a"], key: "a/b" },
          { namespace: ["a"], key: "k", value: { n: 9 } },
          { namespacePrefix: ["a", "b", "c"], limit: 1, offset: 4 },
          { namespace: ["a"], key: "new", value: { n: 1 } },
          { namespace: ["a", "b"], key: "k", value: null },
          { matchConditions: [{ matchType: "prefix", path: ["a", "b"] }], limit: 10, offset: 0 },
        ]),
    ],
    ["after the batch", (s) => s.search(["a"], { limit: 100 })],
    ["empty namespace", (s) => s.put([], "k", {})],
    ["empty label", (s) => s.put(["a", ""], "k", {})],
    ["period", (s) => s.put(["a.b"], "k", {})],
    ["reserved root", (s) => s.put(["langgraph"], "k", {})],
    ["empty namespace of a batch", (s) => s.batch([{ namespace: [], key: "k" }])],
    ["period in a search", (s) => s.search(["a.b"])],
  ];
  for (const [name, step] of steps) {
    await t.test(name, async () => {
      assert.deepEqual(await result(step(ours)), await result(step(own)));
    });
  }
});

test("1500 items survive a crash, and an update keeps the time of creation", options, async (t) => {
  const server = await Parleyd.start(t);
  const store = new ParleyStore({ server: server.client });
  const puts = Array.from({ length: 1500 }, (_, i) => ({ namespace: ["n"], key: `k${i}`, value: { i } }));
  await store.batch(puts);
  const before = await store.get(["n"], "k3");
  await server.crash();
  await store.put(["n"], "k3", { i: -3 });
  const after = await store.get(["n"], "k3");
  assert.deepEqual([after?.value, after?.createdAt], [{ i: -3 }, before?.createdAt]);
  assert.ok(after!.updatedAt > before!.updatedAt);
  const [newest] = await store.search(["n"], { limit: 1 });
  assert.equal(newest?.key, "k3");
  const all = await store.search(["n"], { limit: 2000 });
  assert.deepEqual(all.map(({ key }) => key).sort(), puts.map(({ key }) => key).sort());
});

test("puts of two processes lose nothing", options, async (t) => {
  const server = await Parleyd.start(t);
  const stores = [1, 2].map(() => new ParleyStore({ server: server.client }));
  await Promise.all(
    Array.from({ length: 40 }, (_, i) => stores[i % 2]!.put(["n"], `k${i % 10}`, { i: Math.floor(i / 10) })),
  );
  assert.equal((await stores[0]!.search(["n"], { limit: 100 })).length, 10);
});

test("items that are too large or no JSON are refused", options, async (t) => {
  const server = await Parleyd.start(t);
  const store = new ParleyStore({ server: server.client });
  await store.put(["n"], "large", { text: "x".repeat((3 << 20) - 100) });
  await assert.rejects(store.put(["n"], "k", { text: "x".repeat(3 << 20) }), RangeError);
  await assert.rejects(store.put(Array(9).fill("x".repeat(80)), "k", {}), RangeError);
  for (const value of [Number.NaN, 1n, new Map()]) {
    await assert.rejects(store.put(["n"], "k", { value }), { code: "INVALID_ARGUMENT" });
  }
  assert.equal(await store.get(["n"], "k"), null);
});
