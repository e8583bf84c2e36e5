import {
  AdminServiceDefinition,
  ConversationServiceDefinition,
  InteractionLogServiceDefinition,
} from "./gen/index.parley.v1.js";

/** A service as the generated code describes it. */
interface Definition {
  readonly fullName: string;
  readonly methods: Readonly<
    Record<string, { readonly name: string; readonly requestType: { fromPartial(object: object): object } }>
  >;
}

/** The services that a client calls. */
const services: readonly Definition[] = [
  ConversationServiceDefinition,
  InteractionLogServiceDefinition,
  AdminServiceDefinition,
];

/** Sent once: neither do they only read nor has their request a requestId. */
const sentOnce: ReadonlySet<string> = new Set([
  "UpdateConversation",
  "DeleteConversation",
  "ClearConversation",
  "PurgeConversations",
  "SetActiveAgent",
  "ImportConversations",
  "DeleteInteractions",
]);

/** The methods whose request has a requestId, by their path. */
export function carriesRequestID(): ReadonlySet<string> {
  const paths = services.flatMap(({ fullName, methods }) =>
    Object.values(methods)
      .filter(({ requestType }) => "requestId" in requestType.fromPartial({}))
      .map(({ name }) => `/${fullName}/${name}`),
  );
  return new Set(paths);
}

/** Which calls gRPC sends again, and when: the same for all clients of Parley. */
export function serviceConfig() {
  return {
    methodConfig: [
      {
        name: services.flatMap(({ fullName: service, methods }) =>
          Object.values(methods)
            .filter(({ name }) => !sentOnce.has(name))
            .map(({ name: method }) => ({ service, method })),
        ),
        retryPolicy: {
          maxAttempts: 5,
          initialBackoff: "0.1s",
          maxBackoff: "1s",
          backoffMultiplier: 2,
          retryableStatusCodes: ["UNAVAILABLE"],
        },
      },
    ],
  };
}
