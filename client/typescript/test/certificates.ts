import assert from "node:assert/strict";
import { chmod, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { TestContext } from "node:test";

import { tempFolder } from "./parleyd.js";
import { start } from "./process.js";

/** The paths of a certificate and its key. */
export interface CertificateFiles {
  readonly certFile: string;
  readonly keyFile: string;
}

/** A certificate authority of a test. */
export interface Authority {
  /** The path of its certificate. */
  readonly caFile: string;
  /** Issues a certificate with a subjectAltName: `"DNS:localhost"`, `"URI:spiffe://example/shop"`. */
  issue(name: string, subjectAltName: string): Promise<CertificateFiles>;
}

/** Creates a certificate authority. The end of the test removes its files. */
export async function createAuthority(t: TestContext): Promise<Authority> {
  const folder = await tempFolder(t);
  const openssl = async (...args: string[]) => {
    const program = start(t, "openssl", ...args);
    assert.equal(await program.ended, 0, `openssl ${args.join(" ")}:\n${program.lines.join("\n")}`);
  };
  const newKey = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
  const caFile = join(folder, "ca.pem");
  const caKey = join(folder, "ca.key");
  const caSubject = ["-subj", "/CN=test authority", "-days", "2"];
  await openssl("req", "-x509", ...newKey, ...caSubject, "-keyout", caKey, "-out", caFile);
  let serial = 0;
  return {
    caFile,
    async issue(name, subjectAltName) {
      const path = (end: string) => join(folder, `${name}.${end}`);
      await writeFile(path("ext"), `subjectAltName=${subjectAltName}\n`);
      const subject = ["-subj", `/CN=${name}`];
      await openssl("req", ...newKey, ...subject, "-keyout", path("key"), "-out", path("csr"));
      const issuer = ["-CA", caFile, "-CAkey", caKey, "-set_serial", `${++serial}`, "-days", "2"];
      const files = ["-in", path("csr"), "-extfile", path("ext"), "-out", path("pem")];
      await openssl("x509", "-req", ...issuer, ...files);
      await chmod(path("key"), 0o600); // parleyd refuses a key that others can read.
      return { certFile: path("pem"), keyFile: path("key") };
    },
  };
}
