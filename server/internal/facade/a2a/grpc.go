package a2a

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/a2aproject/a2a-go/v2/a2a"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
)

// Register adds the gRPC service of the protocol to a server that has authenticated the caller of a handler; see
// [auth.WithCredentials]. The tenant of a request is the name of the agent. Without one, the default agent answers.
func Register(r grpc.ServiceRegistrar, o Options) {
	a2apb.RegisterA2AServiceServer(r, a2agrpc.NewHandler(&a2asrv.InterceptedHandler{
		Handler: &byTenant{
			tasks: o.tasks(), agents: o.Agents,
		},
		Interceptors: []a2asrv.CallInterceptor{passOn{}},
	}))
}

// passOn gives the calls of an operation the credentials of its caller, and checks the version of the protocol.
type passOn struct {
	a2asrv.PassthroughCallInterceptor
}

// Before returns the context of the operation.
func (passOn) Before(
	ctx context.Context, call *a2asrv.CallContext, _ *a2asrv.Request,
) (context.Context, any, error) {
	versions, _ := call.ServiceParams().Get(a2a.SvcParamVersion)
	if err := checkVersionText(slices.Concat(versions, []string{""})[0]); err != nil {
		return ctx, nil, versionFault(err)
	}
	return metadata.NewOutgoingContext(ctx, auth.PassedOn(ctx)), nil, nil
}

// versionFault returns the error for a version that is not supported with the code that the protocol has for it: A2A
// 1.0, 5.4. The SDK has another one.
func versionFault(err error) error {
	st, detailErr := status.New(codes.Unimplemented, err.Error()).WithDetails(&errdetails.ErrorInfo{
		Reason: a2a.ErrorReason(a2a.ErrVersionNotSupported), Domain: a2a.ProtocolDomain,
	})
	if detailErr != nil {
		return err
	}
	return st.Err()
}

// byTenant chooses the agent by the tenant of a request. Operations on a task need no agent.
type byTenant struct {
	*tasks

	agents func() []*parleyv1.AgentInfo
}

// of returns the operations of the agent that a tenant names.
func (t *byTenant) of(tenant string) (*tasks, error) {
	agents := t.agents()
	i := slices.IndexFunc(agents, func(a *parleyv1.AgentInfo) bool {
		return tenant == a.GetName() || tenant == "" && a.GetIsDefault()
	})
	if i < 0 {
		return nil, a2a.NewError(a2a.ErrInvalidParams, fmt.Sprintf(
			"tenant: %.80q is not an agent of this server; its agents are %s", tenant, namesOf(agents)))
	}
	of := *t.tasks
	of.agent = agents[i].GetName()
	return &of, nil
}

// SendMessage starts or continues a task.
func (t *byTenant) SendMessage(ctx context.Context, r *a2a.SendMessageRequest) (a2a.SendMessageResult, error) {
	of, err := t.of(r.Tenant)
	if err != nil {
		return nil, err
	}
	return of.SendMessage(ctx, r)
}

// SendStreamingMessage starts or continues a task.
func (t *byTenant) SendStreamingMessage(ctx context.Context, r *a2a.SendMessageRequest) iter.Seq2[a2a.Event, error] {
	of, err := t.of(r.Tenant)
	if err != nil {
		return func(yield func(a2a.Event, error) bool) { yield(nil, err) }
	}
	return of.SendStreamingMessage(ctx, r)
}

// ListTasks returns a page of the tasks of an agent.
func (t *byTenant) ListTasks(ctx context.Context, r *a2a.ListTasksRequest) (*a2a.ListTasksResponse, error) {
	of, err := t.of(r.Tenant)
	if err != nil {
		return nil, err
	}
	return of.ListTasks(ctx, r)
}
