import {
  ChangeKind,
  type Client,
  type Conversation,
  type ConversationChange,
  type ConversationEntry,
  type ListConversationsResponse,
  ListOrder,
} from "@parleyhq/client/web";

/** The number of conversations of one page. */
const pageSize = 100;

/** Pages that are read again at most when conversations have changed that are not loaded. */
const topPages = 3;

/** Conversations that are remembered at most because the top of the list does not have them. */
const maxMissing = 10_000;

/** The length of a preview, in characters; as in ConversationEntry.preview. */
const previewLength = 120;

/** What the list shows. Empty fields show everything. */
export interface Filter {
  readonly order: ListOrder;
  /** A part of an id or of a title, in any case. */
  readonly text: string;
  readonly label: readonly [name: string, value: string] | undefined;
  readonly agent: string;
  readonly dataType: string;
}

/**
 * The loaded part of the list of conversations. The server filters by all but the agent, which is compared here, in the
 * conversations that are loaded. Changes update the list without reading it again.
 */
export class ConversationList {
  /** The conversations that match, in their order. */
  matches: ConversationEntry[] = [];
  /** The conversations of the tenant, whether they match or not; undefined until the first page has arrived. */
  total: number | undefined;
  readonly #client: Client;
  readonly #filter: Filter;
  readonly #signal: AbortSignal;
  readonly #entries = new Map<string, ConversationEntry>();
  /** The token of the next page; undefined if the last page is loaded. */
  #next: string | undefined = "";
  /** Conversations on no loaded page that have changed since the top was read, with the times of their last changes. */
  readonly #unknown = new Map<string, number>();
  /**
   * Conversations that have changed and that the server did not list at the top: they do not match. Messages do not
   * change that, so they are not looked for again until their headers change.
   */
  readonly #missing = new Set<string>();
  /** Conversations that have ended while pages are read: the pages may still have them. */
  readonly #ended = new Set<string>();
  /** Conversations whose headers have changed while pages are read: the pages may be older. */
  readonly #updated = new Set<string>();
  /** The agents that have answered in each conversation, if the list is filtered by agent. */
  readonly #agents = new Map<string, Set<string>>();
  #reads = 0;

  constructor(client: Client, filter: Filter, signal: AbortSignal) {
    this.#client = client;
    this.#filter = filter;
    this.#signal = signal;
  }

  /** All conversations are loaded. */
  get isComplete(): boolean {
    return this.#next === undefined;
  }

