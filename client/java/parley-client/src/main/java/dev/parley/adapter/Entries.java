package dev.parley.adapter;

import com.google.protobuf.ByteString;
import dev.parley.v1.Message;
import dev.parley.v1.Native;
import dev.parley.v1.Record;
import dev.parley.v1.RecordWrite;
import dev.parley.v1.Role;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** Messages of a framework as messages of Parley, and back. It makes no calls. */
final class Entries<M> {
    private static final int INLINE_BYTES = 64 << 10; // larger lines are records: a message is below 256 KiB
    private static final int TEXT_BYTES = 4 << 10; // of the readable text of a message whose lines are elsewhere
    private static final int PIECE_BYTES = 1 << 20; // of a record
    private static final int COMMIT_MESSAGES = 100;
    private static final int NEWEST = 50; // messages that stay single when older ones are joined

    /** The native value is one line. */
    private final String one;
    /** The native value has several lines. */
    private final String several;
    /** The native value has keys of records, one a line; their values joined are the lines. */
    private final String inRecords;

    private final String recordPrefix;
    private final Codec<M> codec;

    Entries(String name, Codec<M> codec) {
        one = name + ".message";
        several = name + ".messages";
        inRecords = name + ".records";
        recordPrefix = name + "/";
        this.codec = codec;
    }

    /** A stored message: its sequence, its messages of the framework as lines, and the keys of its records. */
    record Entry(int sequence, List<String> lines, List<String> records) {}

    /** Messages to append, and the records that they need. */
    record Stored(List<Message> messages, List<RecordWrite> records) {}

    /** Returns the entries at the start whose messages are the first of these lines. */
    static List<Entry> common(List<Entry> entries, List<String> lines) {
        int count = 0;
        int start = 0;
        for (Entry entry : entries) {
            int end = start + entry.lines.size();
            if (end > lines.size() || !lines.subList(start, end).equals(entry.lines)) {
                break;
            }
            count++;
            start = end;
        }
        return entries.subList(0, count);
    }

    String encode(M message) {
        return codec.encode(message);
    }

    M decode(String line) {
        return codec.decode(line);
    }

    /** Returns the keys of the records of a message. */
    List<String> recordKeys(Message message) {
        return message.getNative().getType().equals(inRecords)
                ? message.getNative().getValue().toStringUtf8().lines().toList()
                : List.of();
    }

    /** Returns the entry of a message. The map has the values of its records. */
    Entry load(Message message, Map<String, Record> values) {
        String type = message.getNative().getType();
        List<String> keys = recordKeys(message);
        ByteString value = message.getNative().getValue();
        if (type.equals(inRecords)) {
            value = ByteString.copyFrom(
                    keys.stream().map(key -> values.get(key).getValue()).toList());
        } else if (!type.equals(one) && !type.equals(several)) {
            return new Entry(message.getSequence(), List.of(encode(codec.foreign(message))), keys);
        }
        return new Entry(message.getSequence(), List.of(value.toStringUtf8().split("\n", -1)), keys);
    }

    /**
     * Returns the messages for these lines, and their records. One commit takes 100 messages and about 1 MiB of them.
     * If there are more, or with join, the first message contains all but the newest.
     */
    Stored store(List<String> lines, boolean join) {
        List<byte[]> encoded = lines.stream()
                .map(line -> line.getBytes(StandardCharsets.UTF_8))
                .toList();
        int single = lines.size();
        long inline = encoded.stream()
                .mapToLong(line -> line.length)
                .filter(length -> length <= INLINE_BYTES)
                .sum();
        if (join || single > COMMIT_MESSAGES || inline > PIECE_BYTES) {
            single = 0;
            for (int size = 0; single < Math.min(NEWEST, lines.size()) && size < INLINE_BYTES; single++) {
                size += encoded.get(lines.size() - 1 - single).length;
            }
        }
        int start = lines.size() - single;
        List<Message> messages = new ArrayList<>();
        Map<String, RecordWrite> records = new LinkedHashMap<>();
        if (start > 0) {
            messages.add(store(lines.subList(0, start), records));
        }
        for (String line : lines.subList(start, lines.size())) {
            messages.add(store(List.of(line), records));
        }
        return new Stored(messages, List.copyOf(records.values()));
    }

    /** Returns the message for one or more lines, and adds the records that it needs. */
    private Message store(List<String> lines, Map<String, RecordWrite> records) {
        Message.Builder message = lines.size() == 1
                ? codec.readable(decode(lines.get(0))).toBuilder()
                : transcript(lines);
        var value = ByteString.copyFromUtf8(String.join("\n", lines));
        if (value.size() <= INLINE_BYTES) {
            message.setNative(nativeForm(lines.size() == 1 ? one : several, value));
        } else {
            List<String> keys = new ArrayList<>();
            for (int start = 0; start < value.size(); start += PIECE_BYTES) {
                ByteString piece = value.substring(start, Math.min(value.size(), start + PIECE_BYTES));
                // The same bytes have the same key: a message that is written again keeps its records.
                String key = recordPrefix + ConversationIds.sha256(piece.toByteArray());
                keys.add(key);
                records.put(
                        key,
                        RecordWrite.newBuilder()
                                .setKey(key)
                                .setValue(piece)
                                .setMediaType("application/jsonl")
                                .build());
            }
            message.setNative(nativeForm(inRecords, ByteString.copyFromUtf8(String.join("\n", keys))));
        }
        if (!message.getNative().getType().equals(one)) {
            message.setContent(Texts.cut(message.getContent(), TEXT_BYTES));
            if (message.hasToolResult()) {
                String content = message.getToolResult().getContent();
                message.getToolResultBuilder().setContent(Texts.cut(content, TEXT_BYTES));
            }
        }
        return message.build();
    }

    private static Native nativeForm(String type, ByteString value) {
        return Native.newBuilder().setType(type).setValue(value).build();
    }

    /** Returns a message with the texts of the newest of several ones. */
    private Message.Builder transcript(List<String> lines) {
        String text = lines.subList(Math.max(0, lines.size() - NEWEST), lines.size()).stream()
                .map(line -> codec.readable(decode(line)))
                .map(Entries::textOf)
                .collect(Collectors.joining("\n"));
        return Message.newBuilder().setRole(Role.ROLE_USER).setContent(text);
    }

    private static String textOf(Message message) {
        String text = message.hasToolResult() ? message.getToolResult().getContent() : message.getContent();
        return switch (message.getRole()) {
            case ROLE_ASSISTANT -> "assistant: ";
            case ROLE_SYSTEM -> "system: ";
            case ROLE_TOOL -> "tool: ";
            default -> "user: ";
        } + text;
    }
}
