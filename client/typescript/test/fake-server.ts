import { once } from "node:events";
import type { TestContext } from "node:test";

import type { ServerCredentials } from "@grpc/grpc-js";
import {
  type AppendStreamRequest,
  type ChatRequest,
  ConversationServiceDefinition,
  type ImportConversationsRequest,
  type TurnEvent,
} from "@parleyhq/client";
import { type CallContext, createServer, type ServerError } from "nice-grpc";
import { errorDetailsServerMiddleware } from "nice-grpc-error-details";

import { short } from "./model.js";

/** A received call. */
export interface ReceivedCall {
  readonly method: string;
  readonly requestId: string;
  readonly metadata: CallContext["metadata"];
  readonly signal: AbortSignal;
}

/** A ConversationService with fixed answers. It records the calls. */
export class FakeServer {
  readonly calls: ReceivedCall[] = [];
  /** The imported requests. */
  readonly imported: ImportConversationsRequest[] = [];
  /** The errors of the next calls, in order. */
  failures: ServerError[] = [];
  /** Runs at the beginning of each call, and may throw a ServerError. */
  check: (context: CallContext) => void = () => {};
  /** Answers Chat. */
  turn = async function* (_: ChatRequest, __: CallContext): AsyncGenerator<TurnEvent> {
    yield* short();
  };

  /** Serves on a free port until the end of the test. Returns the address. The default is plaintext. */
  async serve(t: TestContext, credentials?: ServerCredentials): Promise<string> {
    const server = createServer({ "grpc.max_receive_message_length": 4 << 20 }).use(
      errorDetailsServerMiddleware,
    );
    const implementation: Record<string, unknown> = {};
    const record = this.#record.bind(this);
    for (const [name, { responseStream }] of Object.entries(ConversationServiceDefinition.methods)) {
      const turn = (request: ChatRequest, context: CallContext) => this.turn(request, context);
      implementation[name] = responseStream
        ? async function* (request: ChatRequest, context: CallContext) {
            record(name, request, context);
            for await (const event of turn(request, context)) {
              yield { event };
            }
          }
        : async (request: object, context: CallContext) => {
            record(name, request, context);
            return {};
          };
    }
    implementation["appendStream"] = async function* (
      this: void,
      requests: AsyncIterable<AppendStreamRequest>,
      context: CallContext,
    ) {
      record("appendStream", {}, context);
      for await (const { append } of requests) {
        yield { result: { $case: "response", value: { appended: [{ id: append?.requestId ?? "" }] } } };
      }
    };
    implementation["importConversations"] = async (
      requests: AsyncIterable<ImportConversationsRequest>,
      context: CallContext,
    ) => {
      record("importConversations", {}, context);
      for await (const request of requests) {
        this.imported.push(request);
      }
      return {};
    };
    server.add(ConversationServiceDefinition, implementation as never);
    const port = await server.listen("127.0.0.1:0", credentials);
    t.after(() => server.forceShutdown());
    return `127.0.0.1:${port}`;
  }

  #record(method: string, request: { requestId?: string }, context: CallContext): void {
    const { metadata, signal } = context;
    this.calls.push({ method, requestId: request.requestId ?? "", metadata, signal });
    const failure = this.failures.shift();
    if (failure) {
      throw failure;
    }
    this.check(context);
  }
}

/** Waits until the signal aborts. */
export async function aborted(signal: AbortSignal): Promise<void> {
  if (!signal.aborted) {
    await once(signal, "abort");
  }
}
