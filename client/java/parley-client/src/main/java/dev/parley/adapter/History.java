package dev.parley.adapter;

import dev.parley.client.ParleyClient;
import dev.parley.client.ParleyException;
import dev.parley.v1.AppendMessagesRequest;
import dev.parley.v1.Conversation;
import dev.parley.v1.DeleteConversationRequest;
import dev.parley.v1.GetRecordsRequest;
import dev.parley.v1.ListConversationsRequest;
import dev.parley.v1.ListMessagesRequest;
import dev.parley.v1.ListMessagesResponse;
import dev.parley.v1.ListOrder;
import dev.parley.v1.Message;
import dev.parley.v1.Record;
import dev.parley.v1.RecordWrite;
import dev.parley.v1.Retention;
import dev.parley.v1.WriteRecordsRequest;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/**
 * The histories of a framework that reads and replaces whole lists of messages. Each key is a conversation with the id
 * {@link ConversationIds#of ConversationIds.of(key)}.
 *
 * <p>A replacement is one commit, which writes only the end of the history that differs: readers and crashes see all of
 * it or nothing. A message is the framework's exact form in {@code native}, and beside it the role and text that other
 * programs read. Large messages, and older ones of a large history, are in records of the conversation.
 *
 * <p>All methods throw {@link ParleyException} if a call fails, and IllegalArgumentException if a key is empty or, when
 * it is written, has more than 1024 bytes of UTF-8. A read throws IllegalStateException if other programs removed
 * messages during each of 100 attempts. Any number of threads may use it.
 *
 * @param <M> the type of the framework's messages
 */
public final class History<M> {
    private static final int MAX_KEY_BYTES = 1024; // of the value of a label
    private static final int COMMIT_BYTES = 3 << 19; // of the records in one call, which has at most 4 MiB
    private static final int COMMIT_WRITES = 100;
    private static final int ATTEMPTS = 100; // to read or change a conversation that others change at the same time
    private static final int PAGE_SIZE = 1000;
    private static final String ADAPTER_LABEL = "parley.adapter";

    private final ParleyClient client;
    private final String name;
    private final Entries<M> entries;
    private final Retention retention;

    /**
     * Makes the histories of an adapter.
     *
     * @param name the name of the adapter, which begins the names of its labels, types and records: "spring_ai"
     * @param retention the retention of new conversations; {@link #kept} by default
     */
    public History(ParleyClient client, String name, Codec<M> codec, Retention retention) {
        this.client = client;
        this.name = name;
        this.entries = new Entries<>(name, codec);
        this.retention = retention;
    }

    /** Returns the retention of conversations that live until they are deleted. */
    public static Retention kept() {
        return Retention.newBuilder()
                .setKeepAll(true)
                .setNoExpiry(true)
                .setNoEviction(true)
                .build();
    }

    /** A conversation at one version; version 0 means that it does not exist. */
    private record View(int version, List<Entries.Entry> entries) {
        List<String> lines() {
            return entries.stream().flatMap(entry -> entry.lines().stream()).toList();
        }
    }

    /** Returns all messages of a key, oldest first; none if there is no such key. */
    public List<M> read(String key) {
        return view(ConversationIds.of(key)).lines().stream().map(entries::decode).toList();
    }

    /**
     * Replaces all messages of a key. The key exists then, also without messages.
     *
     * @throws ParleyException ABORTED if other programs changed the conversation in each of 100 attempts
     */
    public void replace(String key, List<M> messages) {
        List<String> lines = messages.stream().map(entries::encode).toList();
        String conversation = ConversationIds.of(key);
        boolean join = false;
        ParleyException changed = null;
        for (int i = 0; i < ATTEMPTS; i++) {
            try {
                replace(key, view(conversation), lines, join);
                return;
            } catch (ParleyException error) {
                if (error.reason().equals("CONVERSATION_FULL") && !join) {
                    join = true;
                } else if (wasChanged(error)) {
                    changed = error;
                } else {
                    throw error;
                }
            }
        }
        throw changed;
    }

    /** Deletes a key. It is no error if it does not exist. */
    public void delete(String key) {
        client.deleteConversation(DeleteConversationRequest.newBuilder()
                .setConversationId(ConversationIds.of(key))
                .setAllowMissing(true)
                .build());
    }

