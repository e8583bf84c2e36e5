import type { TokenSource } from "./token.js";

/** The keys of the metadata with which a call signs in. */
const tokenKey = "authorization";
const tenantKey = "parley-tenant";

/** The limits of the server for the names of tenants. */
const tenantPattern = /^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,63}$/;

/** Returns the tenant of an option with this name, or undefined if it is empty. Throws a TypeError if it is invalid. */
export function checkedTenant(name: string, value: unknown): string | undefined {
  if (value === undefined || value === "") {
    return undefined;
  }
  if (typeof value === "string" && tenantPattern.test(value)) {
    return value;
  }
  throw new TypeError(
    `${name} is ${JSON.stringify(value)?.slice(0, 80)}, want 1 to 64 letters, digits, dots, underscores ` +
      "and hyphens, not starting with a dot or a hyphen",
  );
}

/** How a call signs in. */
export interface Credential {
  /** The metadata that the client adds to the call. */
  readonly metadata: readonly (readonly [key: string, value: string])[];
  /** The token that the client adds; undefined if it adds none. */
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

  /**
   * Returns the credential of a call. isSet reports whether the call sets a key itself. isRejected means that the
   * server has rejected a token before.
   */
  async sign(isSet: (key: string) => boolean, isRejected = false): Promise<Credential> {
    const metadata: [string, string][] = [];
    if (this.#tenant && !isSet(tenantKey)) {
      metadata.push([tenantKey, this.#tenant]);
    }
    if (!this.#tokens || isSet(tokenKey)) {
      return { metadata };
    }
    const token = await (isRejected ? this.#tokens.afterRejection() : this.#tokens.current());
    metadata.push([tokenKey, `Bearer ${token}`]);
    return { metadata, token };
  }
}
