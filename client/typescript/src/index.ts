/**
 * Parley for TypeScript: {@link Client} talks to a server, {@link Agent} and {@link serve} are for
 * those that answer, and every message of the contract is the type of a plain object.
 */
export { type CallOptions, ChannelCredentials, type ChannelOptions, Metadata } from "nice-grpc";

export {
  Agent,
  AgentError,
  type AgentServer,
  type Answering,
  type Piece,
  type ServeOptions,
  serve,
} from "./agent.js";
export { Client, type ClientOptions } from "./client.js";
export { type Code, type FieldViolation, ParleyError, type ParleyErrorDetails } from "./errors.js";
export * from "./gen/index.parley.v1.js";
export type { Input } from "./input.js";
