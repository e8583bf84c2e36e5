import { isIPv4, isIPv6 } from "node:net";

/**
 * Reports whether what is sent to this gRPC target cannot leave this machine: a loopback address,
 * localhost, a Unix socket. What it does not understand can.
 */
export function isLocal(target: string): boolean {
  if (target.startsWith("unix:")) {
    return true;
  }
  // After the scheme an authority may stand between slashes: dns://8.8.8.8/host:port.
  const address = target.replace(/^dns:(?:\/\/[^/]*\/)?/, "");
  const [, bracketed, name] = /^(?:\[(.*)\]|([^:]*))(?::\d+)?$/.exec(address) ?? [];
  const host = (bracketed ?? name ?? address).toLowerCase();
  if (isIPv4(host)) {
    return host.startsWith("127.");
  }
  if (isIPv6(host)) {
    // The parser of URLs knows all the ways to write the same address.
    const canonical = new URL(`http://[${host.replace(/%.*$/, "")}]`).hostname;
    return canonical === "[::1]" || /^\[::ffff:7f[0-9a-f]{2}:/.test(canonical);
  }
  return host === "localhost";
}
