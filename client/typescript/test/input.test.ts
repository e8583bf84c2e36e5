import assert from "node:assert/strict";
import { test } from "node:test";

import {
  AppendMessagesRequest,
  type BatchGetRoutingSummariesRequest,
  type Client,
  type ImportConversationsRequest,
  type Input,
  type Message,
  type Piece,
  TurnEvent,
} from "@parleyhq/client";

// Each test also checks that it compiles.

test("lists may be readonly", () => {
  const messages: readonly Input<Message>[] = [{ role: "ROLE_USER", content: "hello" }];
  const append: Input<AppendMessagesRequest> = { conversationId: "a", messages };
  const batch: Input<BatchGetRoutingSummariesRequest> = { conversationIds: ["a"] as const };
  const calls = (client: Client) => [
    client.appendMessages({ messages }),
    client.batchGetRoutingSummaries({ conversationIds: ["a"] as const }),
    client.watchConversations({ conversationIds: ["a"] as const }),
  ];
  assert.equal(typeof calls, "function");
  assert.equal(append.messages, messages);
  assert.deepEqual(batch.conversationIds, ["a"]);
});

test("an undefined field has its default", () => {
  const message: Input<Message> = {
    role: undefined,
    content: undefined,
    sequence: undefined,
    structuredData: undefined,
    usage: undefined,
    metadata: { present: "x", absent: undefined },
    createTime: undefined,
  };
  const request: Input<AppendMessagesRequest> = { requestId: undefined, messages: [message] };
  const got = AppendMessagesRequest.fromPartial(request as object);
  const want = AppendMessagesRequest.fromPartial({ messages: [{ metadata: { present: "x" } }] });
  assert.deepEqual(got, want);
  assert.deepEqual(
    AppendMessagesRequest.fromPartial({ messages: undefined } as object),
    AppendMessagesRequest.fromPartial({}),
  );
  const event: Input<TurnEvent> = { event: { $case: "textDelta", value: undefined } };
  assert.equal(TurnEvent.fromPartial(event as object).event, undefined);
});

test("bytes may be any Uint8Array", () => {
  const value = Uint8Array.of(1);
  const records = [{ key: "a", value }];
  const append: Input<AppendMessagesRequest> = { records };
  const pieces: Piece[] = [{ record: { key: "a", value } }, { native: { type: "x", value } }];
  const calls = (client: Client) => [client.records("a").write(records), client.appendMessages({ records })];
  assert.equal(typeof calls, "function");
  const copy = AppendMessagesRequest.fromPartial(append as object);
  const { records: got } = AppendMessagesRequest.decode(AppendMessagesRequest.encode(copy).finish());
  assert.deepEqual([...got[0]!.value, pieces.length], [1, 2]);
});

test("wrong requests do not compile", () => {
  const wrong = (client: Client) => {
    const one: Input<ImportConversationsRequest> = {};
    client.importConversations([one]);
    // @ts-expect-error: an unknown field
    client.getConversation({ conversation: "a" });
    // @ts-expect-error: a number for a string
    client.appendMessages({ conversationId: 1 });
    // @ts-expect-error: an unknown role
    client.appendMessages({ messages: [{ role: "ROLE_NOBODY" }] });
    // @ts-expect-error: a string for bytes
    client.records("a").write([{ key: "a", value: "text" }]);
    // @ts-expect-error: a string for keys
    client.records("a").getAll("abc");
    // @ts-expect-error: one request instead of an iterable
    client.importConversations(one);
  };
  assert.equal(typeof wrong, "function");
});
