import { BaseClient } from "../base-client.js";
import type { CallOptions, ClientOptions } from "./options.js";
import { FetchTransport } from "./transport.js";

/**
 * A client of one Parley server over HTTP: the same methods, rules and errors as the client over gRPC. A program needs
 * only one.
 *
 * {@link appender} appends many messages. {@link records} and {@link tenantRecords} read and write records.
 *
 * Three methods stream. {@link chat} sends a message to an agent and streams its answer.
 * {@link resumeTurn} streams a turn that has begun before. {@link watchConversations} streams the
 * changes of conversations. They reconnect and resume automatically if the connection breaks, the
 * server restarts, or the token expires and there is another one. Every other method is one call.
 *
 * These rules hold for all methods:
 *
 * - Messages are plain objects, in both directions. A missing field of a request has its default.
 * - A failed call throws a {@link ParleyError}, or the reason of `options.signal` if that has aborted:
 *   an AbortError, a TimeoutError. An invalid request, such as one with 1.5 for an integer, throws
 *   INVALID_ARGUMENT.
 * - If `requestId` is empty, the client sets it to a random UUID, on a copy of the request. The server
 *   executes a requestId once, so the client may send such a call again. A program that repeats a call
 *   itself, for example after its own restart, must set requestId itself, to the same value each time.
 * - Calls that only read, and calls with a requestId, are sent up to five times within about 1.5 s
 *   while the server is UNAVAILABLE. The other calls (update, delete, purge, lease, import) are sent once.
 * - If the server rejects the token of a call (UNAUTHENTICATED), the client calls the token function again. If the
 *   token has changed, it sends the call again, once. It does so for a stream also after the server has accepted it.
 * - A call has no time limit of its own. Set one with `AbortSignal.timeout`.
 */
export class Client extends BaseClient<CallOptions> {
  /**
   * Makes a client of the server at target, the URL of its HTTP address: `"https://parley.example:8080"`. A path is
   * put before those of the server. It does not connect yet. If there is no server, the first call fails with
   * UNAVAILABLE. A web page must have an origin that the server's --http-allowed-origins names.
   *
   * The limit of a message is 4 MiB in each direction, of a request as JSON. Throws a TypeError if the target or an
   * option is invalid.
   */
  constructor(target: string, options: ClientOptions = {}) {
    super(new FetchTransport(target, options));
  }
}
