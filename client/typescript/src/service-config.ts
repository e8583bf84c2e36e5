import { retryPolicy, sentOnce } from "./methods.js";
import { services } from "./services.js";

/** Returns the retry settings of gRPC. They are the same in all clients of Parley. */
export function serviceConfig() {
  const { initialBackoff, maxBackoff, ...counts } = retryPolicy;
  return {
    methodConfig: [
      {
        name: services.flatMap(({ fullName: service, methods }) =>
          Object.values(methods)
            .filter(({ name }) => !sentOnce.has(name))
            .map(({ name: method }) => ({ service, method })),
        ),
        retryPolicy: {
          ...counts,
          initialBackoff: `${initialBackoff}s`,
          maxBackoff: `${maxBackoff}s`,
          retryableStatusCodes: ["UNAVAILABLE"],
        },
      },
    ],
  };
}
