import { type Message, Role, type ToolCall } from "@parleyhq/client/web";

/** A tool call with its result. */
export interface Call {
  readonly call: ToolCall;
  readonly result?: Message | undefined;
  /** The call has no result and may still get one; see ToolResult.call_id. */
  readonly isOpen: boolean;
}

/** Returns the calls of each message by its sequence, with their results. The messages are in their order. */
export function pairCalls(messages: readonly Message[]): Map<number, Call[]> {
  const calls = new Map<number, Call[]>();
  const newest = new Map<string, Call[]>(); // the calls of the newest message that has a call with this id
  for (const message of messages) {
    const { toolCalls, toolResult, sequence } = message;
    if (toolCalls.length > 0) {
      const own = toolCalls.map((call): Call => ({ call, isOpen: true }));
      calls.set(sequence, own);
      for (const { call } of own) {
        for (const [index, old] of (newest.get(call.id) ?? []).entries()) {
          if (old.call.id === call.id && old.isOpen) {
            newest.get(call.id)![index] = { ...old, isOpen: false };
          }
        }
        newest.set(call.id, own);
      }
    }
    if (message.role === Role.ROLE_TOOL && toolResult) {
      const own = newest.get(toolResult.callId);
      const index = own?.findIndex(({ call, isOpen }) => call.id === toolResult.callId && isOpen) ?? -1;
      if (own && index >= 0) {
        own[index] = { ...own[index]!, result: message, isOpen: false };
      }
    }
  }
  return calls;
}
