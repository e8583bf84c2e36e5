package dev.parley.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import dev.parley.v1.AppendMessagesRequest;
import dev.parley.v1.BackupStoreRequest;
import dev.parley.v1.BackupStoreResponse;
import dev.parley.v1.DeleteConversationRequest;
import dev.parley.v1.ExportConversationsRequest;
import dev.parley.v1.GetConversationRequest;
import dev.parley.v1.ImportConversationsRequest;
import dev.parley.v1.LoadConversationRequest;
import dev.parley.v1.Message;
import dev.parley.v1.Record;
import dev.parley.v1.RecordWrite;
import dev.parley.v1.Role;
import io.grpc.Status;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.StreamSupport;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledOnOs;
import org.junit.jupiter.api.condition.OS;
import org.junit.jupiter.api.io.TempDir;

/** Calls that the shared table does not have: records, transfer, errors and limits. */
@Timeout(60)
class CallsTest {
    @TempDir
    private Path data;

    private Parleyd server;
    private ParleyClient client;

    @BeforeEach
    void start() throws Exception {
        server = Parleyd.start(Parleyd.stored(data));
        client = ParleyClient.connect(server.address());
    }

    @AfterEach
    void stop() throws Exception {
        client.close();
        server.close();
    }

    private void append(String id, String content) {
        client.appendMessages(AppendMessagesRequest.newBuilder()
                .setConversationId(id)
                .addMessages(Message.newBuilder().setRole(Role.ROLE_USER).setContent(content))
                .build());
    }

    private static List<String> keys(Iterable<Record> records) {
        return StreamSupport.stream(records.spliterator(), false).map(Record::getKey).toList();
    }

    @Test
    void recordsAreWrittenWithARevision() {
        append("c", "a");
        Records records = client.records("c");
        assertTrue(records.get("state").isEmpty());
        long first = records.put("state", new byte[] {1, 0}, 0);
        long second = records.put("state", new byte[] {2}, first);
        assertTrue(second > first);
        var error = assertThrows(
                RevisionMismatchException.class, () -> records.put("state", new byte[] {3}, first));
        assertEquals("state", error.key());
        assertEquals(second, error.currentRevision());
        assertFalse(error.tenantScope());
        assertEquals(Status.Code.ABORTED, error.code());
        assertEquals(ByteString.copyFrom(new byte[] {2}), records.get("state").orElseThrow().getValue());

        records.write(List.of(
                RecordWrite.newBuilder().setKey("other").build(),
                RecordWrite.newBuilder().setKey("state").setDelete(true).build()));
        records.delete("nothing");
        assertEquals(List.of("other"), keys(records.list("")));
        assertThrows(IllegalArgumentException.class, () -> client.records(""));
    }

    @Test
    void listOfRecordsHasAllPages() {
        Records records = client.tenantRecords();
        List<String> want = new ArrayList<>();
        for (int i = 100; i < 350; i++) {
            want.add("k/" + i);
        }
        for (int start = 0; start < want.size(); start += 50) {
            records.write(want.subList(start, start + 50).stream()
                    .map(key -> RecordWrite.newBuilder()
                            .setKey(key)
                            .setValue(ByteString.copyFrom(new byte[20_000]))
                            .build())
                    .toList());
        }
        long revision = records.put("z", new byte[] {1});
        assertEquals(want, keys(records.list("k/")));
        assertEquals(revision, records.get("z").orElseThrow().getRevision());
    }

    @Test
    void exportsAreImported() {
        append("a", "one");
        append("b", "two");
        List<ImportConversationsRequest> imports = new ArrayList<>();
        for (var exported : client.exportConversations(ExportConversationsRequest.getDefaultInstance())) {
            imports.add(ImportConversationsRequest.newBuilder()
                    .setConversation(exported.getConversation())
                    .addAllMessages(exported.getMessagesList())
                    .build());
        }
        assertEquals(2, imports.size());
        client.deleteConversation(
                DeleteConversationRequest.newBuilder().setConversationId("a").build());
        var reply = client.importConversations(imports);
        assertEquals(1, reply.getImportedCount());
        assertEquals(1, reply.getSkippedCount());
        client.getConversation(
                GetConversationRequest.newBuilder().setConversationId("a").build());
    }

    @Test
    void backupIsStreamed() {
        append("a", "one");
        long size = 0;
        for (BackupStoreResponse part : client.backupStore(BackupStoreRequest.getDefaultInstance())) {
            size += part.getChunk().size();
        }
        assertTrue(size > 10_000, size + " bytes");
    }

    @Test
    void anEndedConversationIsReported() {
        append("a", "one");
        client.deleteConversation(
                DeleteConversationRequest.newBuilder().setConversationId("a").build());
        var get = GetConversationRequest.newBuilder().setConversationId("a").build();
        var error = assertThrows(ParleyException.class, () -> client.getConversation(get));
        assertEquals("DELETED", error.ended());
        assertTrue(error.endedAt().isPresent());
        assertTrue(error.getMessage().startsWith("NOT_FOUND CONVERSATION_NOT_FOUND: "), error::getMessage);

        var never = GetConversationRequest.newBuilder().setConversationId("never").build();
        var unknown = assertThrows(ParleyException.class, () -> client.getConversation(never));
        assertEquals("", unknown.ended());
        assertTrue(unknown.endedAt().isEmpty());
    }

    @Test
    void tooLargeRequestsAreNotSent() {
        String large = "x".repeat(5 << 20);
        var error = assertThrows(ParleyException.class, () -> append("a", large));
        assertEquals(Status.Code.RESOURCE_EXHAUSTED, error.code());
        assertTrue(error.text().contains("the limit is 4194304"), error::text);
        try (var appender = client.appender()) {
            var reply = appender.append(AppendMessagesRequest.newBuilder()
                    .setConversationId("a")
                    .addMessages(Message.newBuilder().setRole(Role.ROLE_USER).setContent(large))
                    .build());
            assertTrue(reply.isCompletedExceptionally());
        }
    }

    @Test
    @EnabledOnOs(value = OS.LINUX, disabledReason = "gRPC for Java has Unix sockets on Linux only")
    void aUnixSocketIsATarget() throws Exception {
        String target = "unix:" + data.resolve("socket");
        try (var local = Parleyd.start("grpc_address: \"" + target + "\"");
                var other = ParleyClient.connect(target)) {
            assertEquals(target, local.address());
            other.loadConversation(LoadConversationRequest.newBuilder()
                    .setConversationId("a")
                    .build());
        }
    }

    @Test
    void aClosedClientMakesNoCalls() {
        client.close();
        var error = assertThrows(ParleyException.class, () -> append("a", "one"));
        assertEquals(Status.Code.CANCELLED, error.code());
        var export = client.exportConversations(ExportConversationsRequest.getDefaultInstance());
        assertThrows(ParleyException.class, export::hasNext);
    }
}
