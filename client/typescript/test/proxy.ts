import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import type { TestContext } from "node:test";

/** A TCP proxy between a client and a server that breaks connections on request. */
export interface Proxy {
  /** The address for clients. */
  readonly address: string;
  /** The number of connections, including refused ones. */
  readonly opened: number;
  /** Refuses this many of the next connections. */
  refuse(count: number): void;
  /** Resets the next connection after this many bytes from the server. */
  cutAfter(bytes: number): void;
  /** Resets all connections. */
  cut(): void;
  /** Sets the target of the next connections. */
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
        client.end(() => reset()); // After the allowed bytes were sent.
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
