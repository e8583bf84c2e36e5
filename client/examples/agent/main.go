// Command agent is an example of an agent in Go: a small shop assistant that implements AgentService, so
// that Parley can call it to answer Chat.
//
//	go run ./client/examples/agent -address 127.0.0.1:7001
//
// and in the configuration of the server:
//
//	agents:
//	  shop: {kind: remote, address: "127.0.0.1:7001"}
//
// The agent keeps no state between two calls: everything that it knows is in the messages of the call. It
// may be restarted in the middle of a conversation, and several instances may serve one conversation.
//
//	the last message             text                            product_list      summary
//	create three products        Created Flour, Sugar and Salt.  their names       created three products
//	Sugar costs 50 cents         Sugar costs 50 cents.           "cents": 50       set a price
//	the second one is sold out   Sugar is sold out.              "sold_out": true  marked a product as sold out
//	– before any product         There are no products yet.      –                 found no products
//	– of no such product         There is no product Tea.        –                 did not find a product
//	                             There is no third product.
//	anything else                You said: hello. I know         –                 repeated what was said
//	                             1 messages.
//	slow                         tick, 5 a second for a minute   –                 ticked for a minute
//	fail                         This will                       –                 –
//
// After "This will", fail returns the status UNAVAILABLE with the message "the shop is closed". The commands
// ignore case, and the first three may end with a full stop. "First", "second" and "third" refer to the
// newest product_list of the history, which also contains the prices.
//
// Start at newShop.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	productList = "product_list"

	ticks     = 300
	tickEvery = 200 * time.Millisecond

	// stopGrace limits the time for running answers at a stop.
	stopGrace = 2 * time.Second
)

func main() {
	address := flag.String("address", "127.0.0.1:7001",
		"address of AgentService, `host:port`; with port 0 the system chooses a port")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := serve(ctx, *address, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

// serve serves the shop until ctx ends. It writes a line with its address to out when it listens. There is no TLS, so
// use it only on a loopback address or in a trusted network.
func serve(ctx context.Context, address string, out io.Writer) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(server, newShop())
	// Parley calls only agents with the health status SERVING, which this one has until it stops.
	healthServer := health.NewServer()
	healthv1.RegisterHealthServer(server, healthServer)
	fmt.Fprintf(out, "agent serves AgentService address=%s\n", listener.Addr())

	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	healthServer.Shutdown()
	stopTimer := time.AfterFunc(stopGrace, server.Stop)
	defer stopTimer.Stop()
	server.GracefulStop()
	return <-served
}

// shop implements AgentService. It only contains the patterns of its commands.
type shop struct {
	parleyv1.UnimplementedAgentServiceServer
	price, soldOut *regexp.Regexp
}

// newShop returns a shop that is ready to serve.
func newShop() *shop {
	return &shop{
		price:   regexp.MustCompile(`(?i)^(.+) costs (\d{1,9}) cents\.?$`),
		soldOut: regexp.MustCompile(`(?i)^the (first|second|third) one is sold out\.?$`),
	}
}

// Respond streams the answer to the last message. The context of stream ends when the turn ends, for example
// because the user has cancelled it or its time limit is reached.
func (s *shop) Respond(
	request *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse],
) error {
	messages := request.GetMessages()
	if len(messages) == 0 {
		return status.Error(codes.InvalidArgument, "messages is empty: there is nothing to answer")
	}
	switch strings.ToLower(strings.TrimSpace(messages[len(messages)-1].GetContent())) {
	case "fail":
		if err := sendWords(stream, "This will "); err != nil {
			return err
		}
		// An agent returns a status if it fails. Parley stores the sent part as an incomplete
		// message, and the user sees the message of the status.
		return status.Error(codes.Unavailable, "the shop is closed")
	case "slow":
		return slow(stream)
	default:
		return send(stream, s.answer(messages))
	}
}

// answer is the answer of the shop to one message.
type answer struct {
	text string
	// summary is a short clause for coordinators, which decide which agent gets the next message.
	summary string
	// products is the new list of products; nil if it has not changed.
	products *structpb.ListValue
}

