package dev.parley.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import com.google.protobuf.Message;
import com.google.protobuf.util.JsonFormat;
import dev.parley.v1.AppendMessagesResponse;
import dev.parley.v1.AppendStreamRequest;
import dev.parley.v1.TurnEvent;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** The calls of client/testdata/calls.json, which explains itself in "about". */
class TableTest {
    private final Map<String, String> saved = new HashMap<>();
    private Parleyd server;
    private ParleyClient client;

    @BeforeEach
    void start() throws Exception {
        server = Parleyd.start();
        client = ParleyClient.connect(server.address());
    }

    @AfterEach
    void stop() throws Exception {
        client.close();
        server.close();
    }

    @TestFactory
    Stream<DynamicTest> callsOfTheTable() throws Exception {
        var steps = table().getAsJsonArray("steps").asList();
        assertTrue(steps.size() > 50, steps.size() + " steps");
        return steps.stream()
                .map(JsonElement::getAsJsonObject)
                .map(step -> dynamicTest(step.get("name").getAsString(), () -> run(step)));
    }

    @TestFactory
    Stream<DynamicTest> appendsOfTheTableWithAnAppender() throws Exception {
        var appender = client.appender();
        return table().getAsJsonArray("steps").asList().stream()
                .map(JsonElement::getAsJsonObject)
                .map(step -> dynamicTest(step.get("name").getAsString(), () -> {
                    if (!step.get("call").getAsString().equals("AppendMessages")) {
                        run(step);
                        return;
                    }
                    var request = (dev.parley.v1.AppendMessagesRequest) request(
                            step.get("request"), dev.parley.v1.AppendMessagesRequest.newBuilder());
                    check(step, () -> json(join(appender.append(request))));
                }));
    }

    /** A step that could not fail would test nothing. */
    @Test
    void differencesAreFound() {
        var got = JsonParser.parseString("{\"a\": {\"b\": [1, {\"c\": \"x\"}]}, \"d\": \"\"}");
        assertEquals(List.of(), differences("", JsonParser.parseString("{\"a\": {\"b\": [1, {\"c\": \"*\"}]}}"), got));
        for (var want : List.of(
                "{\"a\": {\"b\": [1]}}", "{\"a\": {\"b\": [2, {}]}}", "{\"d\": \"*\"}", "{\"e\": 1}", "{\"a\": 1}")) {
            assertEquals(1, differences("", JsonParser.parseString(want), got).size(), want);
        }
    }

    private static JsonObject table() throws Exception {
        var path = Parleyd.repository().resolve("client/testdata/calls.json");
        return JsonParser.parseString(Files.readString(path)).getAsJsonObject();
    }

    private void run(JsonObject step) throws Exception {
        String call = step.get("call").getAsString();
        if (step.has("answers")) {
            append(step.getAsJsonArray("request"), step.getAsJsonArray("answers"));
            return;
        }
        Method method = Stream.of(ParleyClient.class.getMethods())
                .filter(each -> each.getName().equalsIgnoreCase(call))
                .findFirst()
                .orElseThrow(() -> new AssertionError("ParleyClient has no method for " + call));
        var builder = (Message.Builder)
                method.getParameterTypes()[0].getMethod("newBuilder").invoke(null);
        Message request = request(step.get("request"), builder);
        check(step, () -> {
            try {
                return result(step, method.invoke(client, request));
            } catch (InvocationTargetException thrown) {
                throw (Exception) thrown.getCause();
            }
        });
    }

    /** Sends all requests with an appender, then checks their answers. */
    private void append(JsonArray requests, JsonArray answers) throws Exception {
        assertEquals(requests.size(), answers.size());
        try (Appender appender = client.appender()) {
            List<CompletableFuture<AppendMessagesResponse>> replies = new ArrayList<>();
            for (JsonElement each : requests) {
                var request = (AppendStreamRequest) request(each, AppendStreamRequest.newBuilder());
                replies.add(appender.append(request.getAppend()));
            }
            for (int i = 0; i < replies.size(); i++) {
                var reply = replies.get(i);
                check(answers.get(i).getAsJsonObject(), () -> json(join(reply)));
            }
        }
    }

    private static <T> T join(CompletableFuture<T> future) {
        try {
            return future.join();
        } catch (CompletionException failure) {
            throw (ParleyException) failure.getCause();
        }
    }

