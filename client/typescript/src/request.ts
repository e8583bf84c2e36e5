import { randomUUID } from "node:crypto";

import { ParleyError } from "./errors.js";
import { type MessageType, services } from "./services.js";

/**
 * Returns a copy of a request with all fields set, and with a random requestId if its requestId is
 * empty. Throws INVALID_ARGUMENT if the request cannot be encoded; gRPC would report that as a failure
 * of the server.
 */
export function complete<T>(type: MessageType<T>, request: unknown): T {
  if (typeof request !== "object" || request === null) {
    throw invalidRequest(`it is ${request === null ? "null" : typeof request}, want an object`);
  }
  try {
    const message = type.fromPartial(request);
    const { requestId } = message as { requestId?: string };
    const copy = requestId === "" ? { ...message, requestId: randomUUID() } : message;
    type.encode(copy);
    return copy;
  } catch (error) {
    throw invalidRequest((error as Error).message, error);
  }
}

/**
 * Copies a request now. Returns a function that returns the copy, or throws the error of an invalid
 * request, so that only the use of the request fails.
 */
export function deferredCopy<T>(type: MessageType<T>, request: unknown): () => T {
  try {
    const copy = complete(type, request);
    return () => copy;
  } catch (error) {
    return () => {
      throw error;
    };
  }
}

/** Copies the requests of a stream one by one, as {@link complete} does. */
export async function* completeEach<T>(
  type: MessageType<T>,
  requests: unknown,
): AsyncGenerator<T, void, undefined> {
  if (!isIterable(requests)) {
    throw invalidRequest("it is no iterable, want an iterable of objects");
  }
  for await (const request of iterate(requests)) {
    yield complete(type, request);
  }
}

/** Wraps an error of the caller's iterable or function, so that the client does not convert it. */
export class CallerError {
  readonly reason: unknown;

  constructor(reason: unknown) {
    this.reason = reason;
  }
}

async function* iterate(requests: AsyncIterable<unknown> | Iterable<unknown>): AsyncGenerator<unknown> {
  try {
    yield* requests;
  } catch (error) {
    throw new CallerError(error);
  }
}

function isIterable(value: unknown): value is AsyncIterable<unknown> | Iterable<unknown> {
  return (
    typeof value === "object" && value !== null && (Symbol.asyncIterator in value || Symbol.iterator in value)
  );
}

/** Returns the types of the requests, by the paths of their methods. */
export function requestTypes(): ReadonlyMap<string, MessageType> {
  return new Map(
    services.flatMap(({ fullName, methods }) =>
      Object.values(methods).map(({ name, requestType }) => [
        `/${fullName}/${name}`,
        requestType as MessageType,
      ]),
    ),
  );
}

/** The limit of an encoded request or reply. It equals the server's, so that the client can read every reply. */
export const maxMessageBytes = 4 << 20;

/** Returns the error of a request that is larger than the limit. */
export function tooLarge(size: number): ParleyError {
  const text =
    `the request has ${size} bytes, the limit is ${maxMessageBytes}; ` +
    "send fewer or smaller messages and records";
  return new ParleyError("RESOURCE_EXHAUSTED", text);
}

/** Returns a clear error in place of the one with which gRPC refuses a request that is too large. */
export function explainSize(error: unknown, type: MessageType, request: object): unknown {
  if (!(error instanceof ParleyError) || error.code !== "RESOURCE_EXHAUSTED" || error.reason !== "") {
    return error;
  }
  const size = type.encode(request).finish().length;
  return size > maxMessageBytes ? tooLarge(size) : error;
}

/** Returns the error of an invalid request or call, which is not sent. */
export function invalidRequest(fault: string, cause?: unknown): ParleyError {
  return new ParleyError("INVALID_ARGUMENT", `the request cannot be sent: ${fault}`, { cause });
}
