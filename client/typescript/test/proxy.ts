import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import type { TestContext } from "node:test";

/** What is between a client and a server, and breaks. */
export interface Proxy {
  /** For clients. */
  readonly address: string;
  /** Connections that were opened, those that were refused included. */
  readonly opened: number;
  /** Of the connections to come, refuse so many. */
  refuse(count: number): void;
  /** Of the next connection, pass on so many bytes from the server, then reset it. */
  cutAfter(bytes: number): void;
  /** Resets all connections. */
  cut(): void;
  /** Leads the connections to come elsewhere. */
  aim(target: string): void;
}

/** Starts a proxy in front of a server, until the end of the test. */
export async function startProxy(t: TestContext, target: string): Promise<Proxy> {
  const pairs = new Set<Socket[]>();
  let opened = 0;
  let refusals = 0;
  let limit = Infinity;
  const server = createServer((client) => {
    opened++;
    if (refusals > 0) {
      refusals--;
      client.resetAndDestroy();
      return;
    }
    const [, host, port] = /^(.+):(\d+)$/.exec(target)!;
    const upstream = connect(Number(port), host);
    let left = limit;
    limit = Infinity;
    const pair = [client, upstream];
    pairs.add(pair);
    const reset = () => {
      pairs.delete(pair);
      for (const socket of pair) {
        socket.resetAndDestroy();
      }
    };
    for (const socket of pair) {
      socket.on("error", reset).on("close", reset);
    }
    client.pipe(upstream);
    upstream.on("data", (chunk) => {
      client.write(chunk.subarray(0, left));
      left -= chunk.length;
      if (left <= 0) {
        upstream.pause();
        client.end(() => reset()); // Once what is let through is on its way.
      }
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const cut = () => {
    for (const [client] of [...pairs]) {
      client?.destroy();
    }
  };
  t.after(() => {
    server.close();
    cut();
  });
  return {
    address: `127.0.0.1:${(server.address() as AddressInfo).port}`,
    get opened() {
      return opened;
    },
    refuse: (count) => {
      refusals = count;
    },
    cutAfter: (bytes) => {
      limit = bytes;
    },
    cut,
    aim: (to) => {
      target = to;
    },
  };
}
