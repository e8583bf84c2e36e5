package app

import (
	"context"
	"errors"
	"slices"

	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/auth/certificates"
	"github.com/parleyhq/parley/server/internal/config"
)

// reloader applies new settings to a running server. Its fields belong to the goroutine that reloads.
type reloader struct {
	server *server
	start  *config.Config // the settings of the start; those that need a restart are still in effect
	agents []config.Agent // those in effect
}

// change is a part of a reload that is prepared. Neither of its functions can fail.
type change struct {
	apply   func()
	discard func() // called instead of apply if another part cannot be prepared; may be nil
}

// reloadAtHangup reads the settings again at each hangup, until ctx ends.
func (r *reloader) reloadAtHangup(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.server.hangups:
			r.server.supervisor.Reloading()
			r.server.supervisor.Ready(r.reload(ctx))
		}
	}
}

// reload reads the settings and the files that they name again, and applies them. If there is a fault, nothing changes.
// It returns the state of the server for the supervisor.
func (r *reloader) reload(ctx context.Context) (status string) {
	log := r.server.log
	next, err := r.server.readSettings(ctx)
	if err == nil {
		err = r.apply(next)
	}
	r.server.metrics.Reloaded(err == nil)
	if err != nil {
		log.ErrorContext(ctx, "reload failed; nothing has changed", "error", err)
		return "serving; the last reload failed, see the log"
	}
	r.server.settings.Store(next)
	r.server.signIn.auth.Recheck(ctx)
	for _, name := range r.start.NeedRestart(next) {
		log.WarnContext(ctx, "setting changed but not applied; restart the server", "setting", name)
	}
	logAgents(log, next)
	log.InfoContext(ctx, "settings reloaded")
	return servingStatus
}

// apply prepares all changes and then makes them. If one cannot be prepared, it makes none.
func (r *reloader) apply(next *config.Config) error {
	var prepared []change
	var faults []error
	for _, prepare := range []func(*config.Config) (change, error){
		r.prepareAgents, r.prepareTokens, r.prepareClientCertificates, r.prepareCertificates, r.prepareLimits,
		r.prepareLogLevel, r.prepareCallLog,
	} {
		c, err := prepare(next)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		prepared = append(prepared, c)
	}
	for _, c := range prepared {
		switch {
		case len(faults) == 0:
			c.apply()
		case c.discard != nil:
			c.discard()
		}
	}
	return errors.Join(faults...)
}

// prepareAgents creates the agents that are new or have changed. The others continue with their connections.
func (r *reloader) prepareAgents(next *config.Config) (change, error) {
	set, created, err := newAgents(next, &r.server.processes, func(a config.Agent) (agent.Entry, bool) {
		i := slices.IndexFunc(r.agents, func(old config.Agent) bool { return old.Name == a.Name && isSameAgent(old, a) })
		if i < 0 {
			return agent.Entry{}, false
		}
		entry, ok := r.server.agents.Get(a.Name)
		if !ok {
			return agent.Entry{}, false
		}
		return *entry, true
	})
	if err != nil {
		return change{}, err
	}
	log := r.server.log
	logClosed := func(name string, err error) {
		if err != nil {
			log.Warn("agent not closed in order", "agent", name, "error", err)
		}
	}
	return change{
		apply: func() {
			r.server.agents.Replace(set, logClosed)
			r.server.metrics.SetAgents(set.Names())
			r.agents = next.Agents
		},
		discard: func() { logClosed("", closeAgents(created)) },
	}, nil
}

// prepareTokens reads the file of tokens. Another path needs a restart.
func (r *reloader) prepareTokens(*config.Config) (change, error) {
	tokens := r.server.signIn.tokens
	if tokens == nil {
		return change{apply: func() {}}, nil
	}
	apply, err := tokens.Prepare()
	return change{apply: apply}, err
}

// prepareClientCertificates reads the rules for client certificates. If there were none at the start, the first rule
// needs a restart, because it turns a kind of sign-in on. The removal of the last rule is applied: then no client
// certificate is valid.
func (r *reloader) prepareClientCertificates(next *config.Config) (change, error) {
	rules := r.server.signIn.rules
	if rules == nil {
		return change{apply: func() {}}, nil
	}
	replacement, err := certificates.New(certificateRules(next))
	if err != nil {
		return change{}, settingsError("client_certificates", err)
	}
	return change{apply: func() { rules.Replace(replacement) }}, nil
}

// prepareCertificates reads the certificates of the listeners. Other paths need a restart.
func (r *reloader) prepareCertificates(*config.Config) (change, error) {
	apply, err := r.server.transports.PrepareReload()
	return change{apply: apply}, err
}

// prepareLogLevel reads the minimum level of the log.
func (r *reloader) prepareLogLevel(next *config.Config) (change, error) {
	return change{apply: func() { r.server.level.Set(next.LogLevel) }}, nil
}

// prepareCallLog reads which calls have an entry in the log.
func (r *reloader) prepareCallLog(next *config.Config) (change, error) {
	return change{apply: func() { r.server.service.SetCalls(loggedCalls(next)) }}, nil
}

// prepareLimits reads the limits of tenants.
func (r *reloader) prepareLimits(next *config.Config) (change, error) {
	return change{apply: func() { r.server.limits.Set(next.Limits()) }}, nil
}
