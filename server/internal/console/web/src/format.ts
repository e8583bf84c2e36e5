/** Formats numbers and times for people. */

/** Returns a size: "512 B", "3.0 MiB". */
export function bytes(size: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit++;
  }
  return `${unit === 0 ? size : size.toFixed(1)} ${units[unit]}`;
}

/** Returns a number with its noun: "1 message", "1,000 messages". */
export function count(n: number, noun: string): string {
  return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
}

/** Returns a span of time by its two largest units: "1 h 5 min", "3 s", "250 ms". */
export function span(milliseconds: number): string {
  const ms = Math.max(0, Math.round(milliseconds));
  if (ms < 1000) {
    return `${ms} ms`;
  }
  const s = Math.floor(ms / 1000);
  const units: [number, string][] = [
    [Math.floor(s / 86400), "d"],
    [Math.floor(s / 3600) % 24, "h"],
    [Math.floor(s / 60) % 60, "min"],
    [s % 60, "s"],
  ];
  const first = units.findIndex(([n]) => n > 0);
  return units
    .slice(first, first + 2)
    .filter(([n]) => n > 0)
    .map(([n, unit]) => `${n} ${unit}`)
    .join(" ");
}

/** Returns how long ago a time was: "now", "5 min ago". */
export function ago(time: Date | undefined, now = Date.now()): string {
  if (!time) {
    return "";
  }
  const passed = now - time.getTime();
  return passed < 1000 ? "now" : `${span(passed).split(" ").slice(0, 2).join(" ")} ago`;
}

/** Returns how long it is until a time: "in 5 min 3 s". */
export function until(time: Date | undefined, now = Date.now()): string {
  if (!time) {
    return "never";
  }
  const left = time.getTime() - now;
  return left <= 0 ? "now" : `in ${span(Math.ceil(left / 1000) * 1000)}`;
}

/** Returns a time of the user's time zone to the millisecond. */
export function clock(time: Date | undefined): string {
  return time
    ? `${time.toLocaleDateString("sv")} ${time.toLocaleTimeString("sv")}.${String(time.getMilliseconds()).padStart(3, "0")}`
    : "";
}

/** Returns a time of UTC to the millisecond, in the form of {@link clock}. */
export function utcClock(time: Date | undefined): string {
  return time ? time.toISOString().replace("T", " ").slice(0, -1) : "";
}

/** Returns the name of a value of an enumeration: "INPUT_REQUIRED" of TURN_STATE_INPUT_REQUIRED is "input required". */
export function enumName(value: string, prefix: string): string {
  return value.replace(prefix, "").replaceAll("_", " ").toLowerCase();
}
