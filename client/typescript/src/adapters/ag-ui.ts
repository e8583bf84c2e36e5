/**
 * An agent of AG-UI whose threads Parley stores. Start at {@link ParleyAgent}.
 *
 * A thread is a conversation, a run is a turn. The turn runs on the server without the page, so a page that is loaded
 * again shows the run from its beginning to its end.
 */
import {
  type AgentSubscriber,
  HttpAgent,
  type HttpAgentConfig,
  type RunAgentInput,
  type RunAgentParameters,
  type RunAgentResult,
} from "@ag-ui/client";
import type { Token } from "@parleyhq/client";

import { absolute, type StreamOptions, streaming } from "./ag-ui/stream.js";

/** The options of a {@link ParleyAgent}, in addition to those of HttpAgent. */
export interface ParleyAgentConfig extends HttpAgentConfig {
  /** The URL of the agent: that of the server, `/ag-ui/` and the percent-encoded name of the agent. */
  url: string;
  /**
   * What `abortRun` does with the turn: "cancel", the default, cancels it and stores what has arrived of the answer.
   * With "leave" only the page leaves it; the turn continues.
   */
  onAbort?: "cancel" | "leave" | undefined;
  /** The bearer token, or a function that returns it or promises it and is called before each request. */
  token?: Token | undefined;
  /** The tenant of all requests. Only a caller with several tenants must name one. */
  tenant?: string | undefined;
}

/**
 * An HttpAgent whose runs survive the connection.
 *
 * - A run whose connection breaks is resumed after the last event, also if the server was restarted. After a minute
 *   without a connection, the run fails.
 * - `abortRun` cancels the turn, and the run ends with what is stored of its answer.
 * - `connectAgent` loads the messages of the thread, and continues the run that is active, if there is one. Call it when
 *   a page is loaded.
 * - `detachActiveRun` leaves the run, which continues on the server.
 *
 * The conversation of a thread has the id of the thread, and the turn of a run has the id of the run as its request_id.
 */
export class ParleyAgent extends HttpAgent {
  constructor(config: ParleyAgentConfig) {
    const { onAbort = "cancel", token, tenant, fetch: own, ...rest } = config;
    const options: StreamOptions = {
      isCancelled: onAbort === "cancel",
      token: async () => (typeof token === "function" ? await token() : token) || undefined,
      tenant: tenant || undefined,
      fetch: own ?? ((url, init) => fetch(url, init)),
    };
    super({ ...rest, fetch: streaming(options) });
  }

  /** Loads the messages of the thread and continues the active run. Called by the page when it is loaded. */
  override async connectAgent(
    parameters?: RunAgentParameters,
    subscriber?: AgentSubscriber,
  ): Promise<RunAgentResult> {
    this.abortController = new AbortController();
    return await super.connectAgent(parameters, subscriber);
  }

  protected override connect(input: RunAgentInput): ReturnType<HttpAgent["run"]> {
    const connection = new Connection({ url: this.url, headers: this.headers, fetch: this.fetch });
    connection.abortController = this.abortController;
    return connection.run(input);
  }
}

/** Sends the request that connects to a thread instead of that of a run. */
class Connection extends HttpAgent {
  override run(input: RunAgentInput): ReturnType<HttpAgent["run"]> {
    const url = absolute(this.url);
    url.searchParams.set("threadId", input.threadId);
    this.url = url.href;
    return super.run(input);
  }

  protected override requestInit(input: RunAgentInput): RequestInit {
    const { body: _, ...init } = super.requestInit(input);
    return { ...init, method: "GET" };
  }
}
