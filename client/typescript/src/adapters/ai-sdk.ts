/**
 * A transport for chats of the AI SDK whose conversations Parley stores. Start at {@link ParleyChatTransport}.
 *
 * A chat is a conversation, an answer is a turn. The turn runs on the server without the page, so a page that is
 * loaded again resumes it.
 */
import type { ChatRequest, Input, Message, RecordWrite, Retention, TurnEvent } from "@parleyhq/client";
import type { ChatTransport, UIMessage, UIMessageChunk } from "ai";

import { newID } from "../web/id.js";
import { TurnChunks } from "./ai-sdk/chunks.js";
import { failure, orMissing, type TransportClient } from "./ai-sdk/client.js";
import {
  answerParts,
  groups,
  isStoredAs,
  messageKey,
  openResults,
  packed,
  recordKeys,
  recordPrefix,
  unpacked,
} from "./ai-sdk/messages.js";
import { conversationId } from "./ids.js";
import { kept } from "./kept.js";

export type { TransportClient } from "./ai-sdk/client.js";

/** The limits of the API on records in a call and messages on a page. */
const maxWrites = 100;
const maxPage = 1000;
/** Messages on a page when only the newest are needed. */
const tailPage = 20;
/** The records of one call. A request has at most 4 MiB, in which the client for browsers encodes them as base64. */
const maxBatchBytes = 2 << 20;

type SendOptions<UI_MESSAGE extends UIMessage> = Parameters<ChatTransport<UI_MESSAGE>["sendMessages"]>[0];
type ReconnectOptions<UI_MESSAGE extends UIMessage> = Parameters<
  ChatTransport<UI_MESSAGE>["reconnectToStream"]
>[0];

/** The fields of a request that a program may set. */
export type ChatFields = Pick<
  Input<ChatRequest>,
  "agent" | "systemPrompt" | "onBusy" | "window" | "metadata" | "createWith"
>;

/** The options of a {@link ParleyChatTransport}. */
export interface ParleyChatTransportOptions<UI_MESSAGE extends UIMessage = UIMessage> {
  /** A client of `@parleyhq/client`, or in a browser of `@parleyhq/client/web`. The transport does not close it. */
  readonly client: TransportClient;
  /**
   * What a stop of the chat, which aborts the signal of a request, does with the turn: "cancel", the default,
   * cancels it and stores what has arrived of the answer. With "leave" the turn continues, and
   * {@link ParleyChatTransport.cancel} cancels it. useChat also stops the chat when its component is removed.
   */
  readonly onStop?: "cancel" | "leave" | undefined;
  /**
   * Returns fields for the request of a message, such as the agent. It gets the options of the request: its body,
   * headers and metadata have no other effect. By default a message that is sent while a turn runs waits for that
   * turn (ON_BUSY_QUEUE).
   */
  readonly prepareChatRequest?:
    | ((options: SendOptions<UI_MESSAGE>) => ChatFields | PromiseLike<ChatFields>)
    | undefined;
  /** Returns the metadata of an answer for the stored messages that it consists of. By default it has none. */
  readonly messageMetadata?:
    | ((messages: readonly Message[]) => UI_MESSAGE["metadata"] | undefined)
    | undefined;
  /** The retention of the conversations that the transport creates. Without one, nothing is lost until deletion. */
  readonly retention?: Input<Retention> | undefined;
}

/** What all transports of a client know of their chats, because a component may make a transport again and again. */
interface Known {
  /** The newest call of reconnectToStream of each chat, while it streams. */
  readonly resuming: Map<string, { isReplaced: boolean }>;
  /** The turn that ran when a chat was loaded or lost its connection, until the chat has read its end. */
  readonly running: Map<string, string>;
}

const known = new WeakMap<object, Known>();
/** How many chats may have such a turn; the oldest are forgotten. */
const maxRunning = 1000;

/**
 * The transport of chats, for `useChat({ transport })` and `new Chat({ transport })`. The conversation of a chat
 * has the id `conversationId(chatId)`. It is the authority: a chat sends its newest message, not its history.
 *
 * - A submitted message is stored with the turn that answers it, once for each id. A message that replaces another
 *   one also removes what follows that.
 * - A regeneration removes what follows the user's message, and answers the message again.
 * - Outputs that the page adds to the calls of tools are sent as their results; the turn continues the message.
 * - A reload, a closed page or a lost connection does not end the turn.
 *
 * An answer has the id of its turn as the id of its message, in the stream and in {@link loadMessages}. Methods
 * throw the ParleyError of the client.
 */
