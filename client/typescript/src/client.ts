import type { CallOptions } from "nice-grpc";

import { BaseClient } from "./base-client.js";
import { GrpcTransport } from "./grpc-transport.js";
import type { ClientOptions } from "./options.js";

/**
 * A connection to one Parley server. A program needs only one.
 *
 * {@link appender} appends many messages over one stream. {@link records} and {@link tenantRecords} read and
 * write records.
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
 *   while the server is UNAVAILABLE. A quick restart of the server stays unnoticed. The other calls
 *   (update, delete, purge, lease, import) are sent once.
 * - If the server rejects the token of a call (UNAUTHENTICATED), the client reads the token file or calls
 *   the token function again. If the token has changed, it sends the call again, once. It does so for a
 *   stream also after the server has accepted it. Only an import is not sent again.
 */
export class Client extends BaseClient<CallOptions> {
  /**
   * Makes a client of the server at target: `"host:port"`, `"unix:PATH"`, or any other target that
   * gRPC can resolve. It does not connect yet. If there is no server, the first call fails with
   * UNAVAILABLE. Call {@link close} when the client is no longer needed.
   *
   * The limit of a message is 4 MiB in each direction. The client pings a connection that has been
   * silent for 30 s, and closes it if there is no answer within 10 s.
   *
   * The constructor reads the files with certificates. It throws an error if one cannot be used, or if
   * options contradict each other. The file with the token is read at the first call.
   */
  constructor(target: string, options: ClientOptions = {}) {
    super(new GrpcTransport(target, options));
  }
}