  /** Loads the next page. */
  loadPage(): Promise<void> {
    return this.#reading(async () => {
      if (this.#next === undefined) {
        return;
      }
      const page = await this.#read(this.#next);
      this.#next = page.nextPageToken || undefined;
      for (const entry of page.conversations) {
        const id = entry.conversation!.id;
        // A change may have added it, or reported its end, before its page has arrived.
        if (!this.#entries.has(id) && !this.#ended.has(id)) {
          this.#entries.set(id, entry);
          if (this.#isMatch(entry)) {
            this.matches.push(entry);
          }
        }
      }
    });
  }

  /** Conversations on no loaded page have changed, which {@link loadTop} would read. */
  get isTopOld(): boolean {
    return this.#unknown.size > 0;
  }

  /** Reads the first pages again, until they have the conversations that have changed and are not loaded. */
  loadTop(): Promise<void> {
    return this.#reading(async () => {
      const unknown = new Map(this.#unknown);
      this.#unknown.clear();
      let token = "";
      let oldest = 0;
      for (let page = 0; page < topPages && unknown.size > 0; page++) {
        const { conversations, nextPageToken } = await this.#read(token);
        for (const entry of conversations) {
          const { id, version } = entry.conversation!;
          const old = this.#entries.get(id);
          // Those that are loaded follow the changes. What may be missing is their newest message.
          if (unknown.delete(id) && !old?.preview && !this.#ended.has(id)) {
            this.#put(
              old?.conversation?.version === version ? { ...old, preview: entry.preview } : entry,
              true,
            );
          }
        }
        token = nextPageToken;
        const last = conversations.at(-1)?.conversation;
        oldest = last ? this.#timeOf(last) : oldest;
        if (token === "") {
          break;
        }
      }
      for (const [id, time] of unknown) {
        // If all that was read has changed later, the conversation may follow on the next page.
        if (token === "" || time >= oldest) {
          this.#noteMissing(id);
        }
      }
    });
  }

  #noteMissing(id: string): void {
    if (this.#unknown.has(id) || this.#updated.has(id)) {
      return; // It has changed while the pages were read.
    }
    this.#missing.add(id);
    const first = this.#missing.values().next().value;
    if (this.#missing.size > maxMissing && first !== undefined) {
      this.#missing.delete(first);
    }
  }

  async #read(pageToken: string): Promise<ListConversationsResponse> {
    const { text, label, dataType, order } = this.#filter;
    const page = await this.#client.listConversations(
      {
        pageSize,
        pageToken,
        order,
        text,
        structuredDataType: dataType,
        ...(label ? { labels: { [label[0]]: label[1] } } : {}),
      },
      { signal: this.#signal },
    );
    this.total = page.totalSize;
    if (this.#filter.agent !== "" && page.conversations.length > 0) {
      await this.#readAgents(page.conversations.map(({ conversation }) => conversation!.id));
    }
    return page;
  }

  /** Reads which agents have answered: the headers of conversations do not say so. */
  async #readAgents(conversationIds: string[]): Promise<void> {
    const { summaries } = await this.#client.batchGetRoutingSummaries(
      { conversationIds, messageLimit: 0, maxBytes: 1 },
      { signal: this.#signal },
    );
    for (const { conversationId, recentAgents } of summaries) {
      for (const { agent } of recentAgents) {
        this.#addAgent(conversationId, agent);
      }
    }
  }

  #addAgent(conversationId: string, agent: string): void {
    const agents = this.#agents.get(conversationId) ?? new Set();
    this.#agents.set(conversationId, agents.add(agent));
  }

  /** Runs a task that reads pages. The ends of conversations are remembered until it has ended. */
  async #reading(task: () => Promise<void>): Promise<void> {
    this.#reads++;
    try {
      await task();
    } finally {
      this.#reads--;
      if (this.#reads === 0) {
        this.#ended.clear();
        this.#updated.clear();
      }
    }
  }

  /** Applies a change. Returns whether the list differs from before. */
  apply(change: ConversationChange): boolean {
    const id = change.conversationId;
    if (headerOf(change)) {
      this.#missing.delete(id);
      if (this.#reads > 0) {
        this.#updated.add(id);
      }
    }
    switch (change.kind) {
      case ChangeKind.CHANGE_KIND_CREATED:
        this.#ended.delete(id);
        if (!this.#entries.has(id)) {
          this.total = (this.total ?? 0) + 1;
        }
        if (headerOf(change)!.messageCount > 0 && this.#addUnknown(change)) {
          return true; // A fork or an import, whose messages are not sent.
        }
        return this.#put({ conversation: headerOf(change)!, preview: "" });
      case ChangeKind.CHANGE_KIND_DELETED:
      case ChangeKind.CHANGE_KIND_EXPIRED:
      case ChangeKind.CHANGE_KIND_EVICTED:
        this.total = Math.max(0, (this.total ?? 0) - 1);
        this.#unknown.delete(id);
        this.#missing.delete(id);
        if (this.#reads > 0) {
          this.#ended.add(id);
        }
        this.#remove(id);
        return true;
    }
    const entry = this.#entries.get(id);
    const header = headerOf(change) ?? advanced(entry?.conversation, change);
    if (!header) {
      this.#noteUnknown(change);
      return false;
    }
    const message = change.payload?.$case === "message" ? change.payload.value : undefined;
    if (message && this.#filter.agent !== "") {
      this.#addAgent(id, message.agent);
    }
    const preview = message ? Array.from(message.content).slice(0, previewLength).join("") : entry?.preview;
    const isChanged = this.#put({ conversation: header, preview: preview ?? "" });
    if (isChanged && preview === undefined && header.messageCount > 0) {
      this.#addUnknown(change); // Its newest message is not known.
    }
    return isChanged;
  }

  /** A conversation on no loaded page has changed. In the order of changes it belongs to the top if it matches. */
  #noteUnknown(change: ConversationChange): void {
    const isAppended = change.kind === ChangeKind.CHANGE_KIND_MESSAGE_APPENDED;
    if (
      isAppended &&
      this.#isByUpdate &&
      (!this.#missing.has(change.conversationId) || this.#hasType(change))
    ) {
      this.#addUnknown(change);
    }
  }

  /** Returns false if as many conversations are unknown as {@link loadTop} reads. */
  #addUnknown({ conversationId, time }: ConversationChange): boolean {
    const isKept = this.#unknown.size < topPages * pageSize;
    if (isKept) {
      this.#unknown.set(conversationId, time?.getTime() ?? 0);
    }
    return isKept;
  }

  /** Reports whether a message has data of the type that the list is filtered by: its conversation may match now. */
  #hasType({ payload }: ConversationChange): boolean {
    const { dataType } = this.#filter;
    return (
      dataType !== "" &&
      payload?.$case === "message" &&
      payload.value.structuredData.some(({ type }) => type === dataType)
    );
  }

  get #isByUpdate(): boolean {
    return this.#filter.order === ListOrder.LIST_ORDER_UPDATE_TIME_DESC;
  }

  /** Adds or replaces an entry. isListed says that the server has listed it, so it matches the server's filter. */
  #put(entry: ConversationEntry, isListed = false): boolean {
    const header = entry.conversation!;
    const old = this.#entries.get(header.id);
    const isOld = old !== undefined && old.conversation!.version > header.version;
    if (isOld || (!old && !isListed && this.#filter.dataType !== "")) {
      return false;
    }
    this.#entries.set(header.id, entry);
    const at = old ? this.matches.indexOf(old) : -1;
    if (at >= 0 && !this.#isByUpdate) {
      this.matches[at] = entry;
      return true;
    }
    if (at >= 0) {
      this.matches.splice(at, 1);
    }
    if (this.#isMatch(entry)) {
      this.matches.splice(this.#place(header), 0, entry);
    }
    return true;
  }

  /** Returns the index at which a conversation belongs. */
  #place(header: Conversation): number {
    const time = this.#timeOf(header);
    const at = this.matches.findIndex(({ conversation }) => this.#timeOf(conversation!) <= time);
    return at < 0 ? this.matches.length : at;
  }

  #timeOf({ createTime, updateTime }: Conversation): number {
    return (this.#isByUpdate ? updateTime : createTime)?.getTime() ?? 0;
  }

  #remove(id: string): void {
    const entry = this.#entries.get(id);
    const at = entry ? this.matches.indexOf(entry) : -1;
    this.#entries.delete(id);
    this.#agents.delete(id);
    if (at >= 0) {
      this.matches.splice(at, 1);
    }
  }

  #isMatch({ conversation }: ConversationEntry): boolean {
    const { text, agent, label } = this.#filter;
    const { id, title, agent: own, activeAgent, labels } = conversation!;
    const lower = text.toLowerCase();
    return (
      (lower === "" || id.toLowerCase().includes(lower) || title.toLowerCase().includes(lower)) &&
      (!label || labels[label[0]] === label[1]) &&
      (agent === "" ||
        own === agent ||
        activeAgent?.agent === agent ||
        this.#agents.get(id)?.has(agent) === true)
    );
  }
}

