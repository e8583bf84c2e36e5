import { type Message, MessageStatus, Role } from "@parleyhq/client/web";

/** The sizes of the pages that are read. The first one has only the newest message, which usually decides. */
const pageSizes = [1, 20, 200] as const;

/** Reads messages, newest first; an empty token is that of the first page. */
type Read = (
  pageSize: number,
  pageToken: string,
) => Promise<{ messages: readonly Message[]; nextPageToken: string }>;

/**
 * Reports whether a conversation has a message that an agent would answer with answer_pending. It reads the newest 221
 * messages at most. If they do not decide it, the result is true: then the server decides.
 */
export async function hasPending(read: Read): Promise<boolean> {
  const messages: Message[] = [];
  let token = "";
  for (const size of pageSizes) {
    const page = await read(size, token);
    messages.push(...page.messages);
    token = page.nextPageToken;
    const isPending = needsAnswer(messages, token === "");
    if (isPending !== undefined) {
      return isPending;
    }
  }
  return true;
}

/**
 * Reports whether the newest of these messages has no complete answer, as the server decides it: a message of a user, a
 * result that was appended, or one in an answer that is incomplete. The messages are newest first. isAll says that
 * there are no older ones. Returns undefined if older messages decide it.
 */
export function needsAnswer(messages: readonly Message[], isAll: boolean): boolean | undefined {
  let incompleteTurn: string | undefined;
  for (const [index, message] of messages.entries()) {
    const { role, turnId } = message;
    if (role === Role.ROLE_USER) {
      return true;
    }
    if (role === Role.ROLE_TOOL) {
      return (
        turnId === "" || turnId === incompleteTurn || endsIncomplete(messages.slice(index + 1), turnId, isAll)
      );
    }
    if (role === Role.ROLE_ASSISTANT) {
      if (isIncomplete(message)) {
        incompleteTurn = turnId;
      } else if (!incompleteTurn || turnId !== incompleteTurn) {
        return false;
      }
    }
  }
  return isAll ? false : undefined;
}

/** Reports whether the last answer before a result of a turn is incomplete and of the same turn. */
function endsIncomplete(older: readonly Message[], turnId: string, isAll: boolean): boolean | undefined {
  const answer = older.find(({ role }) => role === Role.ROLE_ASSISTANT);
  if (!answer) {
    return isAll ? false : undefined;
  }
  return isIncomplete(answer) && answer.turnId === turnId;
}

function isIncomplete({ status }: Message): boolean {
  return status === MessageStatus.MESSAGE_STATUS_INCOMPLETE;
}
