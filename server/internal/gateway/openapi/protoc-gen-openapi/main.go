// Command protoc-gen-openapi is a protoc plugin that describes the HTTP door in OpenAPI 3.1:
// openapi.json, one document for all services that have paths. It takes one parameter,
// grpc_api_configuration, the file that gives them, as protoc-gen-grpc-gateway does. Comments
// become descriptions, and the rules of protovalidate keywords of JSON Schema where there are
// such.
//
// It is a program of this project because what has to be said is this door's own: bare
// replies as lines or events, resuming, statuses. What it does not know it refuses.
package main

import (
	"flag"
	"fmt"
	"os"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	var flags flag.FlagSet
	configuration := flags.String("grpc_api_configuration", "", "file that says how each call is reached over HTTP")
	protogen.Options{ParamFunc: flags.Set}.Run(func(plugin *protogen.Plugin) error {
		plugin.SupportedFeatures = uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL)
		data, err := os.ReadFile(*configuration)
		if err != nil {
			return fmt.Errorf("grpc_api_configuration: %w", err)
		}
		paths, err := parseBindings(data)
		if err != nil {
			return fmt.Errorf("%s: %w", *configuration, err)
		}
		encoded, err := generate(plugin.Files, paths)
		if err != nil {
			return err
		}
		_, err = plugin.NewGeneratedFile("openapi.json", "").Write(encoded)
		return err
	})
}
