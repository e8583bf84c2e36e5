import { Client } from "@parleyhq/client";

export { kept } from "./kept.js";

/**
 * The address of a server, as the constructor of Client takes it, or a client of that server. An adapter
 * makes its own client for an address and closes it in `close`. It does not close a client that it gets.
 */
export type Server = string | Client;

/** The client of an adapter. */
export class Connection {
  readonly client: Client;
  readonly #isOwn: boolean;

  constructor(server: Server) {
    this.#isOwn = typeof server === "string";
    this.client = typeof server === "string" ? new Client(server) : server;
  }

  /** Closes the client if it was made here. */
  close(): void {
    if (this.#isOwn) {
      this.client.close();
    }
  }
}