    private interface Call {
        JsonElement make() throws Exception;
    }

    /** Makes the call of a step, checks its result, and saves values of it. */
    private void check(JsonObject step, Call call) throws Exception {
        if (step.has("error")) {
            var want = step.getAsJsonObject("error");
            var error = assertThrows(ParleyException.class, call::make);
            assertEquals(want.get("code").getAsString(), error.code().name(), error::toString);
            assertEquals(want.get("reason").getAsString(), error.reason(), error::toString);
            Set<String> fields = new HashSet<>();
            if (want.has("fields")) {
                want.getAsJsonArray("fields").forEach(field -> fields.add(field.getAsString()));
            }
            Set<String> violated = new HashSet<>();
            error.fieldViolations().forEach(violation -> violated.add(violation.field()));
            assertEquals(fields, violated);
            return;
        }
        JsonElement got = call.make();
        for (String kind : List.of("want", "turn", "changes")) {
            if (step.has(kind)) {
                assertEquals(List.of(), differences("", step.get(kind), got), got::toString);
            }
        }
        if (step.has("save")) {
            for (var name : step.getAsJsonObject("save").entrySet()) {
                JsonElement at = got;
                for (String key : name.getValue().getAsString().split("\\.")) {
                    at = at.isJsonArray()
                            ? at.getAsJsonArray().get(Integer.parseInt(key))
                            : at.getAsJsonObject().get(key);
                }
                saved.put(name.getKey(), at.getAsString());
            }
        }
    }

    /** Returns a request with the saved values. */
    private Message request(JsonElement json, Message.Builder builder) throws Exception {
        String text = json.toString();
        for (var value : saved.entrySet()) {
            text = text.replace("${" + value.getKey() + "}", value.getValue());
        }
        assertTrue(!text.contains("${"), text);
        JsonFormat.parser().merge(text, builder);
        return builder.build();
    }

    /** Returns what a call has returned, in the form in which the table describes it. */
    private static JsonElement result(JsonObject step, Object returned) throws Exception {
        if (returned instanceof Message message) {
            return json(message);
        }
        try (var stream = (ParleyStream<?>) returned) {
            if (step.has("changes")) {
                var changes = new JsonArray();
                while (changes.size() < step.getAsJsonArray("changes").size() && stream.hasNext()) {
                    changes.add(json((Message) stream.next()));
                }
                return changes;
            }
            var text = new StringBuilder();
            var turn = new JsonObject();
            for (Object item : stream) {
                if (!(item instanceof TurnEvent event)) {
                    continue;
                }
                text.append(event.getTextDelta().getText());
                if (event.hasFinished()) {
                    var messages = new JsonArray();
                    for (var message : event.getFinished().getMessagesList()) {
                        messages.add(json(message));
                    }
                    turn.add("messages", messages);
                    turn.addProperty("state", event.getFinished().getTurn().getState().name());
                }
            }
            turn.addProperty("text", text.toString());
            return turn;
        }
    }

    private static JsonElement json(Message message) throws Exception {
        return JsonParser.parseString(JsonFormat.printer().print(message));
    }

    /** Returns a description of each place where got does not match want. */
    private static List<String> differences(String path, JsonElement want, JsonElement got) {
        List<String> faults = new ArrayList<>();
        if (want.isJsonObject() && got.isJsonObject()) {
            for (var field : want.getAsJsonObject().entrySet()) {
                String inner = path + "." + field.getKey();
                JsonElement value = got.getAsJsonObject().get(field.getKey());
                if (value == null) {
                    faults.add(inner + " is missing, want " + field.getValue());
                } else {
                    faults.addAll(differences(inner, field.getValue(), value));
                }
            }
            return faults;
        }
        if (want.isJsonArray() && got.isJsonArray()) {
            var wanted = want.getAsJsonArray();
            var list = got.getAsJsonArray();
            if (wanted.size() != list.size()) {
                return List.of(path + " is " + list + ", want " + wanted.size() + " elements");
            }
            for (int i = 0; i < wanted.size(); i++) {
                faults.addAll(differences(path + "." + i, wanted.get(i), list.get(i)));
            }
            return faults;
        }
        boolean any = want.equals(new JsonPrimitive("*")) && got.isJsonPrimitive() && !got.getAsString().isEmpty();
        return any || want.equals(got) ? List.of() : List.of(path + " is " + got + ", want " + want);
    }
}
