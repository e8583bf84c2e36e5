package dev.parley.springai;

import dev.parley.adapter.History;
import dev.parley.client.ParleyClient;
import dev.parley.v1.Retention;
import java.util.ArrayList;
import java.util.List;
import org.springframework.ai.chat.memory.ChatMemoryRepository;
import org.springframework.ai.chat.messages.Message;
import org.springframework.util.Assert;

/**
 * A repository in Parley, instead of InMemoryChatMemoryRepository or that for JDBC. The conversation of an id has the
 * id {@link dev.parley.adapter.ConversationIds#of ConversationIds.of(conversationId)}.
 *
 * <pre>{@code
 * var repository = new ParleyChatMemoryRepository("127.0.0.1:50051");
 * var memory = MessageWindowChatMemory.builder().chatMemoryRepository(repository).build();
 * }</pre>
 *
 * <p>Each change is one commit: readers and crashes see all of it or nothing. All methods throw {@link
 * dev.parley.client.ParleyException} if a call fails, and IllegalArgumentException if an id has no text or more than
 * 1024 bytes of UTF-8, or if a message is null. Any number of threads may use it.
 */
public final class ParleyChatMemoryRepository implements ChatMemoryRepository, AutoCloseable {
    private final ParleyClient own;
    private final History<Message> history;

    /** Makes a repository on a server, such as {@code "127.0.0.1:50051"}. {@link #close} ends its connection. */
    public ParleyChatMemoryRepository(String server) {
        this(ParleyClient.connect(server), true, History.kept());
    }

    /** Makes a repository on the server of a client, which the caller closes. */
    public ParleyChatMemoryRepository(ParleyClient client) {
        this(client, History.kept());
    }

    /**
     * Makes a repository on the server of a client, which the caller closes.
     *
     * @param retention the retention of new conversations; by default they keep all messages, do not expire and are not
     *     evicted
     */
    public ParleyChatMemoryRepository(ParleyClient client, Retention retention) {
        this(client, false, retention);
    }

    private ParleyChatMemoryRepository(ParleyClient client, boolean isOwn, Retention retention) {
        own = isOwn ? client : null;
        history = new History<>(client, "spring_ai", new MessageCodec(), retention);
    }

    /** Returns the ids of the conversations that this adapter has created, the oldest first. */
    @Override
    public List<String> findConversationIds() {
        return history.keys();
    }

    /** Returns all messages of a conversation, oldest first; none if it does not exist. */
    @Override
    public List<Message> findByConversationId(String conversationId) {
        Assert.hasText(conversationId, "conversationId cannot be null or empty");
        return new ArrayList<>(history.read(conversationId));
    }

    /**
     * Replaces all messages of a conversation, in one commit that writes only the end of the history that differs. The
     * conversation exists then, also without messages.
     *
     * @throws IllegalArgumentException a value in the metadata of a message cannot be JSON; nothing was changed
     */
    @Override
    public void saveAll(String conversationId, List<Message> messages) {
        Assert.hasText(conversationId, "conversationId cannot be null or empty");
        Assert.notNull(messages, "messages cannot be null");
        Assert.noNullElements(messages, "messages cannot contain null elements");
        history.replace(conversationId, messages);
    }

    /** Deletes a conversation. It is no error if it does not exist. */
    @Override
    public void deleteByConversationId(String conversationId) {
        Assert.hasText(conversationId, "conversationId cannot be null or empty");
        history.delete(conversationId);
    }

    /** Closes the connection, if the repository was made with an address. */
    @Override
    public void close() {
        if (own != null) {
            own.close();
        }
    }
}
