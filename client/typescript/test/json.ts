// Conversion between proto JSON and the plain objects of this package.

const durations = new Set(["ttl", "leaseDuration", "waitTimeout", "inactiveFor", "deleteAfterDisconnect"]);
const integers = new Set(["sizeBytes"]);

/** Converts a request from proto JSON to the plain object of this package. */
export function fromJSON(json: unknown, name = ""): unknown {
  if (Array.isArray(json)) {
    return json.map((element) => fromJSON(element, name));
  }
  if (json !== null && typeof json === "object") {
    return Object.fromEntries(
      Object.entries(json).map(([key, value]) => [key, key === "value" ? value : fromJSON(value, key)]),
    );
  }
  if (typeof json !== "string") {
    return json;
  }
  if (durations.has(name)) {
    const nanos = Math.round(Number.parseFloat(json) * 1e9);
    return { seconds: Math.trunc(nanos / 1e9), nanos: nanos % 1e9 };
  }
  if (name === "updateMask") {
    return json.split(",").map((path) => path.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`));
  }
  if (integers.has(name)) {
    return Number(json);
  }
  return name.endsWith("Time") ? new Date(json) : json;
}

/** Converts a reply to proto JSON, except for int64 values, which stay numbers. */
export function toJSON(reply: unknown): unknown {
  if (reply instanceof Date) {
    return reply.toISOString();
  }
  if (Array.isArray(reply)) {
    return reply.map(toJSON);
  }
  if (reply === null || typeof reply !== "object") {
    return reply;
  }
  if (Object.keys(reply).join() === "seconds,nanos") {
    const { seconds, nanos } = reply as { seconds: number; nanos: number };
    // Without trailing groups of three zeros.
    const fraction = String(nanos)
      .padStart(9, "0")
      .replace(/(000){1,3}$/, "");
    return `${seconds}${fraction && `.${fraction}`}s`;
  }
  const entries = Object.entries(reply).flatMap(([key, value]) => {
    const isCase = typeof value?.$case === "string" && Object.keys(value).length === 2;
    return [isCase ? [value.$case, toJSON(value.value)] : [key, key === "value" ? value : toJSON(value)]];
  });
  return Object.fromEntries(entries);
}

/**
 * Describes the first difference between a reply and the expected one, or returns "". Objects may have
 * more properties, lists must have the same length, and "*" is any string except the empty one.
 */
export function difference(want: unknown, got: unknown, path = "reply"): string {
  if (want === "*") {
    return got && typeof got !== "object" ? "" : `${path} is ${JSON.stringify(got)}, want a string`;
  }
  if (Array.isArray(want)) {
    if (!Array.isArray(got) || got.length !== want.length) {
      return `${path} is ${JSON.stringify(got)}, want ${want.length} elements`;
    }
    return want.map((element, i) => difference(element, got[i], `${path}[${i}]`)).find(Boolean) ?? "";
  }
  if (want !== null && typeof want === "object") {
    const found = (got ?? {}) as Record<string, unknown>;
    const differences = Object.entries(want).map(([key, value]) =>
      difference(value, found[key], `${path}.${key}`),
    );
    return differences.find(Boolean) ?? "";
  }
  const same = want === got || (typeof got === "number" && want === String(got)); // Proto JSON has int64 as strings.
  return same ? "" : `${path} is ${JSON.stringify(got)}, want ${JSON.stringify(want)}`;
}