/** Returns the header that a change contains, if any. */
export function headerOf({ payload }: ConversationChange): Conversation | undefined {
  if (payload?.$case === "conversation") {
    return payload.value;
  }
  const event = payload?.$case === "turnEvent" ? payload.value.event : undefined;
  return event?.$case === "started" ? event.value.conversation : undefined;
}

/** Returns a header after a change that contains no header, or undefined if the header is not known. */
function advanced(header: Conversation | undefined, change: ConversationChange): Conversation | undefined {
  const { payload, time } = change;
  if (!header) {
    return undefined;
  }
  if (payload?.$case === "message") {
    const { sequence } = payload.value;
    const added = Math.max(0, sequence - header.lastSequence);
    const ttl =
      header.expireTime && header.lastAppendTime && time
        ? new Date(time.getTime() + header.expireTime.getTime() - header.lastAppendTime.getTime())
        : header.expireTime;
    const { maxMessages = 0, keepAll = false } = header.retention ?? {};
    const kept = header.messageCount + added;
    return {
      ...header,
      version: change.version,
      lastSequence: Math.max(sequence, header.lastSequence),
      messageCount: keepAll || maxMessages === 0 ? kept : Math.min(kept, maxMessages),
      updateTime: time,
      lastAppendTime: time,
      expireTime: ttl,
    };
  }
  const turn = payload?.$case === "turnEvent" ? payload.value : undefined;
  // A turn may also end in the queue, while another one runs.
  const isEnd = turn?.event?.$case === "finished" && turn.turnId === header.activeTurnId;
  return isEnd ? { ...header, activeTurnId: "" } : header;
}
