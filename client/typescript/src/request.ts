import { ParleyError } from "./errors.js";

/** The type of a message: the generated code for gRPC, or the schema for JSON. */
export interface MessageType<T = object> {
  /** Returns a message with all fields set. */
  fromPartial(object: object): T;
  /** Encodes a message. Throws an error if a value is not valid. */
  encode(message: T): { finish(): Uint8Array };
}

/**
 * Returns a copy of a request with all fields set. If its requestId is empty, it is set to the result of newID. Throws
 * INVALID_ARGUMENT if the request cannot be encoded; gRPC would report that as a failure of the server.
 */
export function complete<T>(type: MessageType<T>, request: unknown, newID: () => string): T {
  if (typeof request !== "object" || request === null) {
    throw invalidRequest(`it is ${request === null ? "null" : typeof request}, want an object`);
  }
  try {
    const message = type.fromPartial(request);
    const { requestId } = message as { requestId?: string };
    const copy = requestId === "" ? { ...message, requestId: newID() } : message;
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
export function deferred<T>(copy: () => T): () => T {
  try {
    const copied = copy();
    return () => copied;
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
  newID: () => string,
): AsyncGenerator<T, void, undefined> {
  for await (const request of iterate(requests)) {
    yield complete(type, request, newID);
  }
}

/** Wraps an error of the caller's iterable or function, so that the client does not convert it. */
export class CallerError {
  readonly reason: unknown;

  constructor(reason: unknown) {
    this.reason = reason;
  }
}

/** Yields the requests of a caller. Throws INVALID_ARGUMENT if they are no iterable, and a CallerError for its errors. */
export async function* iterate(requests: unknown): AsyncGenerator<unknown, void, undefined> {
  if (!isIterable(requests)) {
    throw invalidRequest("it is no iterable, want an iterable of objects");
  }
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