export class ParleyChatTransport<UI_MESSAGE extends UIMessage = UIMessage>
  implements ChatTransport<UI_MESSAGE>
{
  /** A resumed stream has the whole answer. */
  readonly resumeStreamIsReplay = true;
  readonly #client: TransportClient;
  readonly #onStop: "cancel" | "leave";
  readonly #prepareChatRequest: ParleyChatTransportOptions<UI_MESSAGE>["prepareChatRequest"];
  readonly #messageMetadata: ParleyChatTransportOptions<UI_MESSAGE>["messageMetadata"];
  readonly #retention: Input<Retention>;
  readonly #known: Known;

  constructor(options: ParleyChatTransportOptions<UI_MESSAGE>) {
    const { client, onStop = "cancel", prepareChatRequest, messageMetadata, retention = kept } = options;
    this.#client = client;
    this.#onStop = onStop;
    this.#prepareChatRequest = prepareChatRequest;
    this.#messageMetadata = messageMetadata;
    this.#retention = retention;
    this.#known = known.get(client) ?? { resuming: new Map(), running: new Map() };
    known.set(client, this.#known);
  }

  /** Returns the messages of a chat, oldest first; none if there is no such conversation. */
  async loadMessages(chatId: string): Promise<UI_MESSAGE[]> {
    const id = conversationId(chatId);
    const messages: Message[] = [];
    let running = "";
    let pageToken = "";
    do {
      const request = { conversationId: id, ascending: true, pageSize: maxPage, pageToken };
      const page = await orMissing(this.#client.listMessages(request));
      messages.push(...(page?.messages ?? []));
      running ||= page?.conversation?.activeTurnId ?? "";
      pageToken = page?.nextPageToken ?? "";
    } while (pageToken);
    this.#setRunning(chatId, running);
    const values = await this.#values(id, messages);
    return groups(messages).map((group) => {
      const message = unpacked(group, values);
      const metadata = message.role === "assistant" ? this.#messageMetadata?.(group) : undefined;
      return (metadata === undefined ? message : { ...message, metadata }) as UI_MESSAGE;
    });
  }

  /** Sends the newest message, or answers one again, and returns the answer. Called by the chat. */
  async sendMessages(options: SendOptions<UI_MESSAGE>): Promise<ReadableStream<UIMessageChunk>> {
    const { trigger, chatId, messageId, messages, abortSignal } = options;
    abortSignal?.throwIfAborted();
    const id = conversationId(chatId);
    const last = messages.at(-1);
    if (!last || last.role === "system" || (last.role === "assistant" && trigger !== "submit-message")) {
      throw new Error("The chat has no message of the user that can be answered.");
    }
    this.#setRunning(chatId, "");
    const prepared = (await this.#prepareChatRequest?.(options)) ?? {};
    const { metadata, createWith = { retention: this.#retention }, ...fields } = prepared;
    const isNew = trigger === "submit-message" && messageId === undefined;
    let request: Input<ChatRequest> = { answerPending: true };
    if (last.role === "assistant") {
      request = await this.#results(id, last);
    } else if (isNew || !(await this.#rewind(id, last, trigger === "submit-message", metadata))) {
      request = await this.#submission(id, messages, createWith);
    }
    abortSignal?.throwIfAborted();
    const chat: Input<ChatRequest> = {
      onBusy: "ON_BUSY_QUEUE",
      createWith,
      ...fields,
      ...request,
      metadata: { ...metadata, ...request.metadata },
      conversationId: id,
    };
    const continued = last.role === "assistant" ? last.id : undefined;
    return await this.#stream({
      chatId,
      open: (signal) => this.#client.chat(chat, { signal }),
      chunks: new TurnChunks(continued, [], this.#messageMetadata),
      abortSignal,
      isStop: () => true,
    });
  }

  /**
   * Returns the answer that is being written, from its beginning, or null if there is none. It also returns an
   * answer that was being written when {@link loadMessages} was called, or when the connection was lost, and has ended
   * since. Called by the chat.
   */
  async reconnectToStream(
    options: ReconnectOptions<UI_MESSAGE>,
  ): Promise<ReadableStream<UIMessageChunk> | null> {
    const { chatId, abortSignal } = options;
    // A chat aborts a call when it makes the next one. That is no stop.
    const { resuming } = this.#known;
    const call = { isReplaced: false };
    const previous = resuming.get(chatId);
    if (previous) {
      previous.isReplaced = true;
    }
    resuming.set(chatId, call);
    const release = () => resuming.get(chatId) === call && resuming.delete(chatId);
    try {
      const id = conversationId(chatId);
      const { running, messages } = await this.#tail(id);
      const turnId = running || this.#known.running.get(chatId);
      if (!turnId) {
        release();
        return null;
      }
      // Until its end is read, another call can resume the turn: this one may fail, or be replaced.
      this.#setRunning(chatId, turnId);
      const { turn } = await this.#client.getTurn({ conversationId: id, turnId });
      const before = messages.filter(({ sequence }) => sequence <= turn!.inputSequence);
      // A turn that answers results of tools continues the message that has their calls.
      const group = before.at(-1)?.role === "ROLE_TOOL" ? groups(before).at(-1)! : [];
      return await this.#stream({
        chatId,
        open: (signal) => this.#client.resumeTurn({ conversationId: id, turnId }, { signal }),
        chunks: new TurnChunks(
          group[0] && (group[0].turnId || group[0].id),
          answerParts(group),
          this.#messageMetadata,
        ),
        abortSignal,
        isStop: () => !call.isReplaced,
        // A replaced call does not know whether its replacement has already resumed the turn.
        onEnd: () =>
          !call.isReplaced && this.#known.running.get(chatId) === turnId && this.#setRunning(chatId, ""),
        release,
      });
    } catch (error) {
      release();
      if (failure(error).code === "NOT_FOUND") {
        this.#setRunning(chatId, ""); // The conversation was deleted, or the server no longer has the turn.
        return null;
      }
      throw error;
    }
  }

  /** Cancels the turn of a chat that runs, if there is one. What has arrived of the answer is stored. */
  async cancel(chatId: string): Promise<void> {
    const id = conversationId(chatId);
    const page = await orMissing(this.#client.listMessages({ conversationId: id, pageSize: 1 }));
    const turnId = page?.conversation?.activeTurnId;
    if (turnId) {
      await this.#client.cancelTurn({ conversationId: id, turnId });
    }
  }

  #setRunning(chatId: string, turnId: string): void {
    const { running } = this.#known;
    running.delete(chatId);
    if (turnId) {
      running.set(chatId, turnId);
    }
    for (const oldest of [...running.keys()].slice(0, -maxRunning)) {
      running.delete(oldest);
    }
  }

  /** Returns the newest messages back to the last one of the user, oldest first, and the turn that runs. */
  async #tail(id: string): Promise<{ running: string; messages: Message[] }> {
    const messages: Message[] = [];
    let running: string | undefined;
    let pageToken = "";
    do {
      const request = { conversationId: id, pageSize: tailPage, pageToken };
      const page = await orMissing(this.#client.listMessages(request));
      running ??= page?.conversation?.activeTurnId ?? "";
      messages.unshift(...(page?.messages ?? []).reverse());
      pageToken = page?.nextPageToken ?? "";
    } while (pageToken && !messages.some(({ role }) => role === "ROLE_USER"));
    return { running, messages };
  }

  /** Returns the values of the records that messages have. */
  async #values(id: string, messages: readonly Message[]): Promise<Map<string, Uint8Array>> {
    const values = new Map<string, Uint8Array>();
    if (!messages.some((message) => recordKeys(message).length > 0)) {
      return values;
    }
    let pageToken = "";
    do {
      const request = { conversationId: id, prefix: recordPrefix, pageSize: maxPage, pageToken };
      const page = await this.#client.listRecords(request);
      for (const { key, value } of page.records) {
        values.set(key, value);
      }
      pageToken = page.nextPageToken;
    } while (pageToken);
    return values;
  }

  /** Returns the request for a new message, with the outputs of tools that the answer before it has got. */
  async #submission(
    id: string,
    messages: readonly UIMessage[],
    createWith: ChatFields["createWith"],
  ): Promise<Input<ChatRequest>> {
    const message = messages.at(-1)!;
    const answer = messages.at(-2);
    const { fields, records } = packed(message);
    const hasOutputs = answer?.role === "assistant" && lastStepHasOutputs(answer);
    const { results } = hasOutputs ? openResults((await this.#tail(id)).messages, answer) : { results: [] };
    return {
      ...fields,
      toolResults: results,
      records: await this.#staged(id, records, createWith),
      requestId: messageKey(message),
    };
  }

  /** Returns the request with the outputs that the page has added to the calls of an answer. */
  async #results(id: string, answer: UIMessage): Promise<Input<ChatRequest>> {
    const { messages } = await this.#tail(id);
    const { results, sequence } = openResults(messages, answer);
    if (results.length === 0) {
      return { answerPending: true }; // The agent has run the tools itself, and is to continue.
    }
    const calls = results.map(({ callId }) => callId!);
    return { toolResults: results, requestId: conversationId("ai-sdk", String(sequence), ...calls) };
  }

  /**
   * Removes what follows a message of the user, after it has cancelled the turn that runs. With replaces, the
   * message itself is replaced. Returns false, and changes nothing, if the message is not stored.
   */
  async #rewind(
    id: string,
    message: UIMessage,
    replaces: boolean,
    metadata: Input<ChatRequest>["metadata"],
  ): Promise<boolean> {
    let found = await this.#find(id, message);
    // The records of the message that is replaced stay as they are until the commit, so these have a name of their own.
    const replacement = found && replaces ? packed(message, `${messageKey(message)}/${newID()}`) : undefined;
    const staged = await this.#staged(id, replacement?.records ?? []);
    const fields = replacement?.fields;
    const messages = fields
      ? [{ ...fields, metadata: { ...metadata, ...fields.metadata }, role: "ROLE_USER" as const }]
      : [];
    for (; found; found = await this.#find(id, message)) {
      const { version, stored, following } = found;
      const removed = replaces ? [stored, ...following] : following;
      const deletions = removed.flatMap(recordKeys).map((key) => ({ key, delete: true }));
      const request = {
        conversationId: id,
        ifVersion: version,
        messages,
        replaceAfterSequence: replaces ? stored.sequence - 1 : stored.sequence,
        records: [...staged, ...deletions.splice(0, maxWrites - staged.length)],
      };
      try {
        await this.#client.appendMessages(request);
        await this.#write(id, deletions);
        return true;
      } catch (error) {
        const { reason, metadata } = failure(error);
        if (reason === "CONVERSATION_BUSY") {
          await this.#client.cancelTurn({ conversationId: id, turnId: metadata!["active_turn_id"]! });
        } else if (reason !== "VERSION_MISMATCH") {
          throw error;
        }
      }
    }
    return false;
  }

  /** Returns the newest stored message that is this message of the user, and the messages after it. */
  async #find(
    id: string,
    message: UIMessage,
  ): Promise<{ version: number; stored: Message; following: Message[] } | undefined> {
    const following: Message[] = [];
    let pageToken = "";
    do {
      const pageSize = pageToken ? maxPage : tailPage;
      const page = await orMissing(this.#client.listMessages({ conversationId: id, pageSize, pageToken }));
      for (const stored of page?.messages ?? []) {
        if (isStoredAs(stored, message)) {
          return { version: page!.conversation!.version, stored, following };
        }
        following.push(stored);
      }
      pageToken = page?.nextPageToken ?? "";
    } while (pageToken);
    return undefined;
  }

  /**
   * Returns the records that go into the commit of a message: all of them, or none if they are too large for one
   * call. Then they are written here, and no reader sees them before the commit.
   */
  async #staged(
    id: string,
    records: Input<RecordWrite>[],
    createWith?: ChatFields["createWith"],
  ): Promise<Input<RecordWrite>[]> {
    if (records.length <= maxWrites && bytesOf(records) < maxBatchBytes) {
      return records;
    }
    if (createWith) {
      await this.#client.loadConversation({ conversationId: id, messageLimit: 0, createWith });
    }
    await this.#write(id, records);
    return [];
  }

  /** Writes records in as many calls as they need. */
  async #write(id: string, writes: readonly Input<RecordWrite>[]): Promise<void> {
    for (let rest = writes; rest.length > 0; ) {
      let count = 1;
      while (count < Math.min(rest.length, maxWrites) && bytesOf(rest.slice(0, count + 1)) <= maxBatchBytes) {
        count++;
      }
      await this.#client.writeRecords({ conversationId: id, writes: rest.slice(0, count) });
      rest = rest.slice(count);
    }
  }

  /** Opens a turn, waits for its first event, and returns its chunks. */
  async #stream({
    chatId,
    open,
    chunks,
    abortSignal,
    isStop,
    onEnd = () => {},
    release = () => {},
  }: {
    chatId: string;
    open: (signal: AbortSignal) => AsyncIterable<TurnEvent>;
    chunks: TurnChunks;
    abortSignal: AbortSignal | undefined;
    /** Reports, after the signal has aborted, whether the chat was stopped. */
    isStop: () => boolean;
    /** Is called when the end of the turn is read, or when it cannot be read. */
    onEnd?: () => void;
    release?: () => void;
  }): Promise<ReadableStream<UIMessageChunk>> {
    const leaving = new AbortController();
    const done = new AbortController();
    const events = open(leaving.signal)[Symbol.asyncIterator]();
    const first = events.next();
    let turnId = "";
    let isOpen = false;

    const onAbort = async () => {
      await Promise.resolve(); // If the chat resumes, it calls reconnectToStream at once after it has aborted.
      try {
        if (this.#onStop === "cancel" && isStop()) {
          // The turn has an id from its first event on. If that never arrives, there is no turn to cancel.
          turnId ||= (await first).value?.turnId ?? "";
          if (turnId) {
            await this.#client.cancelTurn({ conversationId: conversationId(chatId), turnId });
          }
          if (isOpen) {
            return; // A reader that remains gets the end of the turn.
          }
        }
      } catch {
        // The server cannot be reached, or has refused the message.
      }
      leaving.abort(abortSignal!.reason);
    };
    const aborted = new Promise<never>((_, reject) => {
      const listener = () => {
        void onAbort();
        reject(abortSignal!.reason);
      };
      abortSignal?.addEventListener("abort", listener, { once: true, signal: done.signal });
      if (abortSignal?.aborted) {
        listener();
      }
    });

    const onLost = () => this.#setRunning(chatId, turnId);
    async function* read(begin: IteratorResult<TurnEvent>): AsyncGenerator<UIMessageChunk> {
      try {
        for (let next = begin; !next.done; next = await events.next()) {
          turnId = next.value.turnId;
          yield* chunks.of(next.value);
        }
        onEnd();
      } catch (error) {
        if (failure(error).code !== "UNAVAILABLE") {
          onEnd();
          throw error;
        }
        onLost();
        // By such an error the SDK knows that a connection was lost, and useChat resumes the answer.
        const message = `The network connection to the server was lost: ${(error as Error).message}`;
        throw new TypeError(message, { cause: error });
      } finally {
        done.abort();
        release();
        await events.return?.();
      }
    }

    const chunksOf = read(await Promise.race([first, aborted]));
    isOpen = true;
    return new ReadableStream({
      pull: async (controller) => {
        const { done, value } = await chunksOf.next();
        if (done) {
          controller.close();
        } else {
          controller.enqueue(value);
        }
      },
      cancel: async () => {
        leaving.abort();
        await chunksOf.return(undefined);
      },
    });
  }
}

/** Reports whether the last step of an answer has the output of a tool. */
function lastStepHasOutputs({ parts }: UIMessage): boolean {
  const step = parts.slice(parts.findLastIndex(({ type }) => type === "step-start") + 1);
  return step.some((part) => "toolCallId" in part && part.state.startsWith("output-"));
}

function bytesOf(writes: readonly Input<RecordWrite>[]): number {
  return writes.reduce((sum, { value }) => sum + (value?.length ?? 0), 0);
}
