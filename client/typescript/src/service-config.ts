import { services } from "./services.js";

/** The methods that are sent once: they change something, and their requests have no requestId. */
const sentOnce: ReadonlySet<string> = new Set([
  "UpdateConversation",
  "DeleteConversation",
  "PurgeConversations",
  "SetActiveAgent",
  "ImportConversations",
  "DeleteInteractions",
]);

/** Returns the retry settings of gRPC. They are the same in all clients of Parley. */
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
