package agent

// Model is what the configuration says of an agent that is a model behind an HTTP API.
type Model struct {
	// BaseURL is where the API is, as in "http://127.0.0.1:11434/v1"; empty is the provider's own.
	BaseURL string
	// Model is the name by which the API knows it. Required.
	Model string
	// Key is sent as the provider wants it; empty sends none. It must never be in an error,
	// an event or a log.
	Key string
	// Headers are sent with every request. They may hold secrets as well.
	Headers map[string]string
	// Tools that the model may call. The callers of Chat run them.
	Tools []Tool
	// MaxOutputTokens bounds an answer; 0 is the provider's default, or 8192 where it has none.
	MaxOutputTokens int
	// Temperature is sent unless it is nil.
	Temperature *float64
}

// Tool is one that a model may call.
type Tool struct {
	// Name is what the model calls it: 1 to 64 of A-Z, a-z, 0-9, '_' and '-', as both
	// providers want it.
	Name string
	// Description tells the model what it is for; may be empty.
	Description string
	// Parameters is a JSON schema of type object; nil takes no arguments.
	Parameters map[string]any
}
