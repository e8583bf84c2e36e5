import type { ChannelCredentials, ChannelOptions } from "nice-grpc";

import { checkedTenant, SignIn } from "./sign-in.js";
import { isLocal } from "./target.js";
import { channelCredentials, type NamedPath } from "./tls.js";
import { tokenSource as namedSource, type Token, type TokenSource } from "./token.js";
import { TokenFile } from "./token-file.js";

/**
 * The options of a Client. An option that is missing or undefined has the value of its environment
 * variable. An empty string means none, also if the variable has a value.
 */
export interface ClientOptions {
  /** The bearer token of all calls. The default is the environment variable PARLEY_TOKEN. */
  readonly token?: Token | undefined;
  /**
   * The path of a file that contains the bearer token. The client reads the file again when it has
   * changed, and when the server has rejected its token. Replace the file with a rename. The default
   * is the environment variable PARLEY_TOKEN_FILE. Both defaults are ignored if token or tokenFile is
   * set.
   */
  readonly tokenFile?: string | undefined;
  /**
   * The tenant of all calls. Only a caller with several tenants must name one. The default is the
   * environment variable PARLEY_TENANT.
   */
  readonly tenant?: string | undefined;
  /**
   * True for TLS, false for plaintext, also to another machine and with a token. By default, the
   * connection uses TLS unless the target is a loopback address, localhost or a Unix socket and
   * neither certificates to trust nor a client certificate is set.
   */
  readonly tls?: boolean | undefined;
  /** The certificates to trust instead of Node's, in PEM form. */
  readonly ca?: string | Uint8Array | undefined;
  /**
   * The path of a file with the certificates to trust instead of Node's, in PEM form. The default is
   * the environment variable PARLEY_TLS_CA_FILE, which is ignored if ca is set or tls is false.
   */
  readonly caFile?: string | undefined;
  /**
   * The path of a file with the client certificate, followed by those of its issuers, in PEM form. The
   * client reads it once. The default is the environment variable PARLEY_TLS_CERT_FILE. It and
   * PARLEY_TLS_KEY_FILE are ignored if certFile or keyFile is set or tls is false.
   */
  readonly certFile?: string | undefined;
  /**
   * The path of a file with the unencrypted key of the client certificate, in PEM form. The client
   * reads it once. The default is the environment variable PARLEY_TLS_KEY_FILE.
   */
  readonly keyFile?: string | undefined;
  /** The credentials of the connection, instead of the options for TLS and their variables. */
  readonly credentials?: ChannelCredentials | undefined;
  /** Options of the gRPC channel. They override the defaults of this package, such as its keepalive. */
  readonly channelOptions?: ChannelOptions | undefined;
}

/** The environment variables of a process. */
export type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Returns how the calls of a client sign in, and the credentials of its connection to target. Throws a
 * TypeError if options contradict each other or are invalid.
 */
export function connectionSettings(
  target: string,
  options: ClientOptions,
  environment: Environment,
): { signIn: SignIn; credentials: ChannelCredentials } {
  const [tokens, name] = tokenSource(options, environment);
  const signIn = new SignIn(tokens, tenant(options, environment));
  const credentials = options.credentials
    ? ownCredentials(options, options.credentials)
    : tlsCredentials(target, options, environment);
  const isPlaintext = !credentials._isSecure();
  if (tokens && isPlaintext && options.tls !== false && !isLocal(target)) {
    throw new TypeError(
      `${name} would be sent to another machine in plaintext; ` +
        "use TLS, or set tls to false instead of credentials if you trust the network",
    );
  }
  return { signIn, credentials };
}

/** Returns the source of the tokens, and the name of its option or variable. */
function tokenSource(
  { token, tokenFile }: ClientOptions,
  environment: Environment,
): [TokenSource | undefined, string] {
  const isGiven = token !== undefined || tokenFile !== undefined;
  const [name, fileName] = isGiven ? ["token", "tokenFile"] : ["PARLEY_TOKEN", "PARLEY_TOKEN_FILE"];
  const value = isGiven ? token : environment[name];
  const file = path(fileName, isGiven ? tokenFile : environment[fileName]);
  forbidBoth(name, value, fileName, file);
  const source = namedSource(name, value);
  return source ? [source, name] : [file && new TokenFile(file.path), fileName];
}

function forbidBoth(name: string, value: unknown, otherName: string, other: unknown): void {
  if (value !== undefined && value !== "" && other !== undefined && other !== "") {
    throw new TypeError(`${name} and ${otherName} are both set; set one of them`);
  }
}

function tenant({ tenant }: ClientOptions, environment: Environment): string | undefined {
  return tenant === undefined
    ? checkedTenant("PARLEY_TENANT", environment["PARLEY_TENANT"])
    : checkedTenant("tenant", tenant);
}

/** Checks that no option for TLS is set beside the caller's own credentials. */
function ownCredentials(options: ClientOptions, credentials: ChannelCredentials): ChannelCredentials {
  const other = tlsOptions.find((name) => options[name] !== undefined);
  if (other) {
    throw new TypeError(`credentials and ${other} are both set; set one of them`);
  }
  return credentials;
}

const tlsOptions = ["tls", "ca", "caFile", "certFile", "keyFile"] as const;

function tlsCredentials(
  target: string,
  options: ClientOptions,
  environment: Environment,
): ChannelCredentials {
  const { tls, ca, caFile, certFile, keyFile } = options;
  if (tls !== undefined && typeof tls !== "boolean") {
    throw new TypeError(`tls is ${typeof tls}, want true, false or undefined`);
  }
  if (ca !== undefined && typeof ca !== "string" && !((ca as unknown) instanceof Uint8Array)) {
    throw new TypeError(`ca is ${typeof ca}, want certificates in PEM form`);
  }
  forbidBoth("ca", ca, "caFile", caFile);
  const set = tlsOptions.slice(1).find((name) => options[name] !== undefined && options[name] !== "");
  if (tls === false && set) {
    throw new TypeError(`tls is false, but ${set} is set; remove one of them`);
  }
  const usesVariables = tls !== false;
  const ownPair = certFile !== undefined || keyFile !== undefined;
  const file = (option: "caFile" | "certFile" | "keyFile", variable: string, usesVariable: boolean) =>
    options[option] === undefined
      ? path(variable, usesVariable ? environment[variable] : undefined)
      : path(option, options[option]);
  return channelCredentials(
    {
      tls,
      ca: ca === "" ? undefined : ca,
      caFile: file("caFile", "PARLEY_TLS_CA_FILE", usesVariables && ca === undefined),
      certFile: file("certFile", "PARLEY_TLS_CERT_FILE", usesVariables && !ownPair),
      keyFile: file("keyFile", "PARLEY_TLS_KEY_FILE", usesVariables && !ownPair),
    },
    isLocal(target),
  );
}

/** Returns the path of a file, if there is one. */
function path(name: string, value: unknown): NamedPath | undefined {
  if (value === undefined || value === "") {
    return undefined;
  }
  if (typeof value !== "string") {
    throw new TypeError(`${name} is ${value === null ? "null" : typeof value}, want the path of a file`);
  }
  return { name, path: value };
}
