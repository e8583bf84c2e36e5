package dev.parley.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.util.JsonFormat;
import dev.parley.v1.TurnEvent;
import java.nio.file.Files;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** The streams of client/testdata/views.json, which explains itself in "about". */
class ViewTest {
    @TestFactory
    Stream<DynamicTest> streamsOfTheTable() throws Exception {
        var path = Parleyd.repository().resolve("client/testdata/views.json");
        var table = JsonParser.parseString(Files.readString(path)).getAsJsonObject();
        return table.getAsJsonArray("cases").asList().stream()
                .map(JsonElement::getAsJsonObject)
                .map(each -> dynamicTest(each.get("name").getAsString(), () -> check(each)));
    }

    private static void check(JsonObject each) throws Exception {
        String turn = each.has("turn") ? each.get("turn").getAsString() : "";
        var view = new View(turn, each.has("after") ? each.get("after").getAsInt() : 0);
        for (JsonElement element : each.getAsJsonArray("steps")) {
            var step = element.getAsJsonObject();
            if (step.has("begin")) {
                view.startStream(step.get("begin").getAsInt());
            } else if (step.has("gone")) {
                assertEquals(step.get("gone").getAsBoolean(), view.restart(), step::toString);
            } else if (step.has("next")) {
                assertEquals(step.get("next").getAsInt(), view.resumeIndex(), step::toString);
            } else {
                assertEquals(event(step.get("shown")), view.newPart(event(step.get("take"))), step::toString);
            }
        }
    }

    private static TurnEvent event(JsonElement json) throws Exception {
        if (json.isJsonNull()) {
            return null;
        }
        var event = TurnEvent.newBuilder();
        JsonFormat.parser().merge(json.toString(), event);
        return event.build();
    }
}
