package a2a

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/uuid"
	"google.golang.org/grpc/metadata"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxPushConfigs is the maximum number of configurations of push notifications of a task.
const maxPushConfigs = 10

// pushPrefix returns the prefix of the keys of the records with the configurations of a task.
func pushPrefix(task string) string { return "a2a/push/" + task + "/" }

// maxConfigID is the maximum size of the id of a configuration, which is part of the key of a record.
const maxConfigID = 64

// CreateTaskPushConfig adds a configuration to a task, or replaces the one with the same id. If the task has not ended,
// its notifications begin with the next change of its state.
func (t *tasks) CreateTaskPushConfig(ctx context.Context, r *a2a.PushConfig) (*a2a.PushConfig, error) {
	turns, err := t.turnsOf(ctx, string(r.TaskID))
	if err != nil {
		return nil, err
	}
	config := *r
	if err := t.checkPush(&config); err != nil {
		return nil, err
	}
	release, err := t.reserve(ctx, 1)
	if err != nil {
		return nil, err
	}
	if err := t.savePush(ctx, turns[0], &config); err != nil {
		release()
		return nil, err
	}
	newest := turns[len(turns)-1]
	t.notifier.follow(ctx, release, string(r.TaskID), newest, config.ID)
	return &config, nil
}

// checkPush checks a configuration and gives it an id if it has none.
func (t *tasks) checkPush(config *a2a.PushConfig) error {
	if t.notifier == nil {
		return a2a.ErrPushNotificationNotSupported
	}
	if config.ID == "" {
		config.ID = uuid.NewString()
	}
	if len(config.ID) > maxConfigID || strings.ContainsFunc(config.ID, func(r rune) bool { return r < '!' || r > '~' }) {
		return a2a.NewError(t.invalid(), fmt.Sprintf(
			"taskPushNotificationConfig.id: must have at most %d bytes of printable ASCII without spaces", maxConfigID))
	}
	if err := t.notifier.check(config); err != nil {
		return a2a.NewError(t.invalid(), "taskPushNotificationConfig."+err.Error())
	}
	return nil
}

// reserve reserves n notifications for the tenant of the caller. release gives them back, one with each call.
func (t *tasks) reserve(ctx context.Context, n int) (release func(), err error) {
	sent, _ := metadata.FromOutgoingContext(ctx)
	caller, err := t.signIn(ctx, parleyv1.ConversationService_ResumeTurn_FullMethodName, sent)
	if err != nil {
		return nil, t.faultOf(ctx, err)
	}
	if release, ok := t.notifier.reserve(caller.Tenant, n); ok {
		return release, nil
	}
	return nil, a2a.NewError(a2a.ErrServerError,
		"the tenant's limit of push notifications is reached; retry when tasks have ended, or subscribe to the task")
}

// savePush stores a configuration.
func (t *tasks) savePush(ctx context.Context, first *parleyv1.Turn, config *a2a.PushConfig) error {
	all, err := t.pushConfigs(ctx, first)
	if err != nil {
		return err
	}
	others := 0
	for _, other := range all {
		if other.ID != config.ID {
			others++
		}
	}
	if others >= maxPushConfigs {
		return a2a.NewError(t.invalid(), fmt.Sprintf(
			"the task has %d push notification configurations, which is the limit; delete one", others))
	}
	value, err := json.Marshal(config)
	if err != nil {
		return a2a.NewError(t.invalid(), "taskPushNotificationConfig: "+err.Error())
	}
	return t.write(ctx, first, &parleyv1.RecordWrite{
		Key: pushPrefix(first.GetId()) + config.ID, Value: value, MediaType: mediaJSON,
	})
}

// pushConfigs returns the configurations of a task, in the order of their ids.
func (t *tasks) pushConfigs(ctx context.Context, first *parleyv1.Turn) ([]*a2a.PushConfig, error) {
	page, err := t.records.ListRecords(ctx, &parleyv1.ListRecordsRequest{
		ConversationId: first.GetConversationId(), Prefix: pushPrefix(first.GetId()), PageSize: maxPushConfigs,
	})
	if err != nil {
		return nil, t.faultOf(ctx, err)
	}
	all := []*a2a.PushConfig{} // The SDK would write nil as null.
	for _, record := range page.GetRecords() {
		config := new(a2a.PushConfig)
		if json.Unmarshal(record.GetValue(), config) == nil { // Others may write such a record.
			all = append(all, config)
		}
	}
	return all, nil
}

