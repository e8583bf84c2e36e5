import { checkedTenant, SignIn } from "../sign-in.js";
import { type Token, tokenSource } from "../token.js";
import type { BaseCallOptions } from "../transport.js";

/** The options of a Client. */
export interface ClientOptions {
  /** The bearer token of all calls. An empty string means none. */
  readonly token?: Token | undefined;
  /** The tenant of all calls. Only a caller with several tenants must name one. An empty string means none. */
  readonly tenant?: string | undefined;
  /** False to send a token in plaintext to another machine, over a network that you trust. */
  readonly tls?: false | undefined;
  /** The function that sends the requests, instead of that of the platform. */
  readonly fetch?: typeof fetch | undefined;
}

/** The headers of a call. */
export type Metadata = Headers;

/** Makes the metadata of a call, with or without `new`. */
export const Metadata = function Metadata(init?: HeadersInit): Headers {
  return new Headers(init);
} as unknown as { new (init?: HeadersInit): Headers; (init?: HeadersInit): Headers };

type HeadersInit = ConstructorParameters<typeof Headers>[0];

/** The options of one call. */
export interface CallOptions extends BaseCallOptions {
  /**
   * Headers of the call. The server reads authorization and parley-tenant, which replace the client's token and tenant,
   * traceparent and x-request-id. It ignores others.
   */
  metadata?: Metadata;
}

/**
 * Returns the URL of a server without a slash at its end, and how calls sign in. Throws a TypeError if the target or an
 * option is invalid.
 */
export function connectionSettings(
  target: string,
  { token, tenant, tls }: ClientOptions,
): { base: string; signIn: SignIn } {
  const url = parseTarget(target);
  const tokens = tokenSource("token", token);
  if (tls !== undefined && tls !== false) {
    throw new TypeError(
      "tls is set; leave it out, because the scheme of the target decides, or set it to false",
    );
  }
  if (tokens && url.protocol === "http:" && tls !== false && !isLocal(url.hostname)) {
    throw new TypeError(
      "token would be sent to another machine in plaintext; use https, or set tls to false if you trust the network",
    );
  }
  return {
    base: url.origin + url.pathname.replace(/\/+$/, ""),
    signIn: new SignIn(tokens, checkedTenant("tenant", tenant)),
  };
}

function parseTarget(target: string): URL {
  let url: URL | undefined;
  try {
    url = new URL(target);
  } catch {
    // The error below says what is wanted.
  }
  if (!url || !/^https?:$/.test(url.protocol) || url.search || url.hash || url.username || url.password) {
    throw new TypeError(
      `the target is ${JSON.stringify(target)}, want a URL such as "https://parley.example:8080"`,
    );
  }
  return url;
}

/** Reports whether a host is certainly this machine. */
function isLocal(hostname: string): boolean {
  return hostname === "localhost" || hostname === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(hostname);
}
