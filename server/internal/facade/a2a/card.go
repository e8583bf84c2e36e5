package a2a

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Media types of what agents accept and answer.
const (
	mediaText = "text/plain"
	mediaJSON = "application/json"
)

// cardAge is how long clients may use a card before they ask again, in seconds. Agents change with a restart only.
const cardAge = 300

// serveCard answers a request for the card of an agent. Everyone may read it, as the protocol assumes: a client learns
// from the card how to sign in.
func (h *handler) serveCard(w http.ResponseWriter, r *http.Request, agent *parleyv1.AgentInfo) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		h.refuse(w, r, cardPath, a2a.NewError(errNotAllowed, "the agent card allows GET and HEAD"))
		return
	}
	text, err := json.Marshal(h.card(r, agent))
	if err != nil {
		h.refuse(w, r, cardPath, a2a.ErrInternalError)
		return
	}
	sum := sha256.Sum256(text)
	tag := strconv.Quote(hex.EncodeToString(sum[:16]))
	header := w.Header()
	header.Set("Cache-Control", "public, max-age="+strconv.Itoa(cardAge))
	header.Set("ETag", tag)
	header.Set("Last-Modified", h.started.UTC().Format(http.TimeFormat))
	header.Set("Vary", "Host")
	if matches(r.Header.Values("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	header.Set("Content-Type", mediaJSON)
	header.Set("Content-Length", strconv.Itoa(len(text)))
	header.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(text) // LimitWrites handles errors. net/http omits the body for HEAD.
}

// matches reports whether If-None-Match names a tag.
func matches(values []string, tag string) bool {
	for _, value := range values {
		for part := range strings.SplitSeq(value, ",") {
			if part = strings.TrimSpace(part); part == "*" || strings.TrimPrefix(part, "W/") == tag {
				return true
			}
		}
	}
	return false
}

// card returns the card of an agent.
func (h *handler) card(r *http.Request, agent *parleyv1.AgentInfo) *a2a.AgentCard {
	base := h.URL
	if base == "" {
		base = "http://" + r.Host
		if r.TLS != nil {
			base = "https://" + r.Host
		}
	}
	at := strings.TrimSuffix(base, "/") + agentPath(agent.GetName())
	interfaces := []*a2a.AgentInterface{
		a2a.NewAgentInterface(at, a2a.TransportProtocolJSONRPC), a2a.NewAgentInterface(at, a2a.TransportProtocolHTTPJSON),
	}
	if u, err := url.Parse(base); err == nil && h.GRPCPort != 0 {
		overGRPC := a2a.NewAgentInterface(net.JoinHostPort(u.Hostname(), strconv.Itoa(h.GRPCPort)),
			a2a.TransportProtocolGRPC)
		overGRPC.Tenant = agent.GetName()
		interfaces = append(interfaces, overGRPC)
	}
	description := agent.GetDescription()
	if description == "" {
		description = "Agent " + agent.GetName() + " of a Parley server"
	}
	card := &a2a.AgentCard{
		Name: agent.GetName(), Description: description, Version: h.Version,
		SupportedInterfaces: interfaces,
		Capabilities:        a2a.AgentCapabilities{Streaming: true, PushNotifications: h.Notifier != nil},
		DefaultInputModes:   []string{mediaText, mediaJSON},
		DefaultOutputModes:  []string{mediaText, mediaJSON},
		Skills: []a2a.AgentSkill{{
			ID: agent.GetName(), Name: agent.GetName(), Description: description, Tags: []string{agent.GetKind()},
		}},
	}
	if h.NeedsSignIn {
		const name = "bearer"
		card.SecuritySchemes = a2a.NamedSecuritySchemes{name: a2a.HTTPAuthSecurityScheme{Scheme: "Bearer"}}
		card.SecurityRequirements = a2a.SecurityRequirementsOptions{{name: {}}}
	}
	return card
}