    /** Returns all keys that this adapter has written, the oldest first. */
    public List<String> keys() {
        List<String> keys = new ArrayList<>();
        var request = ListConversationsRequest.newBuilder()
                .setPageSize(PAGE_SIZE)
                .putLabels(ADAPTER_LABEL, name)
                .setOrder(ListOrder.LIST_ORDER_CREATE_TIME_DESC);
        do {
            var page = client.listConversations(request.build());
            page.getConversationsList()
                    .forEach(entry -> keys.add(entry.getConversation().getLabelsOrDefault(keyLabel(), "")));
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        Collections.reverse(keys);
        return keys;
    }

    private String keyLabel() {
        return name + ".key";
    }

    /**
     * Replaces the messages of a view. With join, those that do not change are written again, too: as records, which
     * have more space than the messages of a conversation.
     */
    private void replace(String key, View view, List<String> lines, boolean join) {
        String conversation = ConversationIds.of(key);
        int version = view.version;
        List<Entries.Entry> stays = join ? List.of() : Entries.common(view.entries, lines);
        int kept = stays.stream().mapToInt(entry -> entry.lines().size()).sum();
        if (version > 0 && stays.size() == view.entries.size() && kept == lines.size()) {
            return; // Nothing changes.
        }
        Entries.Stored stored = entries.store(lines.subList(kept, lines.size()), join);
        Set<String> old = keysOf(view.entries);
        Set<String> used = keysOf(stays);
        List<RecordWrite> records = new ArrayList<>();
        for (RecordWrite record : stored.records()) {
            used.add(record.getKey());
            if (!old.contains(record.getKey())) {
                records.add(record);
            }
        }
        List<RecordWrite> unused = old.stream()
                .filter(each -> !used.contains(each))
                .map(each -> RecordWrite.newBuilder().setKey(each).setDelete(true).build())
                .toList();
        long size = records.stream().mapToLong(record -> record.getValue().size()).sum();
        if (size > COMMIT_BYTES || records.size() > COMMIT_WRITES) {
            // Nothing refers to these records before the messages are there.
            if (version == 0) {
                var request = appendRequest(key).setReplaceAfterSequence(0).setIfVersion(0);
                version = client.appendMessages(request.build()).getConversation().getVersion();
            }
            version = write(conversation, records, version);
            records = List.of();
        }
        int space = Math.min(unused.size(), COMMIT_WRITES - records.size());
        var request = appendRequest(key)
                .setIfVersion(version)
                .setReplaceAfterSequence(
                        stays.isEmpty() ? 0 : stays.get(stays.size() - 1).sequence())
                .addAllMessages(stored.messages())
                .addAllRecords(records)
                .addAllRecords(unused.subList(0, space));
        version = client.appendMessages(request.build()).getConversation().getVersion();
        try {
            write(conversation, unused.subList(space, unused.size()), version);
        } catch (ParleyException error) {
            if (!wasChanged(error)) {
                throw error;
            }
            // The messages are right. The records stay until the key is deleted.
        }
    }

    private static Set<String> keysOf(List<Entries.Entry> entries) {
        Set<String> keys = new TreeSet<>();
        entries.forEach(entry -> keys.addAll(entry.records()));
        return keys;
    }

    private AppendMessagesRequest.Builder appendRequest(String key) {
        if (key.getBytes(StandardCharsets.UTF_8).length > MAX_KEY_BYTES) {
            throw new IllegalArgumentException(
                    "the key \"" + Texts.cut(key, 40) + "…\" has more than " + MAX_KEY_BYTES + " bytes");
        }
        return AppendMessagesRequest.newBuilder()
                .setConversationId(ConversationIds.of(key))
                .setCreateWith(Conversation.newBuilder()
                        .putLabels(ADAPTER_LABEL, name)
                        .putLabels(keyLabel(), key)
                        .setRetention(retention));
    }

    /** Writes records in as many commits as needed. Returns the version after the last. */
    private int write(String conversation, List<RecordWrite> records, int version) {
        for (int start = 0, end = 0; start < records.size(); start = end) {
            for (int size = 0; end < records.size() && end - start < COMMIT_WRITES && size < COMMIT_BYTES; end++) {
                size += records.get(end).getValue().size();
            }
            var request = WriteRecordsRequest.newBuilder()
                    .setConversationId(conversation)
                    .addAllWrites(records.subList(start, end))
                    .setIfVersion(version);
            version = client.writeRecords(request.build()).getConversation().getVersion();
        }
        return version;
    }

    /** Returns a conversation as it is at one version. */
    private View view(String conversation) {
        for (int i = 0; i < ATTEMPTS; i++) {
            try {
                View view = readOnce(conversation);
                if (view != null) {
                    return view;
                }
            } catch (ParleyException error) {
                if (error.reason().equals("CONVERSATION_NOT_FOUND")) {
                    return new View(0, List.of());
                }
                throw error;
            }
        }
        throw new IllegalStateException(
                "other programs removed messages of " + conversation + " in each of " + ATTEMPTS + " attempts");
    }

    /** Returns a conversation, or null if messages were removed between the pages. */
    private View readOnce(String conversation) {
        var request = ListMessagesRequest.newBuilder()
                .setConversationId(conversation)
                .setPageSize(PAGE_SIZE)
                .setAscending(true);
        ListMessagesResponse page = client.listMessages(request.build());
        Conversation first = page.getConversation();
        List<Message> messages = new ArrayList<>(page.getMessagesList());
        while (!page.getNextPageToken().isEmpty()) {
            page = client.listMessages(request.setPageToken(page.getNextPageToken()).build());
            if (!page.getConversation().getUid().equals(first.getUid())
                    || removed(page.getConversation()) != removed(first)) {
                return null;
            }
            messages.addAll(page.getMessagesList());
        }
        // Messages that were appended between the pages are on the last ones.
        int version = page.getConversation().getVersion();
        Set<String> missing = new LinkedHashSet<>();
        messages.forEach(message -> missing.addAll(entries.recordKeys(message)));
        Map<String, Record> records = new HashMap<>();
        while (!missing.isEmpty()) {
            var reply = client.getRecords(GetRecordsRequest.newBuilder()
                    .setConversationId(conversation)
                    .addAllKeys(missing.stream().limit(COMMIT_WRITES).toList())
                    .build());
            if (reply.getRecordsCount() == 0) {
                return null;
            }
            reply.getRecordsList().forEach(record -> records.put(record.getKey(), record));
            missing.removeAll(records.keySet());
        }
        return new View(
                version,
                messages.stream().map(message -> entries.load(message, records)).toList());
    }

    private static int removed(Conversation conversation) {
        return conversation.getLastSequence() - conversation.getMessageCount();
    }

    /** Reports whether another program has changed the conversation since it was read. */
    private static boolean wasChanged(ParleyException error) {
        return error.reason().equals("VERSION_MISMATCH") || error.reason().equals("CONVERSATION_NOT_FOUND");
    }
}
