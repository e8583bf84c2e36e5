import type { ClientError } from "nice-grpc";
import {
  BadRequest,
  type ErrorDetails,
  ErrorInfo,
  RetryInfo,
  RichClientError,
} from "nice-grpc-error-details";

import { fromDetails, ParleyError, type StatusDetails } from "./errors.js";
import type { Status } from "./gen/google/rpc/status.js";

/** The details of a status that this package uses. */
const detailTypes = [ErrorInfo, BadRequest, RetryInfo];

/** Converts an error of nice-grpc. */
export function fromClientError(error: ClientError, type = ParleyError): ParleyError {
  const extra = error instanceof RichClientError ? error.extra : [];
  return fromDetails(error.code, error.details, statusDetails(extra), type, error);
}

/** Converts the status of one request of a stream. */
export function fromStatus({ code, message, details }: Status): ParleyError {
  const decoded = details.flatMap(({ typeUrl, value }) => {
    const type = detailTypes.find(({ $type }) => typeUrl.endsWith(`/${$type}`));
    return type ? [type.decode(value)] : [];
  });
  return fromDetails(code, message, statusDetails(decoded));
}

function statusDetails(extra: ErrorDetails[]): StatusDetails {
  const info = find(extra, "google.rpc.ErrorInfo");
  const delay = find(extra, "google.rpc.RetryInfo")?.retryDelay;
  return {
    ...(info ? { info } : {}),
    fieldViolations: find(extra, "google.rpc.BadRequest")?.fieldViolations ?? [],
    retryDelay: delay && delay.seconds * 1e3 + delay.nanos / 1e6,
  };
}

function find<T extends ErrorDetails["$type"]>(
  details: ErrorDetails[],
  type: T,
): Extract<ErrorDetails, { $type: T }> | undefined {
  return details.find((d): d is Extract<ErrorDetails, { $type: T }> => d.$type === type);
}
