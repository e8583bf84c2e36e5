package auth

import (
	"fmt"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Role is what a caller may do. A role includes the smaller ones.
type Role int

// The roles, from the smallest. Public is the role of callers without a credential.
const (
	Public Role = iota
	Reader      // reads conversations, records, turns and the interaction log
	Writer      // also creates, changes and deletes conversations and records, and runs turns
	Admin       // also erases entries of the interaction log, and reads the statistics of its tenant
)

// String returns the role's name, as in a token file.
func (r Role) String() string {
	switch r {
	case Public:
		return "public"
	case Reader:
		return "reader"
	case Writer:
		return "writer"
	case Admin:
		return "admin"
	}
	return fmt.Sprintf("role %d", int(r))
}

// ParseRole returns the role with a name: reader, writer or admin.
func ParseRole(name string) (Role, error) {
	for _, r := range []Role{Reader, Writer, Admin} {
		if r.String() == name {
			return r, nil
		}
	}
	return 0, fmt.Errorf("role %.80q: use reader, writer or admin", name)
}

// Access is what a method needs.
type Access struct {
	Role Role
	// WholeServer is true if the method concerns all tenants. Its caller needs a credential for all tenants.
	WholeServer bool
	// AnyTenant is true if a caller with a credential for all tenants need not name a tenant.
	AnyTenant bool
}

// AccessOf returns what a method needs, by its full name. It returns false if the table has no row for the method.
func AccessOf(method string) (Access, bool) {
	a, known := accessTable()[method]
	return a, known
}

// MetricsMethod stands for a request for the metrics, which is not a method of the API.
const MetricsMethod = "/metrics"

// A2AService is the prefix of the methods of the A2A protocol, version 1.0. They make calls of the API, to which the
// limits of tenants apply.
const A2AService = "/lf.a2a.v1.A2AService/"

// Roles returns the role that each method needs, by its full name.
func Roles() map[string]Role {
	roles := make(map[string]Role)
	for method, access := range accessTable() {
		roles[method] = access.Role
	}
	return roles
}

// accessTable returns the access of each method by its full name.
func accessTable() map[string]Access {
	reader, writer, admin := Access{Role: Reader}, Access{Role: Writer}, Access{Role: Admin}
	readerOfAny := Access{Role: Reader, AnyTenant: true}
	adminOfAny := Access{Role: Admin, AnyTenant: true}
	wholeServer := Access{Role: Admin, WholeServer: true, AnyTenant: true}
	return map[string]Access{
		parleyv1.ConversationService_CreateConversation_FullMethodName:       writer,
		parleyv1.ConversationService_LoadConversation_FullMethodName:         writer, // It may create the conversation.
		parleyv1.ConversationService_GetConversation_FullMethodName:          reader,
		parleyv1.ConversationService_UpdateConversation_FullMethodName:       writer,
		parleyv1.ConversationService_ListConversations_FullMethodName:        reader,
		parleyv1.ConversationService_DeleteConversation_FullMethodName:       writer,
		parleyv1.ConversationService_ClearConversation_FullMethodName:        writer,
		parleyv1.ConversationService_PurgeConversations_FullMethodName:       writer,
		parleyv1.ConversationService_ForkConversation_FullMethodName:         writer,
		parleyv1.ConversationService_AppendMessages_FullMethodName:           writer,
		parleyv1.ConversationService_AppendStream_FullMethodName:             writer,
		parleyv1.ConversationService_ListMessages_FullMethodName:             reader,
		parleyv1.ConversationService_GetContext_FullMethodName:               reader,
		parleyv1.ConversationService_GetRoutingSummary_FullMethodName:        reader,
		parleyv1.ConversationService_BatchGetRoutingSummaries_FullMethodName: reader,
		parleyv1.ConversationService_SetActiveAgent_FullMethodName:           writer,
		parleyv1.ConversationService_ListAgents_FullMethodName:               readerOfAny,
		parleyv1.ConversationService_Chat_FullMethodName:                     writer,
		parleyv1.ConversationService_ResumeTurn_FullMethodName:               reader,
		parleyv1.ConversationService_GetTurn_FullMethodName:                  reader,
		parleyv1.ConversationService_ListTurns_FullMethodName:                reader,
		parleyv1.ConversationService_CancelTurn_FullMethodName:               writer,
		parleyv1.ConversationService_WatchConversations_FullMethodName:       reader,
		parleyv1.ConversationService_ExportConversations_FullMethodName:      reader,
		parleyv1.ConversationService_ImportConversations_FullMethodName:      writer,
		parleyv1.RecordService_WriteRecords_FullMethodName:                   writer,
		parleyv1.RecordService_GetRecords_FullMethodName:                     reader,
		parleyv1.RecordService_ListRecords_FullMethodName:                    reader,
		parleyv1.InteractionLogService_ListInteractions_FullMethodName:       reader,
		parleyv1.InteractionLogService_SearchInteractions_FullMethodName:     reader,
		parleyv1.InteractionLogService_DeleteInteractions_FullMethodName:     admin,
		parleyv1.AdminService_GetStats_FullMethodName:                        adminOfAny,
		parleyv1.AdminService_BackupStore_FullMethodName:                     wholeServer,

		// The calls that these make are authorized again. --a2a turns them on.
		A2AService + "SendMessage":                      writer,
		A2AService + "SendStreamingMessage":             writer,
		A2AService + "GetTask":                          reader,
		A2AService + "ListTasks":                        reader,
		A2AService + "CancelTask":                       writer,
		A2AService + "SubscribeToTask":                  reader,
		A2AService + "CreateTaskPushNotificationConfig": writer,
		A2AService + "GetTaskPushNotificationConfig":    reader,
		A2AService + "ListTaskPushNotificationConfigs":  reader,
		A2AService + "DeleteTaskPushNotificationConfig": writer,
		A2AService + "GetExtendedAgentCard":             reader,

		MetricsMethod: {Role: Reader, WholeServer: true, AnyTenant: true},

		// Probes of process managers and load balancers have no credential.
		healthv1.Health_Check_FullMethodName: {Role: Public},
		healthv1.Health_List_FullMethodName:  {Role: Public},
		healthv1.Health_Watch_FullMethodName: {Role: Public},

		reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName:      readerOfAny,
		reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: readerOfAny,
	}
}
