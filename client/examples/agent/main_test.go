package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// asAgent is an environment variable. If it is set, the test binary runs the agent at that address.
const asAgent = "RUN_AS_AGENT"

// testTimeout limits the waits of the tests. Only a failing test reaches it.
const testTimeout = time.Minute

func TestMain(m *testing.M) {
	if address := os.Getenv(asAgent); address != "" {
		os.Args = []string{"agent", "-address", address}
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// program returns the command that runs the agent as a process.
func program(t *testing.T, address string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	// Otherwise the race detector delays the exit by 1 s.
	cmd.Env = append(os.Environ(), asAgent+"="+address, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// connect reads the address of an agent from the first line of out and returns a connection to it. It also returns the
// reader of the rest of out.
func connect(t *testing.T, out io.Reader) (*grpc.ClientConn, *bufio.Reader) {
	t.Helper()
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "agent serves AgentService address=")
	if !ok {
		t.Fatalf("first line = %q, want the address", line)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, lines
}

// start serves an agent until the test ends.
func start(t *testing.T) *grpc.ClientConn {
	t.Helper()
	read, write := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, "127.0.0.1:0", write) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	conn, _ := connect(t, read)
	return conn
}

// answerParts are the parts of an answer.
type answerParts struct {
	Text, Data, Summary string
}

// ask sends the history and a message with content. It returns the history with that message and the answer, and the
// parts of the answer.
func ask(
	t *testing.T, conn *grpc.ClientConn, history []*parleyv1.Message, content string,
) ([]*parleyv1.Message, answerParts, error) {
	t.Helper()
	history = append(history, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: content})
	stream, err := parleyv1.NewAgentServiceClient(conn).Respond(t.Context(), &parleyv1.RespondRequest{Messages: history})
	if err != nil {
		t.Fatal(err)
	}
	message := &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT}
	for {
		piece, err := stream.Recv()
		if err != nil {
			if err == io.EOF { //nolint:errorlint // gRPC returns io.EOF itself.
				err = nil
			}
			got := answerParts{Text: message.GetContent(), Summary: message.GetSummary()}
			for _, data := range message.GetStructuredData() {
				got.Data += data.GetType() + " " + compact(t, data)
			}
			return append(history, message), got, err
		}
		switch p := piece.GetPiece().(type) {
		case *parleyv1.RespondResponse_Text:
			if len(strings.Fields(p.Text)) != 1 {
				t.Errorf("piece of text = %q, want one word", p.Text)
			}
			message.Content += p.Text
		case *parleyv1.RespondResponse_StructuredData:
			message.StructuredData = append(message.StructuredData, p.StructuredData)
		case *parleyv1.RespondResponse_Summary:
			message.Summary += p.Summary
		default:
			t.Errorf("unexpected piece %v", piece)
		}
	}
}

// askSlow requests a long answer.
func askSlow(
	ctx context.Context, t *testing.T, conn *grpc.ClientConn,
) grpc.ServerStreamingClient[parleyv1.RespondResponse] {
	t.Helper()
	request := &parleyv1.RespondRequest{Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "slow"}}}
	stream, err := parleyv1.NewAgentServiceClient(conn).Respond(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// newValue decodes JSON.
func newValue(t *testing.T, text string) *structpb.Value {
	t.Helper()
	value := new(structpb.Value)
	if err := protojson.Unmarshal([]byte(text), value); err != nil {
		t.Fatal(err)
	}
	return value
}

// compact returns the value of data as compact JSON.
func compact(t *testing.T, data *parleyv1.StructuredData) string {
	t.Helper()
	text, err := json.Marshal(data.GetValue().AsInterface())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestConversation sends the messages of one conversation. Each answer is part of the history of the next message.
func TestConversation(t *testing.T) {
	const none, repeated, missing = "found no products", "repeated what was said", "did not find a product"
	turns := []struct {
		content string
		want    answerParts
	}{
		{"hello there", answerParts{"You said: hello there. I know 1 messages.", "", repeated}},
		{"Sugar costs 50 cents", answerParts{"There are no products yet.", "", none}},
		{"the first one is sold out", answerParts{"There are no products yet.", "", none}},
		{"Create three products", answerParts{
			"Created Flour, Sugar and Salt.", `product_list [{"name":"Flour"},{"name":"Sugar"},{"name":"Salt"}]`,
			"created three products",
		}},
		{"sugar costs 50 cents.", answerParts{
			"Sugar costs 50 cents.", `product_list [{"name":"Flour"},{"cents":50,"name":"Sugar"},{"name":"Salt"}]`,
			"set a price",
		}},
		{"Tea costs 5 cents", answerParts{"There is no product Tea.", "", missing}},
		{"sugar costs nothing", answerParts{"You said: sugar costs nothing. I know 13 messages.", "", repeated}},
		{"The second one is sold out", answerParts{
			"Sugar is sold out.", `product_list [{"name":"Flour"},{"cents":50,"name":"Sugar","sold_out":true},{"name":"Salt"}]`,
			"marked a product as sold out",
		}},
		{"SALT COSTS 7 CENTS", answerParts{
			"Salt costs 7 cents.",
			`product_list [{"name":"Flour"},{"cents":50,"name":"Sugar","sold_out":true},{"cents":7,"name":"Salt"}]`,
			"set a price",
		}},
		{
			"the fourth one is sold out", answerParts{"You said: the fourth one is sold out. I know 19 messages.", "", repeated},
		},
	}
	conn := start(t)
	var history []*parleyv1.Message
	for _, turn := range turns {
		var got answerParts
		var err error
		history, got, err = ask(t, conn, history, turn.content)
		if diff := cmp.Diff(turn.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", turn.content, err, diff)
		}
	}
}

// TestForeignProductLists sends product lists that other programs have written.
func TestForeignProductLists(t *testing.T) {
	conn := start(t)
	tests := []struct{ list, content, want string }{
		{`[{"name":"Tea"}]`, "the third one is sold out", "There is no third product."},
		{`[]`, "the third one is sold out", "There are no products yet."},
		{`[{"name":1}]`, "the first one is sold out", "There are no products yet."},
		{`["Tea"]`, "Tea costs 1 cents", "There are no products yet."},
		{`"Tea"`, "Tea costs 1 cents", "There are no products yet."},
	}
	for _, test := range tests {
		data := &parleyv1.StructuredData{Type: productList, Value: newValue(t, test.list)}
		history := []*parleyv1.Message{
			{Role: parleyv1.Role_ROLE_ASSISTANT, StructuredData: []*parleyv1.StructuredData{data, {Type: "other"}}},
		}
		if _, got, err := ask(t, conn, history, test.content); got.Text != test.want || err != nil {
			t.Errorf("answer to %q after %s = %q, %v; want %q", test.content, test.list, got.Text, err, test.want)
		}
	}
}

func TestFails(t *testing.T) {
	conn := start(t)
	_, got, err := ask(t, conn, nil, "Fail")
	if s := status.Convert(err); s.Code() != codes.Unavailable || s.Message() != "the shop is closed" ||
		got != (answerParts{Text: "This will "}) {
		t.Errorf("answer to Fail = %q, %v, want the status UNAVAILABLE", got, err)
	}
	stream, err := parleyv1.NewAgentServiceClient(conn).Respond(t.Context(), &parleyv1.RespondRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("Respond without messages = %v, want INVALID_ARGUMENT", err)
	}
}

// TestSlow cancels a long answer. The answer must end, so that the agent stops at once at the end of the test.
func TestSlow(t *testing.T) {
	conn := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := askSlow(ctx, t, conn)
	for range 2 {
		if piece, err := stream.Recv(); piece.GetText() != "tick " || err != nil {
			t.Fatalf("piece = %v, %v, want a tick", piece, err)
		}
	}
	cancel()
	for err := error(nil); status.Code(err) != codes.Canceled; _, err = stream.Recv() {
		if status.Code(err) != codes.OK {
			t.Fatal(err)
		}
	}
}

// TestStops signals the program during an answer, while a client watches its health.
func TestStops(t *testing.T) {
	t.Parallel()
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel() // A stop waits two seconds for the answer.
			cmd := program(t, "127.0.0.1:0")
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			conn, rest := connect(t, out)
			watch, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := watch.Recv(); got.GetStatus() != healthv1.HealthCheckResponse_SERVING || err != nil {
				t.Errorf("health = %v, %v, want SERVING", got, err)
			}
			stream := askSlow(t.Context(), t, conn)
			if _, err = stream.Recv(); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if got, err := watch.Recv(); got.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING || err != nil {
				t.Errorf("health after the signal = %v, %v, want NOT_SERVING", got, err)
			}
			kill := time.AfterFunc(testTimeout, func() { _ = cmd.Process.Kill() })
			defer kill.Stop()
			for err == nil {
				_, err = stream.Recv()
			}
			if status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
				t.Errorf("the answer ended with %v, want UNAVAILABLE or CANCELLED", err)
			}
			if more, err := io.ReadAll(rest); len(more) > 0 || err != nil {
				t.Errorf("further output %q, %v, want none", more, err)
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, err := program(t, l.Addr().String()).CombinedOutput()
	if err == nil || !strings.HasPrefix(string(out), "agent: ") ||
		!strings.Contains(string(out), "address already in use") {
		t.Errorf("agent at a used address: %v, output %q, want an error", err, out)
	}
}
