import { type ClientError, Status } from "nice-grpc";
import { type ErrorDetails, RichClientError } from "nice-grpc-error-details";

/** The name of a gRPC status other than OK. */
export type Code = Exclude<keyof typeof Status, "OK">;

/** A field of a request that breaks a rule. */
export interface FieldViolation {
  /** Its path in the contract: `"conversation.id"`, `"messages[0].role"`. */
  readonly field: string;
  /** The rule, for people. */
  readonly description: string;
}

/** What a {@link ParleyError} may know besides its code. */
export interface ParleyErrorDetails {
  readonly reason?: string;
  readonly metadata?: Readonly<Record<string, string>>;
  readonly fieldViolations?: readonly FieldViolation[];
  readonly retryDelay?: number | undefined;
  readonly cause?: unknown;
}

/** Why a call or a stream failed. `message` begins with the code and says what to do about it. */
export class ParleyError extends Error {
  /** The gRPC status: `"NOT_FOUND"`, `"UNAVAILABLE"`. */
  readonly code: Code;
  /**
   * The server's stable word for why: `"CONVERSATION_NOT_FOUND"`, `"VERSION_MISMATCH"`. Empty when
   * the error was not made by a Parley server: no connection, a message over the size limit.
   */
  readonly reason: string;
  /** What goes with the reason: `current_version` with `VERSION_MISMATCH`. */
  readonly metadata: Readonly<Record<string, string>>;
  /** Every field that breaks a rule, with `INVALID_REQUEST`. */
  readonly fieldViolations: readonly FieldViolation[];
  /** After how many milliseconds the same call may succeed; undefined when the server does not say. */
  readonly retryDelay: number | undefined;

  constructor(code: Code, message: string, details: ParleyErrorDetails = {}) {
    super(`${code}: ${message}`, details.cause === undefined ? {} : { cause: details.cause });
    this.name = "ParleyError";
    this.code = code;
    this.reason = details.reason ?? "";
    this.metadata = details.metadata ?? {};
    this.fieldViolations = details.fieldViolations ?? [];
    this.retryDelay = details.retryDelay;
  }
}

/** The same error as this package throws it. */
export function fromClientError(error: ClientError): ParleyError {
  const extra = error instanceof RichClientError ? error.extra : [];
  const info = find(extra, "google.rpc.ErrorInfo");
  const delay = find(extra, "google.rpc.RetryInfo")?.retryDelay;
  const ours = info?.domain === "parley";
  const violations = find(extra, "google.rpc.BadRequest")?.fieldViolations ?? [];
  return new ParleyError(Status[error.code] as Code, error.details, {
    reason: ours ? info.reason : "",
    metadata: ours ? info.metadata : {},
    fieldViolations: violations.map(({ field, description }) => ({ field, description })),
    retryDelay: delay && delay.seconds * 1e3 + delay.nanos / 1e6,
    cause: error,
  });
}

function find<T extends ErrorDetails["$type"]>(
  details: ErrorDetails[],
  type: T,
): Extract<ErrorDetails, { $type: T }> | undefined {
  return details.find((d): d is Extract<ErrorDetails, { $type: T }> => d.$type === type);
}
