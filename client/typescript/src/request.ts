import { randomUUID } from "node:crypto";

import { ParleyError } from "./errors.js";
import { type MessageType, services } from "./services.js";

/**
 * A whole copy of a request, with a random requestId where it wants one and has none. Throws what is
 * wrong with one that no attempt could send: gRPC would call that a fault of the server's.
 */
export function whole<T>(type: MessageType<T>, request: unknown): T {
  if (typeof request !== "object" || request === null) {
    throw unsendable(`it is ${request === null ? "null" : typeof request}, want an object`);
  }
  try {
    const message = type.fromPartial(request);
    const { requestId } = message as { requestId?: string };
    const copy = requestId === "" ? { ...message, requestId: randomUUID() } : message;
    type.encode(copy);
    return copy;
  } catch (error) {
    throw unsendable((error as Error).message, error);
  }
}

/** Copies a request now and says at each use what is wrong with it, so that only the use fails. */
export function copied<T>(type: MessageType<T>, request: unknown): () => T {
  try {
    const copy = whole(type, request);
    return () => copy;
  } catch (error) {
    return () => {
      throw error;
    };
  }
}

/** Copies the requests of a stream one by one, as they are sent. */
export async function* wholes<T>(
  type: MessageType<T>,
  requests: unknown,
): AsyncGenerator<T, void, undefined> {
  if (!isIterable(requests)) {
    throw unsendable("a stream of requests wants an iterable of objects");
  }
  for await (const request of iterate(requests)) {
    yield whole(type, request);
  }
}

/** What the caller's own iterable threw, so that nobody on the way takes it for an error of theirs. */
export class Thrown {
  readonly reason: unknown;

  constructor(reason: unknown) {
    this.reason = reason;
  }
}

async function* iterate(requests: AsyncIterable<unknown> | Iterable<unknown>): AsyncGenerator<unknown> {
  try {
    yield* requests;
  } catch (error) {
    throw new Thrown(error);
  }
}

function isIterable(value: unknown): value is AsyncIterable<unknown> | Iterable<unknown> {
  return (
    typeof value === "object" && value !== null && (Symbol.asyncIterator in value || Symbol.iterator in value)
  );
}

/** The types of the requests, by the paths of their methods. */
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

/** The error of a request, or of a call, that was not sent for what is wrong with it. */
export function unsendable(why: string, cause?: unknown): ParleyError {
  return new ParleyError("INVALID_ARGUMENT", `the request cannot be sent: ${why}`, { cause });
}
