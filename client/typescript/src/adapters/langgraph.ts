/**
 * LangGraph: a checkpointer and a store that keep their data in Parley. With {@link ParleySaver}, the state of a
 * graph survives a restart, and the graph resumes from any checkpoint. {@link ParleyStore} is the long-term memory
 * that threads share. Start at {@link ParleySaver}.
 */
export { ParleySaver, type ParleySaverOptions } from "./langgraph/saver.js";
export { ParleyStore, type ParleyStoreOptions } from "./langgraph/store.js";
export type { Server } from "./server.js";
