package dev.parley.springai;

import dev.parley.adapter.Codec;
import dev.parley.v1.Role;
import dev.parley.v1.ToolResult;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.springframework.ai.chat.messages.AbstractMessage;
import org.springframework.ai.chat.messages.AssistantMessage;
import org.springframework.ai.chat.messages.Message;
import org.springframework.ai.chat.messages.MessageType;
import org.springframework.ai.chat.messages.SystemMessage;
import org.springframework.ai.chat.messages.ToolResponseMessage;
import org.springframework.ai.chat.messages.UserMessage;
import org.springframework.ai.content.Media;
import org.springframework.ai.content.MediaContent;
import org.springframework.util.MimeType;

/** Messages of Spring AI as JSON: all types, with metadata, media, tool calls and tool responses. */
final class MessageCodec implements Codec<Message> {
    private static final int MAX_CALL_ID_BYTES = 256;
    private static final int MAX_NAME_BYTES = 128;

    @Override
    public String encode(Message message) {
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("type", message.getMessageType().getValue());
        json.put("text", message.getText());
        json.put("metadata", metadata(message));
        if (message instanceof AssistantMessage assistant && assistant.hasToolCalls()) {
            json.put("toolCalls", assistant.getToolCalls().stream().map(MessageCodec::json).toList());
        }
        if (message instanceof ToolResponseMessage tool) {
            json.put("responses", tool.getResponses().stream().map(MessageCodec::json).toList());
        }
        if (message instanceof MediaContent content && !content.getMedia().isEmpty()) {
            json.put("media", content.getMedia().stream().map(MessageCodec::json).toList());
        }
        return Values.write(json);
    }

    private static Object metadata(Message message) {
        Map<String, Object> metadata = new HashMap<>(message.getMetadata());
        // Each message sets it by its type.
        metadata.remove(AbstractMessage.MESSAGE_TYPE);
        for (var entry : metadata.entrySet()) {
            try {
                entry.setValue(Values.plain(entry.getValue()));
            } catch (IllegalArgumentException error) {
                throw new IllegalArgumentException(
                        "the metadata \"" + entry.getKey() + "\" of a message: " + error.getMessage(), error);
            }
        }
        return new java.util.TreeMap<>(metadata);
    }

    private static Map<String, Object> json(AssistantMessage.ToolCall call) {
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("id", call.id());
        json.put("type", call.type());
        json.put("name", call.name());
        json.put("arguments", call.arguments());
        return json;
    }

    private static Map<String, Object> json(ToolResponseMessage.ToolResponse response) {
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("id", response.id());
        json.put("name", response.name());
        json.put("responseData", response.responseData());
        return json;
    }

    private static Map<String, Object> json(Media media) {
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("mimeType", media.getMimeType().toString());
        json.put("id", media.getId());
        json.put("name", media.getName());
        json.put("data", Values.plain(media.getData()));
        return json;
    }

    @Override
    public Message decode(String line) {
        Map<?, ?> json = (Map<?, ?>) Values.read(line);
        String text = (String) json.get("text");
        @SuppressWarnings("unchecked")
        var metadata = (Map<String, Object>) Values.restored(json.get("metadata"));
        return switch (MessageType.valueOf(((String) json.get("type")).toUpperCase(java.util.Locale.ROOT))) {
            case USER -> UserMessage.builder()
                    .text(text)
                    .metadata(metadata)
                    .media(media(json))
                    .build();
            case SYSTEM -> SystemMessage.builder().text(text).metadata(metadata).build();
            case ASSISTANT -> AssistantMessage.builder()
                    .content(text)
                    .properties(metadata)
                    .toolCalls(objects(json, "toolCalls").stream()
                            .map(call -> new AssistantMessage.ToolCall(
                                    text(call, "id"), text(call, "type"), text(call, "name"), text(call, "arguments")))
                            .toList())
                    .media(media(json))
                    .build();
            case TOOL -> ToolResponseMessage.builder()
                    .responses(objects(json, "responses").stream()
                            .map(response -> new ToolResponseMessage.ToolResponse(
                                    text(response, "id"), text(response, "name"), text(response, "responseData")))
                            .toList())
                    .metadata(metadata)
                    .build();
        };
    }

