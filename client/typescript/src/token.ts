import { ParleyError } from "./errors.js";
import { CallerError } from "./request.js";

/**
 * The bearer token of a client: the token itself, or a function that returns it or promises it. The
 * client calls the function before each call and each attempt of a stream, and again after the server
 * has rejected its token. A function that fetches tokens should cache them until they are about to
 * expire. An error of the function is thrown unchanged by the call.
 */
export type Token = string | (() => string | Promise<string>);

/** Where the tokens of a client come from. */
export interface TokenSource {
  /** Returns the token of the next call. */
  current(): Promise<string>;
  /** Returns the token of the next call after the server has rejected a token. */
  afterRejection(): Promise<string>;
}

/** The maximum length of a token. The server accepts 16 KiB of headers. */
export const maxTokenBytes = 12 << 10;

/** Returns what is wrong with a token, or undefined. The text does not contain the token. */
export function tokenFault(token: unknown): string | undefined {
  if (typeof token !== "string") {
    return `is ${token === null ? "null" : typeof token}, want a string`;
  }
  if (token === "") {
    return "is empty";
  }
  if (token.length > maxTokenBytes) {
    return `has ${token.length} characters, want at most ${maxTokenBytes}`;
  }
  if (!/^[!-~]*$/.test(token)) {
    return (
      "contains a space, a line break or another character that is not printable ASCII; " +
      'set only the token, without "Bearer"'
    );
  }
  return undefined;
}

/** Returns the source of the tokens of an option with this name, or undefined if it is empty. Throws a TypeError. */
export function tokenSource(name: string, token: Token | undefined): TokenSource | undefined {
  if (token === undefined || token === "") {
    return undefined;
  }
  if (typeof token === "function") {
    return tokenFunction(token);
  }
  const fault = tokenFault(token);
  if (fault) {
    throw new TypeError(`${name} ${fault}`);
  }
  return fixedToken(token);
}

/** Returns the source of a token that never changes. */
function fixedToken(token: string): TokenSource {
  const current = async () => token;
  return { current, afterRejection: current };
}

/** Returns the source of the tokens that a function returns. */
function tokenFunction(next: () => string | Promise<string>): TokenSource {
  const current = async () => {
    let token: unknown;
    try {
      token = await next();
    } catch (error) {
      throw new CallerError(error);
    }
    const fault = tokenFault(token);
    if (fault) {
      throw unusable(`the result of the token function ${fault}`);
    }
    return token as string;
  };
  return { current, afterRejection: current };
}

/** Returns the error of a call that has no token to send. */
export function unusable(fault: string, cause?: unknown): ParleyError {
  return new ParleyError("UNAUTHENTICATED", fault, { cause });
}
