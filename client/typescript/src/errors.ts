/** The names of the gRPC statuses, by their numbers. */
const codes = [
  "OK",
  "CANCELLED",
  "UNKNOWN",
  "INVALID_ARGUMENT",
  "DEADLINE_EXCEEDED",
  "NOT_FOUND",
  "ALREADY_EXISTS",
  "PERMISSION_DENIED",
  "RESOURCE_EXHAUSTED",
  "FAILED_PRECONDITION",
  "ABORTED",
  "OUT_OF_RANGE",
  "UNIMPLEMENTED",
  "INTERNAL",
  "UNAVAILABLE",
  "DATA_LOSS",
  "UNAUTHENTICATED",
] as const;

/** The name of a gRPC status other than OK. */
export type Code = Exclude<(typeof codes)[number], "OK">;

/** A field of a request that breaks a rule. */
export interface FieldViolation {
  /** The path of the field in the protos: `"conversation.id"`, `"messages[0].role"`. */
  readonly field: string;
  /** The rule, for people. */
  readonly description: string;
}

/** The optional fields of a {@link ParleyError}. */
export interface ParleyErrorDetails {
  readonly reason?: string;
  readonly metadata?: Readonly<Record<string, string>>;
  readonly fieldViolations?: readonly FieldViolation[];
  readonly retryDelay?: number | undefined;
  readonly cause?: unknown;
}

/** A failed call or stream. `message` begins with the code and the reason, and says what to do. */
export class ParleyError extends Error {
  /** The gRPC status: `"NOT_FOUND"`, `"UNAVAILABLE"`. */
  readonly code: Code;
  /**
   * The stable reason: `"CONVERSATION_NOT_FOUND"`, `"VERSION_MISMATCH"`. It is empty if the error is
   * not from a Parley server: no connection, a message over the size limit.
   */
  readonly reason: string;
  /** Details of the reason: `current_version` for `VERSION_MISMATCH`. */
  readonly metadata: Readonly<Record<string, string>>;
  /** For `INVALID_REQUEST`: every field that breaks a rule. */
  readonly fieldViolations: readonly FieldViolation[];
  /** Milliseconds after which the same call may succeed; undefined if waiting does not help. */
  readonly retryDelay: number | undefined;

  constructor(code: Code, message: string, details: ParleyErrorDetails = {}) {
    super(
      heading(code, details.reason ?? "") + message,
      details.cause === undefined ? {} : { cause: details.cause },
    );
    this.name = "ParleyError";
    this.code = code;
    this.reason = details.reason ?? "";
    this.metadata = details.metadata ?? {};
    this.fieldViolations = details.fieldViolations ?? [];
    this.retryDelay = details.retryDelay;
  }

  /**
   * How the conversation ended, for `CONVERSATION_NOT_FOUND`: `"EVICTED"`, `"EXPIRED"` or `"DELETED"`. The
   * server remembers the end for an hour. Empty if it does not, or for another reason.
   */
  get ended(): string {
    return this.metadata["ended"] ?? "";
  }

  /** When the server removed the conversation; undefined if {@link ended} is empty. */
  get endedAt(): Date | undefined {
    const at = this.ended && this.metadata["at"];
    return at ? new Date(at) : undefined;
  }
}

/**
 * A write of records that required another revision (`ifRevision`). It wrote nothing. Its code is ABORTED and its
 * reason REVISION_MISMATCH. Read the record again, and write with its new revision. Writes of records, appends
 * and chats throw it.
 */
export class RevisionMismatchError extends ParleyError {
  override name = "RevisionMismatchError";

  /** The key of the first write that required another revision. */
  get key(): string {
    return this.metadata["key"] ?? "";
  }

  /** The revision of that record; 0 if it does not exist. */
  get currentRevision(): number {
    return Number(this.metadata["current_revision"] ?? 0);
  }

  /** Whether that record belongs to the tenant and not to a conversation. */
  get tenantScope(): boolean {
    return this.metadata["scope"] === "tenant";
  }
}

/** Returns the beginning of the message of an error, as the client for Python prints it. */
export function heading(code: Code, reason: string): string {
  return `${reason === "" ? code : `${code} ${reason}`}: `;
}

/** Returns an error like this one, with a text before that of its message. */
export function derived(
  error: ParleyError,
  prefix: string,
  Type: typeof ParleyError = ParleyError,
): ParleyError {
  const text = error.message.slice(heading(error.code, error.reason).length);
  return new Type(error.code, prefix + text, { ...error, cause: error });
}

/**
 * Returns the milliseconds for which a proxy has asked to wait before the next attempt; 0 if it has not. The errors of
 * Parley itself do not count: their retryDelay is for callers, and the client has times of its own.
 */
export function waitAskedBy({ reason, retryDelay = 0 }: ParleyError): number {
  return reason === "" ? retryDelay : 0;
}

/** A stream that the server had accepted ended with its token, and the client has another token. */
export class TokenExpiredError extends ParleyError {}

/** The details of a gRPC status that this package uses. */
export interface StatusDetails {
  /** google.rpc.ErrorInfo */
  readonly info?: {
    readonly reason: string;
    readonly domain: string;
    readonly metadata: Readonly<Record<string, string>>;
  };
  /** The violations of google.rpc.BadRequest. */
  readonly fieldViolations?: readonly FieldViolation[];
  /** Milliseconds of google.rpc.RetryInfo. */
  readonly retryDelay?: number | undefined;
}

/** Returns the error of a gRPC status with this number. */
export function fromDetails(
  code: number,
  message: string,
  { info, fieldViolations = [], retryDelay }: StatusDetails,
  type = ParleyError,
  cause?: unknown,
): ParleyError {
  const ours = info?.domain === "parley";
  const reason = ours ? info.reason : "";
  const Type = reason === "REVISION_MISMATCH" ? RevisionMismatchError : type;
  return new Type((codes[code] ?? "UNKNOWN") as Code, message, {
    reason,
    metadata: ours ? info.metadata : {},
    fieldViolations: fieldViolations.map(({ field, description }) => ({ field, description })),
    retryDelay,
    cause,
  });
}
