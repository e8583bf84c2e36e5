import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { TestContext } from "node:test";

/** A received request. */
export interface ReceivedRequest {
  readonly method: string;
  readonly url: string;
  readonly headers: IncomingMessage["headers"];
  readonly body: string;
}

/** Answers a request. */
export type Answer = (response: ServerResponse, request: ReceivedRequest) => void | Promise<void>;

/** An HTTP server with given answers. It records the requests. */
export class HTTPServer {
  readonly requests: ReceivedRequest[] = [];
  /** The answers to the next requests, in order. The last one stays. */
  answers: Answer[] = [json({})];

  /** Serves on a free port until the end of the test. Returns the URL. */
  async serve(t: TestContext): Promise<string> {
    const server = createServer(async (incoming, response) => {
      const { method, url, headers } = incoming;
      let body = "";
      for await (const chunk of incoming.setEncoding("utf8")) {
        body += chunk;
      }
      const request = { method: method!, url: url!, headers, body };
      this.requests.push(request);
      const answer = this.answers.length > 1 ? this.answers.shift()! : this.answers[0]!;
      await answer(response, request);
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    t.after(() => {
      server.closeAllConnections();
      server.close();
    });
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  }
}

/** Answers with JSON. */
export function json(value: unknown, status = 200): Answer {
  return (response) => {
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify(value));
  };
}

/** Answers with the error of a Parley server. */
export function failure(status: number, code: number, reason = "", ...details: object[]): Answer {
  const info = {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    reason,
    domain: reason ? "parley" : "other",
  };
  return json({ code, message: "refused", details: [info, ...details] }, status);
}

/** Answers with server-sent events, in these pieces, each of which is sent before the next. */
export function stream(...pieces: (string | Uint8Array)[]): Answer {
  return async (response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (const piece of pieces) {
      response.write(piece);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    response.end();
  };
}

/** Resets the connection, after these pieces of a stream. */
export function broken(...pieces: string[]): Answer {
  return (response) => {
    if (pieces.length > 0) {
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.write(pieces.join(""), () => response.destroy());
    } else {
      response.destroy();
    }
  };
}

/** Returns the server-sent event of a turn. */
export function turnEvent(index: number, event: object): string {
  return `id: ${index}\ndata: ${JSON.stringify({ event: { turnId: "t", index, ...event } })}\n\n`;
}
