package dev.parley.langchain4j;

import dev.langchain4j.agent.tool.ToolExecutionRequest;
import dev.langchain4j.data.message.AiMessage;
import dev.langchain4j.data.message.ChatMessage;
import dev.langchain4j.data.message.ChatMessageDeserializer;
import dev.langchain4j.data.message.ChatMessageSerializer;
import dev.langchain4j.data.message.Content;
import dev.langchain4j.data.message.CustomMessage;
import dev.langchain4j.data.message.SystemMessage;
import dev.langchain4j.data.message.TextContent;
import dev.langchain4j.data.message.ToolExecutionResultMessage;
import dev.langchain4j.data.message.UserMessage;
import dev.parley.adapter.Codec;
import dev.parley.v1.Message;
import dev.parley.v1.Role;
import dev.parley.v1.ToolResult;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Messages of LangChain4j as the JSON of its own serializer. */
final class MessageCodec implements Codec<ChatMessage> {
    private static final int MAX_CALL_ID_BYTES = 256;
    private static final int MAX_NAME_BYTES = 128;

    @Override
    public String encode(ChatMessage message) {
        return ChatMessageSerializer.messageToJson(message);
    }

    @Override
    public ChatMessage decode(String line) {
        return ChatMessageDeserializer.messageFromJson(line);
    }

    @Override
    public Message readable(ChatMessage message) {
        var readable = Message.newBuilder();
        if (message instanceof ToolExecutionResultMessage tool) {
            var result = ToolResult.newBuilder()
                    .setCallId(isWithin(tool.id(), MAX_CALL_ID_BYTES) ? tool.id() : "unknown")
                    .setContent(textOf(tool.contents()))
                    .setIsError(Boolean.TRUE.equals(tool.isError()));
            if (isWithin(tool.toolName(), MAX_NAME_BYTES)) {
                result.setName(tool.toolName());
            }
            return readable.setRole(Role.ROLE_TOOL).setToolResult(result).build();
        }
        if (message instanceof AiMessage answer) {
            String text = Stream.concat(
                            Stream.ofNullable(answer.text()),
                            answer.toolExecutionRequests().stream().map(call -> "[calls " + call.name() + "]"))
                    .collect(Collectors.joining("\n"));
            return readable.setRole(Role.ROLE_ASSISTANT).setContent(text).build();
        }
        if (message instanceof SystemMessage system) {
            return readable.setRole(Role.ROLE_SYSTEM).setContent(system.text()).build();
        }
        readable.setRole(Role.ROLE_USER);
        if (message instanceof UserMessage user) {
            return readable.setContent(textOf(user.contents())).build();
        }
        if (message instanceof CustomMessage custom) {
            return readable.setContent(String.valueOf(custom.attributes())).build();
        }
        return readable.build();
    }

    private static String textOf(List<Content> contents) {
        return contents.stream()
                .map(content -> content instanceof TextContent text
                        ? text.text()
                        : "[" + content.type().name().toLowerCase(Locale.ROOT) + "]")
                .collect(Collectors.joining("\n"));
    }

    private static boolean isWithin(String text, int bytes) {
        return text != null && !text.isEmpty() && text.getBytes(StandardCharsets.UTF_8).length <= bytes;
    }

    @Override
    public ChatMessage foreign(Message message) {
        return switch (message.getRole()) {
            case ROLE_ASSISTANT -> AiMessage.builder()
                    .text(message.getContent())
                    .toolExecutionRequests(message.getToolCallsList().stream()
                            .map(call -> ToolExecutionRequest.builder()
                                    .id(call.getId())
                                    .name(call.getName())
                                    .arguments(call.getArguments())
                                    .build())
                            .toList())
                    .build();
            // These messages refuse an empty text.
            case ROLE_SYSTEM -> SystemMessage.from(notBlank(message.getContent()));
            case ROLE_TOOL -> ToolExecutionResultMessage.from(
                    message.getToolResult().getCallId(),
                    notBlank(message.getToolResult().getName()),
                    message.getToolResult().getContent());
            default -> UserMessage.from(notBlank(message.getContent()));
        };
    }

    private static String notBlank(String text) {
        return text.isBlank() ? "-" : text;
    }
}
