package dev.parley.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.parley.v1.ChatRequest;
import dev.parley.v1.TurnEvent;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** The snippets of README.md. */
@Timeout(120)
class ReadmeTest {
    private static final String ADDRESS = "127.0.0.1:50051";
    private static final String PLACE = "// Insert one of the snippets below.";
    private static final String AGENT = "An agent of your own";
    private static final String SIGN_IN = "Sign in and TLS";

    /** What the snippets print, in the order of the page. */
    private static final Map<String, String> PRINTED = new LinkedHashMap<>();

    static {
        PRINTED.put("Append", "stored as message 1\nstored as message 2\n");
        PRINTED.put("Load", "ROLE_USER Which libraries keep state?\nROLE_ASSISTANT Zustand and Jotai do.\n");
        PRINTED.put("Chat", "Tell me more.\nTURN_STATE_COMPLETED\n");
        PRINTED.put("Route", "Previous: listed two libraries, Tell me more.\n");
        PRINTED.put("Watch", "libraries: And in React?\n");
        PRINTED.put("Keep", "Archive\n");
        PRINTED.put("Records", "state/search has another revision: true\nstate/search {\"step\": 2}\n");
        PRINTED.put("Append many messages", "100\n");
        PRINTED.put("Replace", "stored as message 1\nstored as message 2\n");
        PRINTED.put("Errors", "INVALID_ARGUMENT INVALID_REQUEST\nconversation_id\n");
    }

    private static Map<String, String> snippets() throws Exception {
        return Snippets.of(Parleyd.repository().resolve("client/java/README.md"));
    }

    @Test
    void theSnippetsPrintWhatTheyShould() throws Exception {
        var snippets = snippets();
        String connect = snippets.get("Connect");
        assertTrue(connect.contains(ADDRESS) && connect.contains(PLACE), connect);
        List<String> rest = new ArrayList<>(snippets.keySet());
        rest.removeAll(List.of("Connect", AGENT, SIGN_IN));
        assertEquals(List.copyOf(PRINTED.keySet()), rest);
        try (var server = Parleyd.start()) {
            String program = connect.replace(ADDRESS, server.address());
            for (var each : PRINTED.entrySet()) {
                assertEquals(
                        each.getValue(),
                        Snippets.run(program.replace(PLACE, snippets.get(each.getKey()))),
                        each::getKey);
            }
        }
    }

    @Test
    void theAgentAnswers() throws Exception {
        Agent parrot = (Agent) Snippets.compile(snippets().get(AGENT)).getConstructor().newInstance();
        try (var agent = parrot.start("127.0.0.1:0");
                var server = Parleyd.start(Parleyd.agent(agent.address()));
                var client = ParleyClient.connect(server.address())) {
            List<TurnEvent> events = new ArrayList<>();
            client.chat(ChatRequest.newBuilder().setContent("hello there").build()).forEach(events::add);
            var finished = events.get(events.size() - 1).getFinished();
            assertEquals("hello there ", finished.getMessages(0).getContent());
        }
    }

    @Test
    void theProgramSignsIn(@TempDir Path folder) throws Exception {
        var authority = new Certificates(folder);
        Path tokens = folder.resolve("tokens.yaml");
        Path token = folder.resolve("shop.token");
        java.nio.file.Files.writeString(token, Certificates.createToken(tokens));
        try (var server = Parleyd.start(authority.settings(tokens))) {
            String program = snippets().get(SIGN_IN)
                    .replace("localhost:50051", "localhost:" + server.address().replaceFirst(".*:", ""))
                    .replace("\"shop.token\"", "\"" + token + "\"")
                    .replace("\"ca.pem\"", "\"" + authority.certificate() + "\"");
            assertEquals("echo\n", Snippets.run(program));
        }
    }
}
