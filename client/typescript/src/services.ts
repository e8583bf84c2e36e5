import {
  AdminServiceDefinition,
  ConversationServiceDefinition,
  InteractionLogServiceDefinition,
  RecordServiceDefinition,
} from "./gen/index.parley.v1.js";
import { resumable } from "./methods.js";
import type { MessageType } from "./request.js";

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

/** A method of the services. */
export interface Method {
  readonly requestType: MessageType;
  /** Its streams resume. */
  readonly isResumable: boolean;
}

/** The methods of the services, by their paths. */
export const methods: ReadonlyMap<string, Method> = new Map(
  services.flatMap(({ fullName, methods }) =>
    Object.values(methods).map(({ name, requestType }) => [
      `/${fullName}/${name}`,
      { requestType: requestType as MessageType, isResumable: resumable.has(name) },
    ]),
  ),
);
