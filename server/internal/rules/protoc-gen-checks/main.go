// Command protoc-gen-checks is a protoc plugin that generates fast checks of messages from the rules of
// protovalidate in the protos. A check only reports whether a message is certainly valid. It is plain Go without
// reflection, regular expressions and allocations. Protovalidate decides about all other messages, so the plugin
// supports only the rules of the most frequent requests. If it does not support the rules of a list, a map, a message
// or an optional field, the check requires that the field is not set. Any other rule that it does not support is an
// error.
//
// The parameter messages has the names of the messages to check, separated by "+".
//
// Start at generate.
package main

import (
	"flag"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	var flags flag.FlagSet
	messages := flags.String("messages", "", "names of the messages, separated by +")
	protogen.Options{ParamFunc: flags.Set}.Run(func(plugin *protogen.Plugin) error {
		plugin.SupportedFeatures = uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL)
		return generate(plugin, strings.Split(*messages, "+"))
	})
}
