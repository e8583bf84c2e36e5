import { BinaryReader, BinaryWriter } from "@bufbuild/protobuf/wire";
import { type CallContext, ServerError, Status } from "nice-grpc";

/** grpc.health.v1.HealthCheckResponse.ServingStatus. */
const serving = 1;
const notServing = 2;
const serviceUnknown = 3;

/** grpc.health.v1.HealthCheckRequest. */
interface Request {
  service: string;
}

/** grpc.health.v1.HealthCheckResponse. */
interface Response {
  status: number;
}

const method = {
  requestSerialize: ({ service }: Request) =>
    Buffer.from(new BinaryWriter().uint32(10).string(service).finish()),
  requestDeserialize(bytes: Buffer): Request {
    const reader = new BinaryReader(bytes);
    let service = "";
    while (reader.pos < reader.len) {
      const [field, type] = reader.tag();
      if (field === 1) {
        service = reader.string();
      } else {
        reader.skip(type);
      }
    }
    return { service };
  },
  responseSerialize: ({ status }: Response) => Buffer.from([8, status]),
  responseDeserialize: (bytes: Buffer): Response => ({ status: bytes[1] ?? 0 }),
};

/** The service grpc.health.v1.Health, which everything that routes gRPC calls knows. */
export const HealthDefinition = {
  check: { ...method, path: "/grpc.health.v1.Health/Check", requestStream: false, responseStream: false },
  watch: { ...method, path: "/grpc.health.v1.Health/Watch", requestStream: false, responseStream: true },
} as const;

/** Says that a service, and the server as a whole (""), serves until it stops. */
export class Health {
  readonly #services: ReadonlySet<string>;
  readonly #stopped = new AbortController();

  constructor(service: string) {
    this.#services = new Set(["", service]);
  }

  /** Says so to those who watch, whose calls end with it. */
  stop(): void {
    this.#stopped.abort();
  }

  async check({ service }: Request): Promise<Response> {
    if (!this.#services.has(service)) {
      throw new ServerError(Status.NOT_FOUND, `there is no service ${JSON.stringify(service)} here`);
    }
    return { status: this.#stopped.signal.aborted ? notServing : serving };
  }

  async *watch({ service }: Request, { signal }: CallContext): AsyncGenerator<Response, void, undefined> {
    const known = this.#services.has(service);
    const stopped = this.#stopped.signal;
    if (!stopped.aborted) {
      yield { status: known ? serving : serviceUnknown };
      await new Promise<void>((resolve) => {
        const end = () => {
          stopped.removeEventListener("abort", end);
          signal.removeEventListener("abort", end);
          resolve();
        };
        stopped.addEventListener("abort", end);
        signal.addEventListener("abort", end);
        if (stopped.aborted || signal.aborted) {
          end();
        }
      });
    }
    signal.throwIfAborted();
    yield { status: known ? notServing : serviceUnknown };
  }
}