// GetTaskPushConfig returns a configuration.
func (t *tasks) GetTaskPushConfig(ctx context.Context, r *a2a.GetTaskPushConfigRequest) (*a2a.PushConfig, error) {
	all, err := t.ListTaskPushConfigs(ctx, &a2a.ListTaskPushConfigRequest{TaskID: r.TaskID, Tenant: r.Tenant})
	if err != nil {
		return nil, err
	}
	for _, config := range all.Configs {
		if config.ID == r.ID {
			return config, nil
		}
	}
	return nil, noConfig(r.TaskID, r.ID)
}

func noConfig(task a2a.TaskID, id string) error {
	return a2a.NewError(a2a.ErrTaskNotFound, fmt.Sprintf("task %q has no push notification configuration %.80q", task, id))
}

// ListTaskPushConfigs returns all configurations of a task, in one page.
func (t *tasks) ListTaskPushConfigs(
	ctx context.Context, r *a2a.ListTaskPushConfigRequest,
) (*a2a.ListTaskPushConfigResponse, error) {
	turns, err := t.turnsOf(ctx, string(r.TaskID))
	if err != nil {
		return nil, err
	}
	configs, err := t.pushConfigs(ctx, turns[0])
	if err != nil {
		return nil, err
	}
	for _, config := range configs {
		config.TaskID, config.Tenant = r.TaskID, r.Tenant
	}
	return &a2a.ListTaskPushConfigResponse{Configs: configs}, nil
}

// DeleteTaskPushConfig deletes a configuration. It returns no error if there is none.
func (t *tasks) DeleteTaskPushConfig(ctx context.Context, r *a2a.DeleteTaskPushConfigRequest) error {
	turns, err := t.turnsOf(ctx, string(r.TaskID))
	if err != nil {
		return err
	}
	if len(r.ID) > maxConfigID {
		return noConfig(r.TaskID, r.ID)
	}
	return t.write(ctx, turns[0], &parleyv1.RecordWrite{Key: pushPrefix(turns[0].GetId()) + r.ID, Delete: true})
}

// pushes are the notifications of the task that a message starts or continues.
type pushes struct {
	config  *a2a.PushConfig // of the message; nil if it has none
	ids     []string        // of the stored configurations of the task
	release func()
	begun   bool
}

// preparePushes checks the configuration of a message and reserves the notifications of its task, before the message is
// stored. A configuration without an id gets one from requestID, so that a repetition of the message replaces it.
func (t *tasks) preparePushes(
	ctx context.Context, r *a2a.SendMessageRequest, requestID string, turns []*parleyv1.Turn,
) (*pushes, error) {
	p := &pushes{release: func() {}}
	if r.Config != nil && r.Config.PushConfig != nil {
		config := *r.Config.PushConfig
		if config.ID == "" {
			config.ID = uuid.NewSHA1(uuid.Nil, []byte(requestID)).String()
		}
		if err := t.checkPush(&config); err != nil {
			return nil, err
		}
		p.config = &config
		p.ids = append(p.ids, config.ID)
	}
	if len(turns) > 0 && t.notifier != nil {
		stored, err := t.pushConfigs(ctx, turns[0])
		if err != nil {
			return nil, err
		}
		for _, config := range stored {
			if p.config == nil || config.ID != p.config.ID {
				p.ids = append(p.ids, config.ID)
			}
		}
	}
	if len(p.ids) == 0 {
		return p, nil
	}
	var err error
	p.release, err = t.reserve(ctx, len(p.ids))
	return p, err
}

// begin stores the configuration of the message and starts the notifications of a turn of its task, once. event is one
// of the turn's first events.
func (t *tasks) beginPushes(ctx context.Context, p *pushes, task string, turn *parleyv1.Turn) error {
	if p.begun {
		return nil
	}
	p.begun = true
	if p.config != nil {
		first := &parleyv1.Turn{Id: task, ConversationId: turn.GetConversationId()}
		if err := t.savePush(ctx, first, p.config); err != nil {
			p.end()
			return err
		}
	}
	for _, id := range p.ids {
		t.notifier.follow(ctx, p.release, task, turn, id)
	}
	return nil
}

// end gives back the reservations of notifications that have not begun.
func (p *pushes) end() {
	for range p.ids {
		p.release()
	}
	p.ids = nil
}