    private static List<Media> media(Map<?, ?> json) {
        List<Media> list = new ArrayList<>();
        for (Map<?, ?> each : objects(json, "media")) {
            var builder = Media.builder()
                    .mimeType(MimeType.valueOf(text(each, "mimeType")))
                    .name(text(each, "name"));
            if (each.get("id") != null) {
                builder.id(text(each, "id"));
            }
            Object data = Values.restored(each.get("data"));
            list.add((data instanceof byte[] bytes ? builder.data(bytes) : builder.data((String) data)).build());
        }
        return list;
    }

    private static List<Map<?, ?>> objects(Map<?, ?> json, String key) {
        List<Map<?, ?>> objects = new ArrayList<>();
        if (json.get(key) instanceof List<?> list) {
            list.forEach(each -> objects.add((Map<?, ?>) each));
        }
        return objects;
    }

    private static String text(Map<?, ?> json, String key) {
        return (String) json.get(key);
    }

    @Override
    public dev.parley.v1.Message readable(Message message) {
        var readable = dev.parley.v1.Message.newBuilder();
        if (message instanceof ToolResponseMessage tool) {
            var result = ToolResult.newBuilder()
                    .setCallId("unknown")
                    .setContent(tool.getResponses().stream()
                            .map(response -> String.valueOf(response.responseData()))
                            .collect(Collectors.joining("\n")));
            tool.getResponses().stream().findFirst().ifPresent(first -> {
                if (first.id() != null && !first.id().isEmpty() && size(first.id()) <= MAX_CALL_ID_BYTES) {
                    result.setCallId(first.id());
                }
                if (first.name() != null && size(first.name()) <= MAX_NAME_BYTES) {
                    result.setName(first.name());
                }
            });
            return readable.setRole(Role.ROLE_TOOL).setToolResult(result).build();
        }
        List<String> texts = new ArrayList<>();
        if (message.getText() != null && !message.getText().isEmpty()) {
            texts.add(message.getText());
        }
        if (message instanceof AssistantMessage assistant) {
            assistant.getToolCalls().forEach(call -> texts.add("[calls " + call.name() + "]"));
        }
        if (message instanceof MediaContent content) {
            content.getMedia().forEach(media -> texts.add("[" + media.getMimeType() + "]"));
        }
        return readable.setContent(String.join("\n", texts))
                .setRole(
                        switch (message.getMessageType()) {
                            case ASSISTANT -> Role.ROLE_ASSISTANT;
                            case SYSTEM -> Role.ROLE_SYSTEM;
                            default -> Role.ROLE_USER;
                        })
                .build();
    }

    private static int size(String text) {
        return text.getBytes(StandardCharsets.UTF_8).length;
    }

    @Override
    public Message foreign(dev.parley.v1.Message message) {
        Map<String, Object> metadata = Map.copyOf(message.getMetadataMap());
        return switch (message.getRole()) {
            case ROLE_ASSISTANT -> AssistantMessage.builder()
                    .content(message.getContent())
                    .properties(metadata)
                    .toolCalls(message.getToolCallsList().stream()
                            .map(call -> new AssistantMessage.ToolCall(
                                    call.getId(), "function", call.getName(), call.getArguments()))
                            .toList())
                    .build();
            case ROLE_SYSTEM -> SystemMessage.builder()
                    .text(message.getContent())
                    .metadata(metadata)
                    .build();
            case ROLE_TOOL -> ToolResponseMessage.builder()
                    .responses(List.of(new ToolResponseMessage.ToolResponse(
                            message.getToolResult().getCallId(),
                            message.getToolResult().getName(),
                            message.getToolResult().getContent())))
                    .metadata(metadata)
                    .build();
            default -> UserMessage.builder()
                    .text(message.getContent())
                    .metadata(metadata)
                    .build();
        };
    }
}
