package dev.parley.client;

import com.google.protobuf.ByteString;
import dev.parley.v1.GetRecordsRequest;
import dev.parley.v1.ListRecordsRequest;
import dev.parley.v1.Record;
import dev.parley.v1.RecordWrite;
import dev.parley.v1.WriteRecordsRequest;
import dev.parley.v1.WriteRecordsResponse;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Optional;

/**
 * The records of a conversation, or those of the tenant: bytes under keys, each with a revision. {@link
 * ParleyClient#records} and {@link ParleyClient#tenantRecords} return them.
 *
 * <p>The conversation must exist; an append or a load creates it. A value has up to 3 MiB, a call up to 4 MiB. All
 * methods throw {@link ParleyException} if a call fails.
 */
public final class Records {
    private final ParleyClient client;
    private final String conversationId;

    /** An empty id means the tenant. */
    Records(ParleyClient client, String conversationId) {
        this.client = client;
        this.conversationId = conversationId;
    }

    /** Returns the record of a key; empty if there is none. */
    public Optional<Record> get(String key) {
        var reply = client.getRecords(GetRecordsRequest.newBuilder()
                .setConversationId(conversationId)
                .addKeys(key)
                .build());
        return reply.getRecordsList().stream().findFirst();
    }

    /** Returns the records whose keys begin with a text, in the order of the keys. The loop makes a call per page. */
    public Iterable<Record> list(String prefix) {
        return () -> new Pages(prefix);
    }

    /** Writes a record of any media type and returns its revision. */
    public long put(String key, byte[] value) {
        return put(RecordWrite.newBuilder()
                .setKey(key)
                .setValue(ByteString.copyFrom(value))
                .build());
    }

    /**
     * Writes a record only if it has this revision, and returns its new revision. 0 means that it must not exist.
     *
     * @throws RevisionMismatchException it has another revision; nothing was written
     */
    public long put(String key, byte[] value, long ifRevision) {
        return put(RecordWrite.newBuilder()
                .setKey(key)
                .setValue(ByteString.copyFrom(value))
                .setIfRevision(ifRevision)
                .build());
    }

    private long put(RecordWrite write) {
        WriteRecordsResponse reply = write(List.of(write));
        return conversationId.isEmpty() ? reply.getTenantRevision() : reply.getRevision();
    }

    /** Deletes a record. It is no error if it does not exist. */
    public void delete(String key) {
        write(List.of(RecordWrite.newBuilder().setKey(key).setDelete(true).build()));
    }

    /** Makes up to 100 writes and deletions in one commit: all or none. */
    public WriteRecordsResponse write(List<RecordWrite> writes) {
        return client.writeRecords(WriteRecordsRequest.newBuilder()
                .setConversationId(conversationId)
                .addAllWrites(writes)
                .build());
    }

    private final class Pages implements Iterator<Record> {
        private final ListRecordsRequest.Builder request;
        private Iterator<Record> page = new ArrayList<Record>().iterator();
        private boolean isLast;

        Pages(String prefix) {
            request = ListRecordsRequest.newBuilder()
                    .setConversationId(conversationId)
                    .setPrefix(prefix);
        }

        @Override
        public boolean hasNext() {
            while (!page.hasNext() && !isLast) {
                var reply = client.listRecords(request.build());
                page = reply.getRecordsList().iterator();
                request.setPageToken(reply.getNextPageToken());
                isLast = reply.getNextPageToken().isEmpty();
            }
            return page.hasNext();
        }

        @Override
        public Record next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            return page.next();
        }
    }
}
