import type { Message, Turn, TurnEvent } from "@parleyhq/client";
import type { FinishReason, UIMessage, UIMessageChunk } from "ai";

import { decodeInput, decodeOutput } from "./messages.js";

type Parts = UIMessage["parts"];

/** What models and agents call the reasons of the SDK. */
const finishReasons: { [reason: string]: FinishReason } = {
  "": "stop",
  end_turn: "stop",
  stop_sequence: "stop",
  max_tokens: "length",
  content_filter: "content-filter",
  tool_use: "tool-calls",
  tool_calls: "tool-calls",
};
const ownReasons: readonly string[] = [
  "stop",
  "length",
  "content-filter",
  "tool-calls",
  "error",
] satisfies FinishReason[];

/**
 * Converts the events of one turn to the chunks of a message. Each message of the answer is a step, with one text
 * to which all its deltas belong. Reasoning after text begins a part of its own, and so does the text after it.
 */
export class TurnChunks {
  readonly #messageId: string | undefined;
  readonly #prefix: Parts;
  readonly #metadata: ((messages: readonly Message[]) => unknown) | undefined;
  #inStep = false;
  /** The result of a tool or a handoff has ended the current step. */
  #stepEnds = false;
  /** The open part of text or of reasoning. */
  #open: { readonly kind: "text" | "reasoning"; readonly id: string } | undefined;
  #count = 0;
  /** The bytes of the arguments of each call that were sent. */
  readonly #inputs = new Map<string, number>();

  /**
   * The message has the id of the turn if messageId is undefined. Otherwise the turn continues that message, which
   * begins with the prefix.
   */
  constructor(messageId?: string, prefix: Parts = [], metadata?: (messages: readonly Message[]) => unknown) {
    this.#messageId = messageId;
    this.#prefix = prefix;
    this.#metadata = metadata;
  }

  /** Returns the chunks of an event. */
  *of({ turnId, event }: TurnEvent): Generator<UIMessageChunk> {
    switch (event?.$case) {
      case "queued": {
        const data = { position: event.value.position };
        yield { type: "data-parley-queued", data, transient: true };
        break;
      }
      case "started":
        yield { type: "start", messageId: this.#messageId ?? turnId };
        yield* this.#replay();
        break;
      case "progress":
        if (event.value.text) {
          yield { type: "data-parley-progress", data: { text: event.value.text }, transient: true };
        }
        break;
      case "textDelta":
        yield* this.#delta("text", event.value.text);
        break;
      case "reasoningDelta":
        yield* this.#delta("reasoning", event.value.text);
        break;
      case "structuredData":
        yield* this.#step();
        yield { type: `data-${event.value.type}`, data: event.value.value };
        break;
      case "toolCallDelta": {
        const { id, name, arguments: text, offset } = event.value;
        yield* this.#step();
        if (!this.#inputs.has(id) && offset === 0) {
          yield { type: "tool-input-start", toolCallId: id, toolName: name };
          this.#inputs.set(id, 0);
        }
        // Without the bytes before the offset, the complete call must be awaited.
        if (this.#inputs.get(id) === offset && text) {
          yield { type: "tool-input-delta", toolCallId: id, inputTextDelta: text };
          this.#inputs.set(id, offset + new TextEncoder().encode(text).length);
        }
        break;
      }
      case "toolCall": {
        const { id, name } = event.value;
        const call = { toolCallId: id, toolName: name, ...decodeInput(event.value.arguments) };
        yield* this.#step();
        this.#inputs.delete(id);
        if (call.errorText === undefined) {
          yield { type: "tool-input-available", ...call };
        } else {
          yield { type: "tool-input-error", ...call, errorText: call.errorText };
        }
        break;
      }
      case "toolResult": {
        const { callId, content, isError } = event.value;
        yield* this.#endPart();
        this.#stepEnds = true;
        if (isError) {
          yield { type: "tool-output-error", toolCallId: callId, errorText: content };
        } else {
          yield { type: "tool-output-available", toolCallId: callId, output: decodeOutput(content) };
        }
        break;
      }
      case "answerStarted":
        this.#stepEnds = true;
        break;
      case "finished":
        yield* this.#endStep();
        yield* this.#end(event.value.turn, event.value.messages);
        break;
      default: // Records, and events of later versions, are no part of the message.
    }
  }

  /** Returns the chunks of the parts that the message has from earlier turns. */
  *#replay(): Generator<UIMessageChunk> {
    for (const part of this.#prefix) {
      if (part.type === "step-start") {
        yield* this.#endStep();
        yield* this.#step();
      } else if (part.type === "text" || part.type === "reasoning") {
        yield* this.#delta(part.type, part.text);
        yield* this.#endPart();
      } else if ("toolCallId" in part) {
        const { toolCallId, input } = part;
        yield { type: "tool-input-available", toolCallId, toolName: part.type.slice("tool-".length), input };
        if (part.state === "output-available") {
          yield { type: "tool-output-available", toolCallId, output: part.output };
        } else if (part.state === "output-error") {
          yield { type: "tool-output-error", toolCallId, errorText: part.errorText };
        }
      } else {
        yield part as UIMessageChunk; // Parts with data or files are the same as their chunks.
      }
    }
    this.#stepEnds = true;
  }

  /** Begins a step unless one has begun. */
  *#step(): Generator<UIMessageChunk> {
    if (this.#stepEnds) {
      yield* this.#endStep();
    }
    if (!this.#inStep) {
      this.#inStep = true;
      yield { type: "start-step" };
    }
  }

  *#endStep(): Generator<UIMessageChunk> {
    yield* this.#endPart();
    if (this.#inStep) {
      yield { type: "finish-step" };
    }
    this.#inStep = this.#stepEnds = false;
  }

  *#delta(kind: "text" | "reasoning", delta: string): Generator<UIMessageChunk> {
    yield* this.#step();
    if (this.#open?.kind !== kind) {
      yield* this.#endPart();
      this.#open = { kind, id: `${kind}-${this.#count++}` };
      yield { type: `${kind}-start`, id: this.#open.id };
    }
    yield { type: `${kind}-delta`, id: this.#open.id, delta };
  }

  *#endPart(): Generator<UIMessageChunk> {
    if (this.#open) {
      yield { type: `${this.#open.kind}-end`, id: this.#open.id };
      this.#open = undefined;
    }
  }

  *#end(turn: Turn | undefined, messages: readonly Message[]): Generator<UIMessageChunk> {
    const metadata = messages.length > 0 ? this.#metadata?.(messages) : undefined;
    if (metadata !== undefined) {
      yield { type: "message-metadata", messageMetadata: metadata };
    }
    const { reason, message } = turn?.error ?? { reason: "", message: "" };
    switch (turn?.state) {
      case "TURN_STATE_COMPLETED": {
        const last = messages.at(-1)?.finishReason ?? "";
        const own = ownReasons.includes(last) ? (last as FinishReason) : "other";
        yield { type: "finish", finishReason: finishReasons[last] ?? own };
        break;
      }
      case "TURN_STATE_INPUT_REQUIRED":
        yield { type: "finish", finishReason: "tool-calls" };
        break;
      case "TURN_STATE_CANCELLED":
        yield { type: "abort", reason: message };
        break;
      default:
        if (reason === "INTERRUPTED") {
          yield { type: "finish", finishReason: "interrupted" };
        } else {
          yield { type: "error", errorText: message || "the turn failed" };
        }
    }
  }
}
