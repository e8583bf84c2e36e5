import assert from "node:assert/strict";
import { test } from "node:test";

import {
  Attachment,
  CreateConversationRequest,
  Message,
  Role,
  StructuredData,
  TurnEvent,
} from "@parleyhq/client";

test("structured data is plain JSON", () => {
  const deep = (levels: number): unknown => (levels === 1 ? [] : { a: deep(levels - 1) });
  const table = [
    null,
    false,
    "",
    0,
    -1.5,
    "ü",
    [],
    {},
    [null, [1, {}]],
    { a: { b: [null, "c"] }, "": 1 },
    deep(16),
  ];
  for (const value of table) {
    const sent = StructuredData.encode(StructuredData.fromPartial({ type: "t", value })).finish();
    assert.deepEqual(StructuredData.decode(sent), { type: "t", value });
  }
  assert.equal(StructuredData.decode(new Uint8Array()).value, undefined);
});

test("64-bit integers are numbers, or errors", () => {
  for (const sizeBytes of [0, 1, 2 ** 32, Number.MAX_SAFE_INTEGER]) {
    const sent = Attachment.encode(Attachment.fromPartial({ uri: "u", sizeBytes })).finish();
    assert.equal(Attachment.decode(sent).sizeBytes, sizeBytes);
  }
  const large = Uint8Array.of(4 << 3, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10); // 2^53
  assert.throws(() => Attachment.decode(large), /MAX_SAFE_INTEGER/);
});

test("timestamps are dates, durations seconds, enums names", () => {
  const request = CreateConversationRequest.fromPartial({
    conversation: { createTime: new Date("2026-02-03T04:05:06.789Z"), retention: { ttl: { seconds: 90 } } },
  });
  const back = CreateConversationRequest.decode(
    CreateConversationRequest.encode(request).finish(),
  ).conversation;
  assert.deepEqual(back?.createTime, new Date("2026-02-03T04:05:06.789Z"));
  assert.deepEqual(back?.retention?.ttl, { seconds: 90, nanos: 0 });

  const message = Message.encode(Message.fromPartial({ role: "ROLE_TOOL" })).finish();
  assert.deepEqual(message, Uint8Array.of(3 << 3, 4));
  assert.equal(Message.decode(message).role, Role.ROLE_TOOL);
});

test("newer fields and enum values are skipped", () => {
  const event = Uint8Array.of(2 << 3, 7, 0xa2, 0x06, 1, 0); // index 7; field 100, one byte
  assert.deepEqual(TurnEvent.decode(event), { turnId: "", index: 7, event: undefined });
  assert.equal(Message.decode(Uint8Array.of(3 << 3, 99)).role, Role.UNRECOGNIZED);
});