// answer returns the answer to the last message.
func (s *shop) answer(messages []*parleyv1.Message) answer {
	content := messages[len(messages)-1].GetContent()
	command := strings.TrimSpace(content)
	if strings.EqualFold(strings.TrimSuffix(command, "."), "create three products") {
		return answer{"Created Flour, Sugar and Salt.", "created three products", newProducts("Flour", "Sugar", "Salt")}
	}
	price, soldOut := s.price.FindStringSubmatch(command), s.soldOut.FindStringSubmatch(command)
	if price == nil && soldOut == nil {
		return answer{
			text: fmt.Sprintf("You said: %s. I know %d messages.", content, len(messages)), summary: "repeated what was said",
		}
	}
	products := newestProducts(messages)
	switch {
	case len(products.GetValues()) == 0:
		return answer{text: "There are no products yet.", summary: "found no products"}
	case price != nil:
		return setPrice(products, price[1], price[2])
	default:
		return markSoldOut(products, strings.ToLower(soldOut[1]))
	}
}

// setPrice sets the price of the product with that name. It ignores case.
func setPrice(products *structpb.ListValue, name, cents string) answer {
	for _, value := range products.GetValues() {
		product := value.GetStructValue().GetFields()
		if !strings.EqualFold(product["name"].GetStringValue(), name) {
			continue
		}
		number, _ := strconv.Atoi(cents) // The pattern allows nine digits, which always fit.
		product["cents"] = structpb.NewNumberValue(float64(number))
		return answer{fmt.Sprintf("%s costs %d cents.", product["name"].GetStringValue(), number), "set a price", products}
	}
	return answer{text: fmt.Sprintf("There is no product %s.", name), summary: "did not find a product"}
}

// markSoldOut marks the product at a position of the list.
func markSoldOut(products *structpb.ListValue, ordinal string) answer {
	index := slices.Index([]string{"first", "second", "third"}, ordinal)
	if index >= len(products.GetValues()) {
		return answer{text: fmt.Sprintf("There is no %s product.", ordinal), summary: "did not find a product"}
	}
	product := products.GetValues()[index].GetStructValue().GetFields()
	product["sold_out"] = structpb.NewBoolValue(true)
	return answer{product["name"].GetStringValue() + " is sold out.", "marked a product as sold out", products}
}

// newProducts returns a list of products with these names.
func newProducts(names ...string) *structpb.ListValue {
	list := new(structpb.ListValue)
	for _, name := range names {
		product := &structpb.Struct{Fields: map[string]*structpb.Value{"name": structpb.NewStringValue(name)}}
		list.Values = append(list.Values, structpb.NewStructValue(product))
	}
	return list
}

// newestProducts returns a copy of the newest list of products, or nil if there is none.
func newestProducts(messages []*parleyv1.Message) *structpb.ListValue {
	for _, message := range slices.Backward(messages) {
		for _, data := range slices.Backward(message.GetStructuredData()) {
			if data.GetType() == productList && isProducts(data.GetValue().GetListValue()) {
				return proto.CloneOf(data.GetValue().GetListValue())
			}
		}
	}
	return nil
}

// isProducts reports whether list is a list of objects with names. It may be something else, because other programs may
// append messages.
func isProducts(list *structpb.ListValue) bool {
	return list != nil && !slices.ContainsFunc(list.GetValues(), func(v *structpb.Value) bool {
		return v.GetStructValue().GetFields()["name"].GetStringValue() == ""
	})
}

// send streams the answer: the text, then the products and the summary.
func send(stream grpc.ServerStreamingServer[parleyv1.RespondResponse], a answer) error {
	if err := sendWords(stream, a.text); err != nil {
		return err
	}
	if a.products != nil {
		data := &parleyv1.StructuredData{Type: productList, Value: structpb.NewListValue(a.products)}
		piece := &parleyv1.RespondResponse_StructuredData{StructuredData: data}
		if err := stream.Send(&parleyv1.RespondResponse{Piece: piece}); err != nil {
			return err
		}
	}
	return sendSummary(stream, a.summary)
}

// slow sends ticks for a minute or until the context of stream ends.
func slow(stream grpc.ServerStreamingServer[parleyv1.RespondResponse]) error {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for range ticks {
		if err := sendText(stream, "tick "); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	return sendSummary(stream, "ticked for a minute")
}

// sendWords sends each word as one piece.
func sendWords(stream grpc.ServerStreamingServer[parleyv1.RespondResponse], text string) error {
	for word := range strings.SplitAfterSeq(text, " ") {
		if word == "" {
			continue
		}
		if err := sendText(stream, word); err != nil {
			return err
		}
	}
	return nil
}

func sendText(stream grpc.ServerStreamingServer[parleyv1.RespondResponse], text string) error {
	return stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}})
}

func sendSummary(stream grpc.ServerStreamingServer[parleyv1.RespondResponse], summary string) error {
	return stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Summary{Summary: summary}})
}
