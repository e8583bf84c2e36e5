/**
 * The TypeScript client of Parley over fetch and server-sent events, for browsers, edge and workers. It has the same
 * API as the client of the main entry, except for the target and the options of {@link Client}. Every message of the
 * API is the type of a plain object. Start at {@link Client}.
 */
export { Appender } from "../appender.js";
export {
  type Code,
  type FieldViolation,
  ParleyError,
  type ParleyErrorDetails,
  RevisionMismatchError,
} from "../errors.js";
export { ChangeKind, ListOrder, MessageStatus, OnBusy, OnDisconnect, Role, TurnState } from "../gen/enums.js";
export type * from "../gen/index.parley.v1.js";
export type { Input } from "../input.js";
export {
  type JSONRecord,
  jsonValue,
  jsonWrite,
  type ListFields,
  type PutFields,
  type RecordCalls,
  Records,
  type WriteFields,
} from "../records.js";
export type { Token } from "../token.js";
export { Client } from "./client.js";
export { type CallOptions, type ClientOptions, Metadata } from "./options.js";
