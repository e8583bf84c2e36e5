/**
 * The TypeScript client of Parley. {@link Client} calls a server. {@link Agent} is the base class of
 * your own agents, and {@link serve} serves them. Every message of the API is the type of a plain
 * object. Start at {@link Client}.
 */
export { type CallOptions, ChannelCredentials, type ChannelOptions, Metadata } from "nice-grpc";
export { conversationId, recordKey } from "./adapters/ids.js";
export {
  Agent,
  AgentError,
  type AgentServer,
  type Answering,
  type Piece,
  type ServeOptions,
  serve,
} from "./agent.js";
export { Appender } from "./appender.js";
export { Client } from "./client.js";
export {
  type Code,
  type FieldViolation,
  ParleyError,
  type ParleyErrorDetails,
  RevisionMismatchError,
} from "./errors.js";
export * from "./gen/index.parley.v1.js";
export type { Input } from "./input.js";
export type { ClientOptions } from "./options.js";
export {
  type JSONRecord,
  jsonValue,
  jsonWrite,
  type ListFields,
  type PutFields,
  type RecordCalls,
  Records,
  type WriteFields,
} from "./records.js";
export type { Token } from "./token.js";
