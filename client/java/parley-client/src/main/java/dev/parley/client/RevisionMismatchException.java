package dev.parley.client;

import io.grpc.Status;

/**
 * A write of records that required another revision ({@code if_revision}). It wrote nothing. Its code is ABORTED and
 * its reason {@code REVISION_MISMATCH}. Read the record again, and write with its new revision. Writes of records,
 * appends and chats throw it.
 */
public final class RevisionMismatchException extends ParleyException {
    private static final long serialVersionUID = 1;

    RevisionMismatchException(Status.Code code, String text, Details details, Throwable cause) {
        super(code, text, details, cause);
    }

    /** Returns the key of the first write that required another revision. */
    public String key() {
        return metadata().getOrDefault("key", "");
    }

    /** Returns the revision of that record; 0 if it does not exist. */
    public long currentRevision() {
        return Long.parseLong(metadata().getOrDefault("current_revision", "0"));
    }

    /** Returns whether that record belongs to the tenant and not to a conversation. */
    public boolean tenantScope() {
        return metadata().getOrDefault("scope", "").equals("tenant");
    }
}
