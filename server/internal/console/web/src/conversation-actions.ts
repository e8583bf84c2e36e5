import { type Conversation, OnDisconnect, ParleyError } from "@parleyhq/client/web";

import { confirm, notify } from "./dialog.js";
import { button, h } from "./dom.js";
import { go } from "./route.js";
import { errorText, isAbort } from "./session.js";
import { line } from "./text.js";
import type { Context } from "./view.js";

/**
 * Returns the buttons for what the caller may do with a conversation. The one that answers again is hidden until the
 * page knows that a message has no answer.
 */
export function actions({ session }: Context, conversation: Conversation): HTMLElement[] {
  const { client } = session;
  const { id: conversationId, activeTurnId } = conversation;
  const { title } = conversation;
  const named = h("p", {}, title !== "" && [line(title), " · "], line(conversationId, { class: "id" }));
  const save = () =>
    attempt(async () => {
      const path = `/v1/export?includeRecords=true&conversationIds=${encodeURIComponent(conversationId)}`;
      const text = await session.read(path, new AbortController().signal);
      checkExport(text);
      download(`${conversationId}.jsonl`, text);
    });
  const buttons = [button("Export", () => void save())];
  if (!session.mayWrite) {
    return buttons;
  }
  if (activeTurnId) {
    buttons.unshift(
      button("Cancel the turn", () =>
        attempt(async () => {
          await client.cancelTurn({ conversationId, turnId: activeTurnId });
        }),
      ),
    );
  } else {
    buttons.unshift(
      button(
        "Answer again",
        () =>
          attempt(async () => {
            try {
              await startTurn({ session }, { conversationId, answerPending: true });
            } catch (error) {
              const isAnswered = error instanceof ParleyError && error.reason === "NOTHING_TO_ANSWER";
              throw isAnswered
                ? new Error("The newest message has an answer, so no turn was started.")
                : error;
            }
          }),
        {
          class: "answer-again",
          hidden: true,
          title: "Answers the newest message that has no answer, for example after a failed turn",
        },
      ),
    );
  }
  buttons.push(
    button("Fork", () => attempt(() => fork({ session }, conversationId))),
    button(
      "Clear…",
      () =>
        void confirm(
          "Remove all messages?",
          [named, "The conversation stays. New messages continue its sequence numbers."],
          "Clear",
          async () => {
            await client.clearConversation({ conversationId });
          },
        ),
    ),
    button(
      "Delete…",
      async () => {
        const isDeleted = await confirm(
          "Delete this conversation?",
          [named, "Its messages and records are deleted. Its entries in the interaction log stay."],
          "Delete",
          async () => {
            await client.deleteConversation({ conversationId, allowMissing: true });
          },
        );
        if (isDeleted) {
          go({ view: "conversations" });
        }
      },
      { class: "danger" },
    ),
  );
  return buttons;
}

/**
 * Copies a conversation up to a message, or with all messages if that is 0, and opens the copy. Its title says which
 * part of which conversation it continues: the server copies the title as it is.
 */
export async function fork(
  { session }: Pick<Context, "session">,
  conversationId: string,
  atSequence = 0,
): Promise<void> {
  const { conversation } = await session.client.forkConversation({ conversationId, atSequence });
  const { id, title, forkedFrom } = conversation!;
  go({ view: "conversations", id });
  await session.client.updateConversation({
    conversation: { id, title: forkTitle(title || conversationId, forkedFrom?.sequence ?? 0) },
    updateMask: ["title"],
  });
}

/** The longest title that the server accepts, in bytes of UTF-8. */
const maxTitle = 512;

/** Returns the title of a fork. The title of a fork of a fork has one suffix, that of the last fork. */
function forkTitle(title: string, sequence: number): string {
  const suffix = sequence > 0 ? ` (fork at message ${sequence})` : " (fork)";
  const characters = Array.from(title.replace(/ \(fork( at message \d+)?\)$/, ""));
  const size = () => new TextEncoder().encode(characters.join("") + suffix).length;
  while (size() > maxTitle) {
    characters.pop();
  }
  return characters.join("") + suffix;
}

/**
 * Begins a turn and returns when the server has stored its messages. From then on, the turn does not depend on this
 * page: the views follow it by its events. Until then, the server drops it if the stream ends, so the stream stays open.
 * Calls onQueued when the position in the queue changes. Throws an error if the turn ends before it begins.
 */
export async function startTurn(
  { session }: Pick<Context, "session">,
  request: Parameters<Context["session"]["client"]["chat"]>[0],
  onQueued?: (turnId: string, position: number) => void,
): Promise<void> {
  const leaving = new AbortController();
  try {
    const events = session.client.chat(
      { ...request, onDisconnect: OnDisconnect.ON_DISCONNECT_CONTINUE },
      { signal: leaving.signal },
    );
    for await (const { turnId, event } of events) {
      if (event?.$case === "started") {
        return;
      }
      if (event?.$case === "queued") {
        onQueued?.(turnId, event.value.position);
      }
    }
    throw new Error("The turn was cancelled before it began.");
  } finally {
    leaving.abort();
  }
}

/** Runs an action of a button. If it fails, a note says why. */
export async function attempt(action: () => Promise<void>): Promise<void> {
  try {
    await action();
  } catch (error) {
    if (!isAbort(error)) {
      notify(errorText(error));
    }
  }
}

/** Throws the error of an export that has failed after it began: it is the last line. */
function checkExport(text: string): void {
  const last = text.trimEnd().split("\n").at(-1) ?? "";
  if (/^\{\s*"error"\s*:/.test(last)) {
    const { error } = JSON.parse(last) as { error: { message?: string } };
    throw new Error(`The export is not complete, so it was not saved: ${error.message ?? "try again"}`);
  }
}

/** Saves text as a file of the user. Its name has only characters that every system shows as they are. */
function download(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: "application/jsonl" }));
  h("a", { href: url, download: name.replace(/[^\p{L}\p{N}._-]/gu, "_").replace(/^\./, "_") }).click();
  URL.revokeObjectURL(url);
}
