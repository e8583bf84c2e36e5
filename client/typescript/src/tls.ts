import { X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";

import { ChannelCredentials } from "nice-grpc";

/** The settings of the connection of a client. */
export interface TLSSettings {
  /** True for TLS, false for plaintext; undefined chooses by the other settings and the target. */
  readonly tls?: boolean | undefined;
  /** Trusted certificates in PEM form. */
  readonly ca?: string | Uint8Array | undefined;
  /** The path of a file with trusted certificates, with the name of its setting for errors. */
  readonly caFile?: NamedPath | undefined;
  /** The paths of a client certificate and its key. */
  readonly certFile?: NamedPath | undefined;
  readonly keyFile?: NamedPath | undefined;
}

/** The path of a file, and the name of the option or variable that contains it. */
export interface NamedPath {
  readonly name: string;
  readonly path: string;
}

/** Returns the credentials of a connection. Reads the files. Throws an error that names the faulty one. */
export function channelCredentials(
  { tls, ca, caFile, certFile, keyFile }: TLSSettings,
  isLocal: boolean,
): ChannelCredentials {
  if (certFile && !keyFile) {
    throw new TypeError(`${certFile.name} is set without a key; set the file of the certificate's key`);
  }
  if (keyFile && !certFile) {
    throw new TypeError(`${keyFile.name} is set without a certificate; set the file of the certificate`);
  }
  const isConfigured = ca !== undefined || caFile !== undefined || certFile !== undefined;
  if (!(tls ?? (isConfigured || !isLocal))) {
    return ChannelCredentials.createInsecure();
  }
  const roots = caFile ? readCertificates(caFile) : ca === undefined ? null : certificates("ca", ca);
  if (!certFile || !keyFile) {
    return ChannelCredentials.createSsl(roots);
  }
  const certificate = readCertificates(certFile);
  const key = read(keyFile);
  try {
    return ChannelCredentials.createSsl(roots, key, certificate);
  } catch (error) {
    const fault = `${keyFile.name}: ${JSON.stringify(keyFile.path)} is not the unencrypted key, in PEM form,`;
    throw new Error(`${fault} of the certificate of ${certFile.name}: ${(error as Error).message}`, {
      cause: error,
    });
  }
}

function readCertificates(file: NamedPath): Buffer {
  return certificates(`${file.name}: ${JSON.stringify(file.path)}`, read(file));
}

function read({ name, path }: NamedPath): Buffer {
  try {
    return readFileSync(path);
  } catch (error) {
    throw new Error(`${name}: ${(error as Error).message}`, { cause: error });
  }
}

/** Checks certificates in PEM form. Node ignores a text without any. */
function certificates(name: string, pem: string | Uint8Array): Buffer {
  const content = Buffer.from(pem as string);
  const blocks = content
    .toString("latin1")
    .match(/-----BEGIN CERTIFICATE-----[\s\S]*?-----END CERTIFICATE-----/g);
  if (!blocks) {
    throw new Error(`${name} contains no certificate in PEM form`);
  }
  for (const block of blocks) {
    try {
      new X509Certificate(block);
    } catch (error) {
      throw new Error(`${name} contains an invalid certificate: ${(error as Error).message}`, {
        cause: error,
      });
    }
  }
  return content;
}
