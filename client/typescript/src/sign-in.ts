import { type CallOptions, Metadata } from "nice-grpc";

import type { TokenSource } from "./token.js";

/** The keys of the metadata with which a call signs in. */
const tokenKey = "authorization";
const tenantKey = "parley-tenant";

/** The metadata of one call. */
export interface SignedMetadata {
  readonly metadata: Metadata;
  /** The token that the client has added; undefined if it added none. */
  readonly token?: string;
}

/** Adds a token and a tenant to the metadata of calls. What a call sets itself is not replaced. */
export class SignIn {
  readonly #tokens: TokenSource | undefined;
  readonly #tenant: string | undefined;

  constructor(tokens?: TokenSource, tenant?: string) {
    this.#tokens = tokens;
    this.#tenant = tenant;
  }

  /** Returns the metadata of a call. isRejected means that the server has rejected a token before. */
  async sign(given: CallOptions["metadata"], isRejected = false): Promise<SignedMetadata> {
    const metadata = Metadata([...(given ?? [])]);
    if (this.#tenant && !metadata.has(tenantKey)) {
      metadata.set(tenantKey, this.#tenant);
    }
    if (!this.#tokens || metadata.has(tokenKey)) {
      return { metadata };
    }
    const token = await (isRejected ? this.#tokens.afterRejection() : this.#tokens.current());
    metadata.set(tokenKey, `Bearer ${token}`);
    return { metadata, token };
  }
}
