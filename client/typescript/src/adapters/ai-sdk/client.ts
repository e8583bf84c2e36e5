import type {
  AppendMessagesRequest,
  CancelTurnRequest,
  ChatRequest,
  GetTurnRequest,
  GetTurnResponse,
  Input,
  ListMessagesRequest,
  ListMessagesResponse,
  ListRecordsRequest,
  ListRecordsResponse,
  LoadConversationRequest,
  ResumeTurnRequest,
  TurnEvent,
  WriteRecordsRequest,
} from "@parleyhq/client";

/** The calls that a transport needs. The clients for Node and for browsers have them. */
export interface TransportClient {
  chat(request: Input<ChatRequest>, options: { signal: AbortSignal }): AsyncIterable<TurnEvent>;
  resumeTurn(request: Input<ResumeTurnRequest>, options: { signal: AbortSignal }): AsyncIterable<TurnEvent>;
  getTurn(request: Input<GetTurnRequest>): Promise<GetTurnResponse>;
  cancelTurn(request: Input<CancelTurnRequest>): Promise<unknown>;
  loadConversation(request: Input<LoadConversationRequest>): Promise<unknown>;
  listMessages(request: Input<ListMessagesRequest>): Promise<ListMessagesResponse>;
  appendMessages(request: Input<AppendMessagesRequest>): Promise<unknown>;
  listRecords(request: Input<ListRecordsRequest>): Promise<ListRecordsResponse>;
  writeRecords(request: Input<WriteRecordsRequest>): Promise<unknown>;
}

/** The part of a ParleyError that is the same in all clients. */
interface Failure {
  readonly code?: string;
  readonly reason?: string;
  readonly metadata?: Readonly<{ [key: string]: string }>;
}

/** Returns the fields of the error of a call; the classes of errors differ between the clients. */
export function failure(error: unknown): Failure {
  return error instanceof Error ? (error as Failure) : {};
}

/** Returns undefined instead if the conversation does not exist. */
export async function orMissing<T>(call: Promise<T>): Promise<T | undefined> {
  try {
    return await call;
  } catch (error) {
    if (failure(error).reason === "CONVERSATION_NOT_FOUND") {
      return undefined;
    }
    throw error;
  }
}
