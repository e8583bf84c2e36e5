import { services } from "./services.js";

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
