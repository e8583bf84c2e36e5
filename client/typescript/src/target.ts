import { isIPv4, isIPv6 } from "node:net";

/**
 * Reports whether a gRPC target is certainly on this machine: a loopback address, localhost, a Unix
 * socket. Returns false for targets that it cannot parse.
 */
export function isLocal(target: string): boolean {
  if (target.startsWith("unix:")) {
    return true;
  }
  // An authority between slashes may follow the scheme: dns://8.8.8.8/host:port.
  const address = target.replace(/^dns:(?:\/\/[^/]*\/)?/, "");
  const [, bracketed, name] = /^(?:\[(.*)\]|([^:]*))(?::\d+)?$/.exec(address) ?? [];
  const host = (bracketed ?? name ?? address).toLowerCase();
  if (isIPv4(host)) {
    return host.startsWith("127.");
  }
  if (isIPv6(host)) {
    // The URL parser returns the canonical form of the address.
    const canonical = new URL(`http://[${host.replace(/%.*$/, "")}]`).hostname;
    return canonical === "[::1]" || /^\[::ffff:7f[0-9a-f]{2}:/.test(canonical);
  }
  return host === "localhost";
}
