import assert from "node:assert/strict";
import { test } from "node:test";

import { conversationId, recordKey } from "@parleyhq/client";

import { connect, options, startParleyd } from "./parleyd.js";

const long = "é".repeat(200);

// The same cases as in client/python/tests/test_adapter_ids.py.
const cases: [ids: string[], want: string][] = [
  [["user@example.com"], "user@example.com"],
  [["app/1"], "app/1"],
  [["app/1", "anna", "s 1"], "app%2F1/anna/s 1"],
  [["100%"], "100%25"],
  [[" a "], "%20a%20"],
  [["a\nb\u2028c\x00"], "a%0Ab%E2%80%A8c%00"],
  [["."], "%2E"],
  [[".."], "%2E%2E"],
  [["..", ".."], "../.."],
  [["", "a", ""], "/a/"],
  [["\u{1f469}\u200d\u{1f52c}"], "\u{1f469}\u200d\u{1f52c}"],
  [
    [`a~${"0".repeat(64)}`],
    `a~${"0".repeat(64)}~64040922f8ccc409960b29d33028a2a1d332ac7a602dc5c1e7c16b7aa31eaae2`,
  ],
  [[long], `${"é".repeat(95)}~df20b2aa6262e99e133aa7f3614be707d35c4155d17e2aa7cbb49da555a454c3`],
];

test("each id maps to the one that is documented", () => {
  for (const [ids, want] of cases) {
    assert.equal(conversationId(...ids), want);
  }
});

test("the server accepts the ids", options, async (t) => {
  const client = connect(t, (await startParleyd(t)).address);
  for (const [ids] of cases) {
    const id = conversationId(...ids);
    await client.createConversation({ conversation: { id } });
    assert.equal((await client.getConversation({ conversationId: id })).conversation?.id, id);
  }
});

test("different ids stay different", () => {
  const ids = [
    ["a", "b", "c"],
    ["a/b", "c"],
    ["a", "b/c"],
    ["a%2Fb", "c"],
    ["a", "b", "c", ""],
    ["", "a", "b", "c"],
    ["a ", "b", "c"],
    ["a%20", "b", "c"],
    [`${long}a`, "b"],
    [`${long}b`, "b"],
    [conversationId(`${long}b`, "b")],
    [conversationId(conversationId(`${long}b`, "b"))],
  ];
  assert.equal(new Set(ids.map((of) => conversationId(...of))).size, ids.length);
});

test("ids that are empty or not Unicode are refused", () => {
  for (const [ids, message] of [
    [[], /is empty/],
    [[""], /is empty/],
    [["", ""], /is empty/],
    [["\ud800"], /is not Unicode/],
  ] as const) {
    assert.throws(() => conversationId(...ids), { name: "RangeError", message });
  }
});

test("the keys of paths with the same start have the same start, and a long one is refused", () => {
  assert.equal(recordKey("state", "a/b", "c%"), "state/a%2Fb/c%25");
  assert.throws(() => recordKey("k".repeat(513)), { name: "RangeError", message: /512 bytes/ });
});
