/** The methods that are sent once: they change something, and their requests have no requestId. */
export const sentOnce: ReadonlySet<string> = new Set([
  "UpdateConversation",
  "DeleteConversation",
  "PurgeConversations",
  "SetActiveAgent",
  "ImportConversations",
  "DeleteInteractions",
]);

/** The methods whose streams resume. Their requests can be sent again. */
export const resumable: ReadonlySet<string> = new Set([
  "AppendStream",
  "Chat",
  "ResumeTurn",
  "WatchConversations",
]);

/** The times of the attempts of a call while the server is UNAVAILABLE, in seconds. */
export const retryPolicy = { maxAttempts: 5, initialBackoff: 0.1, maxBackoff: 1, backoffMultiplier: 2 };
