import {
  AdminServiceDefinition,
  ConversationServiceDefinition,
  InteractionLogServiceDefinition,
  RecordServiceDefinition,
} from "./gen/index.parley.v1.js";

/** A message as the generated code describes it. */
export interface MessageType<T = object> {
  fromPartial(object: object): T;
  encode(message: T): { finish(): Uint8Array };
}

/** A service as the generated code describes it. */
export interface Service {
  readonly fullName: string;
  readonly methods: Readonly<
    Record<string, { readonly name: string; readonly requestType: Pick<MessageType, "fromPartial"> }>
  >;
}

/** The services that a client calls. */
export const services: readonly Service[] = [
  ConversationServiceDefinition,
  InteractionLogServiceDefinition,
  AdminServiceDefinition,
  RecordServiceDefinition,
];

/** The paths of the methods whose streams resume. Their requests can be sent again. */
export const resumablePaths: ReadonlySet<string> = new Set(
  ["AppendStream", "Chat", "ResumeTurn", "WatchConversations"].map(
    (method) => `/${ConversationServiceDefinition.fullName}/${method}`,
  ),
);
