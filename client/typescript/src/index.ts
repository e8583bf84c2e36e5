/**
 * The contract of Parley in TypeScript: every message as the type of a plain object, every
 * service as a definition for the clients and servers of nice-grpc.
 */
export * from "./gen/index.parley.v1.js";
