package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// actAsGrpcurl is set in the environment when the test binary is to act as grpcurl.
const actAsGrpcurl = "PARLEY_TEST_GRPCURL"

// TestActAsGrpcurl is no test of its own. It makes the call that grpcurl would make for the same arguments: it finds
// the method by reflection and converts JSON with the descriptors that the server sends. grpcurl itself takes a minute
// to build. Of its flags only -plaintext, -cacert, -H and -d are known. Replies go to file descriptor 3.
func TestActAsGrpcurl(t *testing.T) {
	if os.Getenv(actAsGrpcurl) == "" {
		t.Skip("run by TestCommandsOfPages")
	}
	flags := flag.NewFlagSet("grpcurl", flag.ContinueOnError)
	plaintext := flags.Bool("plaintext", false, "")
	authorities := flags.String("cacert", "", "")
	data := flags.String("d", "", "")
	var headers []string
	flags.Func("H", "", func(header string) error {
		name, value, _ := strings.Cut(header, ": ")
		headers = append(headers, name, value)
		return nil
	})
	if err := flags.Parse(flag.Args()); err != nil {
		t.Fatal(err)
	}
	if *plaintext == (*authorities != "") || flags.NArg() != 2 {
		t.Fatalf("grpcurl %q: -plaintext or -cacert, an address and a method are required", flag.Args())
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), headers...)
	security := insecure.NewCredentials()
	if !*plaintext {
		var err error
		if security, err = credentials.NewClientTLSFromFile(*authorities, ""); err != nil {
			t.Fatal(err)
		}
	}
	if *data == "@" {
		read, err := io.ReadAll(os.Stdin)
		if err != nil {
			t.Fatal(err)
		}
		*data = string(read)
	}
	conn, err := grpc.NewClient(flags.Arg(0), grpc.WithTransportCredentials(security))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	method, err := reflectMethod(ctx, conn, flags.Arg(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := callByJSON(ctx, conn, method, *data, os.NewFile(3, "replies")); err != nil {
		t.Fatal(err)
	}
}

// reflectMethod returns the method "package.Service/Method" as the server describes it.
func reflectMethod(ctx context.Context, conn *grpc.ClientConn, name string) (protoreflect.MethodDescriptor, error) {
	service, method, _ := strings.Cut(name, "/")
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	var set descriptorpb.FileDescriptorSet
	known := map[string]bool{}
	ask := func(request *reflectionv1.ServerReflectionRequest) error {
		if err := stream.Send(request); err != nil {
			return err
		}
		reply, err := stream.Recv()
		if err != nil {
			return err
		}
		if e := reply.GetErrorResponse(); e != nil {
			return errors.New(e.GetErrorMessage())
		}
		for _, encoded := range reply.GetFileDescriptorResponse().GetFileDescriptorProto() {
			file := new(descriptorpb.FileDescriptorProto)
			if err := proto.Unmarshal(encoded, file); err != nil {
				return err
			}
			if !known[file.GetName()] {
				known[file.GetName()] = true
				set.File = append(set.File, file)
			}
		}
		return nil
	}
	err = ask(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service},
	})
	for i := 0; err == nil && i < len(set.GetFile()); i++ { // The list grows while it is read.
		for _, imported := range set.GetFile()[i].GetDependency() {
			if err == nil && !known[imported] {
				err = ask(&reflectionv1.ServerReflectionRequest{
					MessageRequest: &reflectionv1.ServerReflectionRequest_FileByFilename{FileByFilename: imported},
				})
			}
		}
	}
	if err != nil {
		return nil, err
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		return nil, err
	}
	found, err := files.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, err
	}
	described, ok := found.(protoreflect.ServiceDescriptor)
	if !ok || described.Methods().ByName(protoreflect.Name(method)) == nil {
		return nil, fmt.Errorf("%s is not a method", name)
	}
	return described.Methods().ByName(protoreflect.Name(method)), nil
}

// callByJSON calls a method with the requests in data, which are separated by white space, and writes its replies. Data
// that is empty is one request without fields.
func callByJSON(
	ctx context.Context, conn *grpc.ClientConn, method protoreflect.MethodDescriptor, data string, w io.Writer,
) error {
	name := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, name)
	if strings.TrimSpace(data) == "" {
		data = "{}"
	}
	values := json.NewDecoder(strings.NewReader(data))
	for err == nil && values.More() {
		var value json.RawMessage
		request := dynamicpb.NewMessage(method.Input())
		if err = values.Decode(&value); err == nil {
			err = protojson.Unmarshal(value, request)
		}
		if err == nil {
			err = stream.SendMsg(request)
		}
	}
	if err == nil {
		err = stream.CloseSend()
	}
	for err == nil {
		reply := dynamicpb.NewMessage(method.Output())
		if err = stream.RecvMsg(reply); err == nil {
			// Like encoding/json, and unlike protojson, grpcurl has one space after a colon.
			_, err = fmt.Fprintln(w, strings.ReplaceAll(protojson.Format(reply), `":  `, `": `))
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
