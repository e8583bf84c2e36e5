package dev.parley.langchain4j;

import dev.langchain4j.data.message.ChatMessage;
import dev.langchain4j.store.memory.chat.ChatMemoryStore;
import dev.parley.adapter.History;
import dev.parley.client.ParleyClient;
import dev.parley.v1.Retention;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * A store in Parley, instead of InMemoryChatMemoryStore. The conversation of a memory id has the id {@link
 * dev.parley.adapter.ConversationIds#of ConversationIds.of(memoryId.toString())}.
 *
 * <pre>{@code
 * var store = new ParleyChatMemoryStore("127.0.0.1:50051");
 * var memory = MessageWindowChatMemory.builder().id("anna").maxMessages(20).chatMemoryStore(store).build();
 * }</pre>
 *
 * <p>Each change is one commit: readers and crashes see all of it or nothing. All methods throw {@link
 * dev.parley.client.ParleyException} if a call fails, and IllegalArgumentException if an id is null, or is empty or has
 * more than 1024 bytes of UTF-8 as a text. Any number of threads may use it.
 */
public final class ParleyChatMemoryStore implements ChatMemoryStore, AutoCloseable {
    private final ParleyClient own;
    private final History<ChatMessage> history;

    /** Makes a store on a server, such as {@code "127.0.0.1:50051"}. {@link #close} ends its connection. */
    public ParleyChatMemoryStore(String server) {
        this(ParleyClient.connect(server), true, History.kept());
    }

    /** Makes a store on the server of a client, which the caller closes. */
    public ParleyChatMemoryStore(ParleyClient client) {
        this(client, History.kept());
    }

    /**
     * Makes a store on the server of a client, which the caller closes.
     *
     * @param retention the retention of new conversations; by default they keep all messages, do not expire and are not
     *     evicted
     */
    public ParleyChatMemoryStore(ParleyClient client, Retention retention) {
        this(client, false, retention);
    }

    private ParleyChatMemoryStore(ParleyClient client, boolean isOwn, Retention retention) {
        own = isOwn ? client : null;
        history = new History<>(client, "langchain4j", new MessageCodec(), retention);
    }

    /** Returns all messages of a memory, oldest first; none if it does not exist. */
    @Override
    public List<ChatMessage> getMessages(Object memoryId) {
        return new ArrayList<>(history.read(key(memoryId)));
    }

    /** Replaces all messages of a memory, in one commit that writes only the end of the history that differs. */
    @Override
    public void updateMessages(Object memoryId, List<ChatMessage> messages) {
        history.replace(key(memoryId), messages);
    }

    /** Deletes a memory. It is no error if it does not exist. */
    @Override
    public void deleteMessages(Object memoryId) {
        history.delete(key(memoryId));
    }

    /** Does what {@link #getMessages} does, in a thread of its own. */
    @Override
    public CompletableFuture<List<ChatMessage>> getMessagesAsync(Object memoryId) {
        return CompletableFuture.supplyAsync(() -> getMessages(memoryId), ParleyChatMemoryStore::run);
    }

    /** Does what {@link #updateMessages} does, in a thread of its own. */
    @Override
    public CompletableFuture<Void> updateMessagesAsync(Object memoryId, List<ChatMessage> messages) {
        List<ChatMessage> copy = List.copyOf(messages);
        return CompletableFuture.runAsync(() -> updateMessages(memoryId, copy), ParleyChatMemoryStore::run);
    }

    /** Does what {@link #deleteMessages} does, in a thread of its own. */
    @Override
    public CompletableFuture<Void> deleteMessagesAsync(Object memoryId) {
        return CompletableFuture.runAsync(() -> deleteMessages(memoryId), ParleyChatMemoryStore::run);
    }

    /** Closes the connection, if the store was made with an address. */
    @Override
    public void close() {
        if (own != null) {
            own.close();
        }
    }

    private static void run(Runnable task) {
        var thread = new Thread(task, "parley-store");
        thread.setDaemon(true);
        thread.start();
    }

    private static String key(Object memoryId) {
        if (memoryId == null) {
            throw new IllegalArgumentException("memoryId is null");
        }
        return memoryId.toString();
    }
}
