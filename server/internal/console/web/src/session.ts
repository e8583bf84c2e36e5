import { Client, ParleyError } from "@parleyhq/client/web";

/** What the server says of the caller; see console.go. */
interface SessionReply {
  readonly signInRequired: boolean;
  readonly readOnly: boolean;
  readonly version?: string;
  readonly caller: Caller | null;
}

/** Who has signed in. The tenant is empty if the caller may see all tenants and has named none. */
export interface Caller {
  readonly name: string;
  readonly role: "reader" | "writer" | "admin";
  readonly tenant: string;
  readonly allTenants: boolean;
}

/** The connection to the server: its client, and what the caller may do. The token is in the memory of the page only. */
export class Session extends EventTarget {
  readonly client: Client;
  readonly caller: Caller;
  readonly version: string;
  readonly signInRequired: boolean;
  readonly #readOnly: boolean;
  readonly #headers: Headers;
  #isLost = false;

  private constructor(reply: SessionReply, caller: Caller, headers: Headers, credential: Credential) {
    super();
    this.caller = caller;
    this.version = reply.version ?? "";
    this.signInRequired = reply.signInRequired;
    this.#readOnly = reply.readOnly;
    this.#headers = headers;
    this.client = new Client(location.origin, {
      ...credential,
      // The user has opened this page, so the network is one that the user trusts.
      ...(location.protocol === "http:" ? { tls: false } : {}),
      fetch: async (input, init) => {
        try {
          const response = await fetch(input, init);
          this.#report(false);
          return response;
        } catch (error) {
          if (!init?.signal?.aborted) {
            this.#report(true);
          }
          throw error;
        }
      },
    });
  }

  /** Signs in. Throws a {@link SignInError} if the server wants a credential, another one, or the name of a tenant. */
  static async open(credential: Credential): Promise<Session> {
    const headers = new Headers();
    if (credential.token) {
      headers.set("authorization", `Bearer ${credential.token}`);
    }
    if (credential.tenant) {
      headers.set("parley-tenant", credential.tenant);
    }
    const response = await fetch("/console/session", { headers, cache: "no-store" }).catch(() => {
      throw new Error("The server cannot be reached. Check that it runs, and try again.");
    });
    if (response.status === 401 || response.status === 403) {
      throw new SignInError(await textOf(response), response.status === 401);
    }
    if (!response.ok) {
      throw new Error(await textOf(response));
    }
    const reply: SessionReply = await response.json();
    if (!reply.caller) {
      throw new SignInError("", true);
    }
    if (!reply.caller.tenant) {
      throw new SignInError("this credential is for all tenants; name the tenant to show", false);
    }
    return new Session(reply, reply.caller, headers, credential);
  }

  /** The caller may change conversations. */
  get mayWrite(): boolean {
    return !this.#readOnly && this.caller.role !== "reader";
  }

  /** The caller may read the statistics, and erase entries of the log. */
  get isAdmin(): boolean {
    return this.caller.role === "admin";
  }

  /** Only buttons that change nothing are shown, as a setting of the server says. */
  get readOnly(): boolean {
    return this.#readOnly;
  }

  /** The server could not be reached at the last request. Changes are events of the name "connection". */
  get isLost(): boolean {
    return this.#isLost;
  }

  /** Reads a page of this server that is not part of the API, as text. Throws an Error with the reason if refused. */
  async read(path: string, signal: AbortSignal): Promise<string> {
    const response = await fetch(path, { headers: this.#headers, signal, cache: "no-store" });
    if (!response.ok) {
      throw new Error(await textOf(response));
    }
    return await response.text();
  }

  #report(isLost: boolean): void {
    if (isLost !== this.#isLost) {
      this.#isLost = isLost;
      this.dispatchEvent(new Event("connection"));
    }
  }
}

/** What the user signs in with. */
export interface Credential {
  readonly token?: string;
  readonly tenant?: string;
}

/** The server wants a credential. The message says what was wrong with the last one; it is empty if there was none. */
export class SignInError extends Error {
  /** The token is missing or not accepted. If false, the tenant is. */
  readonly isOfToken: boolean;

  constructor(message: string, isOfToken: boolean) {
    super(message);
    this.isOfToken = isOfToken;
  }
}

/** Returns the text of an error for people: what was wrong and what to do. */
export function errorText(error: unknown): string {
  if (error instanceof ParleyError && error.code === "UNAVAILABLE") {
    return "The server cannot be reached. The page reconnects automatically.";
  }
  return error instanceof Error ? error.message : String(error);
}

/** Reports whether an error only says that the page has left the view, which waits for nothing more. */
export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

async function textOf(response: Response): Promise<string> {
  const text = (await response.text()).trim();
  try {
    return (JSON.parse(text) as { message?: string }).message ?? text;
  } catch {
    return text || `status ${response.status}`;
  }
}
