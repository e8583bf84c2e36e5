package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutLog = `Read the server's interaction log, which contains each message of each conversation, including expired
and deleted ones. If the server has no log, see its --interaction-log.

Each line contains the time in UTC, the conversation, the author and the content. Further lines of the
content are indented. With --output json each line is one message as in the API. Results go to standard
output. Standard error says whether there are more messages, how to continue, which servers did not
answer, and how many entries of the log cannot be read; the server's own log lists those.`

func (a *app) newLogCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "log",
		Short: "Read, search and erase the interaction log",
		Long:  aboutLog,
		Example: `  parley log recent --follow
  parley log search quarterly goals --days 30
  parley log session shop --output json | jq -r .content`,
		Args: cobra.NoArgs, // With NoArgs, cobra reports an unknown subcommand.
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(a.newLogDayCommand(), a.newLogRecentCommand(), a.newLogSessionCommand(), a.newLogSearchCommand(),
		a.newLogEraseCommand())
	return command
}

// logFlags select the part of the log that is printed.
type logFlags struct {
	limit  int32 // 0 for all
	token  string
	follow bool
}

// add adds the common flags of the log commands.
func (f *logFlags) add(flags *pflag.FlagSet, limit int32) {
	flags.Int32VarP(&f.limit, "limit", "n", limit, "maximum number of messages, 0 for all")
	flags.StringVar(&f.token, "page-token", "", "continue a previous call of the same command")
}

// check returns an error if the flags are invalid.
func (f *logFlags) check() error {
	switch {
	case f.limit < 0:
		return usageError(fmt.Sprintf("--limit %d: must not be negative", f.limit))
	case f.follow && f.token != "":
		return usageError("--follow always shows the newest messages: leave out --page-token")
	}
	return nil
}

func (a *app) newLogDayCommand() *cobra.Command {
	var flags logFlags
	request := &parleyv1.ListInteractionsRequest{}
	command := &cobra.Command{
		Use:   "day [DATE]",
		Short: "Show the messages of a day such as 2026-11-20 (default: today in UTC)",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			date := a.now().UTC().Format(time.DateOnly)
			if len(args) > 0 {
				date = args[0]
			}
			request.Span = &parleyv1.ListInteractionsRequest_Date{Date: date}
			return a.listLog(command.Context(), request, &flags)
		},
	}
	flags.add(command.Flags(), 0)
	addLogConversation(command, &request.ConversationId)
	return command
}

const aboutLogRecent = `Show recent messages, newest first. With --follow, show the newest last, and then new messages
as they are logged, until Ctrl-C. No message is missing or repeated, even if the server restarts.`

func (a *app) newLogRecentCommand() *cobra.Command {
	var flags logFlags
	within := duration(24 * time.Hour)
	request := &parleyv1.ListInteractionsRequest{}
	command := &cobra.Command{
		Use:   "recent",
		Short: "Show recent messages, newest first",
		Long:  aboutLogRecent,
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			request.Span = &parleyv1.ListInteractionsRequest_Within{Within: durationpb.New(time.Duration(within))}
			if flags.follow {
				return a.followLog(command.Context(), request, &flags)
			}
			return a.listLog(command.Context(), request, &flags)
		},
	}
	command.Flags().Var(&within, "within", "maximum age of the messages, such as 48h or 7d")
	command.Flags().BoolVarP(&flags.follow, "follow", "f", false, "also show new messages, until Ctrl-C")
	flags.add(command.Flags(), 50)
	addLogConversation(command, &request.ConversationId)
	return command
}

func (a *app) newLogSessionCommand() *cobra.Command {
	var flags logFlags
	command := &cobra.Command{
		Use:   "session ID",
		Short: "Show the messages of a conversation, oldest first",
		Long: "Show all messages of a conversation, of all days, oldest first. With --follow, also show new messages,\n" +
			"until Ctrl-C. For a conversation that is not in the log, nothing is printed.",
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			request := &parleyv1.ListInteractionsRequest{ConversationId: args[0]}
			switch {
			case args[0] == "":
				return usageError("ID is empty; parley log recent shows all conversations")
			case flags.follow && flags.limit > 0:
				return usageError("--follow shows the complete conversation: leave out --limit")
			case flags.follow:
				return a.followLog(command.Context(), request, &flags)
			}
			return a.listLog(command.Context(), request, &flags)
		},
	}
	command.Flags().BoolVarP(&flags.follow, "follow", "f", false, "also show new messages, until Ctrl-C")
	flags.add(command.Flags(), 0)
	return command
}

func (a *app) newLogSearchCommand() *cobra.Command {
	var flags logFlags
	request := &parleyv1.SearchInteractionsRequest{}
	command := &cobra.Command{
		Use:   "search TEXT...",
		Short: "Find messages that contain a text, newest first",
		Long: "Find messages of the last days that contain a text, newest first. The search ignores case and also\n" +
			"matches parts of words. On a terminal the text is in colour unless NO_COLOR is set.",
		Example: `  parley log search quarterly goals
  parley log search --days 30 --limit 0 'invoice 4711'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			request.Query = strings.Join(args, " ")
			if request.GetQuery() == "" {
				return usageError("TEXT is empty; write the text to find")
			}
			match, err := regexp.Compile("(?i)" + regexp.QuoteMeta(request.GetQuery()))
			if err != nil {
				return usageError("TEXT is not valid UTF-8")
			}
			return a.showLog(command.Context(), &logWriter{app: a, match: match}, &flags,
				func(ctx context.Context, c *client.Client, size int32, token string) (interactionPage, error) {
					request.PageSize, request.PageToken = size, token
					return c.SearchInteractions(ctx, request)
				})
		},
	}
	command.Flags().Int32Var(&request.Days, "days", 7, "number of days to search, including today")
	flags.add(command.Flags(), 50)
	addLogConversation(command, &request.ConversationId)
	return command
}

func addLogConversation(command *cobra.Command, id *string) {
	command.Flags().StringVarP(id, "conversation", "c", "", "only this conversation; if empty, all")
}

// interactionPage is a reply with entries of the log.
type interactionPage interface {
	GetInteractions() []*parleyv1.Interaction
	GetNextPageToken() string
	GetSkippedCount() int32
	GetUnreachable() []string
}

// pageGetter requests a page of at most size entries.
type pageGetter = func(ctx context.Context, c *client.Client, size int32, token string) (interactionPage, error)

// listLog prints the entries that request lists.
func (a *app) listLog(ctx context.Context, request *parleyv1.ListInteractionsRequest, flags *logFlags) error {
	return a.showLog(ctx, &logWriter{app: a}, flags, listPages(request))
}

// listPages returns a pageGetter for request.
func listPages(request *parleyv1.ListInteractionsRequest) pageGetter {
	return func(ctx context.Context, c *client.Client, size int32, token string) (interactionPage, error) {
		request.PageSize, request.PageToken = size, token
		return c.ListInteractions(ctx, request)
	}
}

// showLog prints pages as they arrive. --timeout applies to each page, because a pager may block the output.
func (a *app) showLog(ctx context.Context, writer *logWriter, flags *logFlags, get pageGetter) error {
	if err := flags.check(); err != nil {
		return err
	}
	return a.interruptibleCall(ctx, func(ctx context.Context, c *client.Client) error {
		more, err := a.readLog(flags, func(size int32, token string) (interactionPage, error) {
			ctx, cancel := a.withTimeout(ctx)
			defer cancel()
			return get(ctx, c, size, token)
		}, writer.show)
		if err == nil && more != "" {
			fmt.Fprintf(a.err, "there are more; use --page-token %s to continue\n", more)
		}
		return err
	})
}

// readLog calls show with each entry until the limit or the end of the log. It returns the token of the next
// page, or "" at the end. It prints how many entries the server could not read, and which servers did not answer.
func (a *app) readLog(flags *logFlags, get func(size int32, token string) (interactionPage, error),
	show func(*parleyv1.Interaction) error,
) (more string, err error) {
	skipped, unreachable := 0, map[string]bool{}
	defer func() {
		if len(unreachable) > 0 {
			fmt.Fprintln(a.err, unreachableText(slices.Sorted(maps.Keys(unreachable))))
		}
		if skipped > 0 {
			fmt.Fprintf(a.err, "skipped %s that cannot be read; the server's own log lists them\n", count(skipped, "log entry"))
		}
	}()
	more = flags.token
	for shown := int32(0); flags.limit == 0 || shown < flags.limit; {
		size := int32(maxPage)
		if flags.limit > 0 {
			size = min(size, flags.limit-shown)
		}
		page, err := get(size, more)
		if err != nil {
			return "", err
		}
		for _, interaction := range page.GetInteractions() {
			if err := show(interaction); err != nil {
				return "", err
			}
		}
		shown += int32(len(page.GetInteractions()))
		skipped += int(page.GetSkippedCount())
		for _, server := range page.GetUnreachable() {
			unreachable[server] = true
		}
		if more = page.GetNextPageToken(); more == "" {
			break
		}
	}
	return more, nil
}

// unreachableText says which servers did not answer.
func unreachableText(servers []string) string {
	return "entries of servers that did not answer are missing: " + strings.Join(servers, ", ")
}

func (a *app) newLogEraseCommand() *cobra.Command {
	var yes bool
	command := &cobra.Command{
		Use:   "erase ID",
		Short: "Erase all messages of a conversation from the log",
		Long: "Permanently erase all entries of a conversation from the log, of all days. The conversation itself\n" +
			"remains; see parley delete. If callers sign in, the command needs the admin role. On a terminal it\n" +
			"asks for confirmation.",
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if a.inTerminal && !yes {
				question := fmt.Sprintf("permanently erase all messages of conversation %s from the log?", oneLine(args[0]))
				if err := a.confirm(command.Context(), question); err != nil {
					return err
				}
			}
			if !a.timeoutSet {
				a.timeout = 0 // The duration depends on the number of files.
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.DeleteInteractions(ctx, &parleyv1.DeleteInteractionsRequest{ConversationId: args[0]})
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) {
					fmt.Fprintf(w, "erased %s of %s\n", count(int(reply.GetDeletedCount()), "entry"), args[0])
				})
			})
		},
	}
	command.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return command
}

// errDeclined is the error if the user does not confirm.
var errDeclined = errors.New("nothing was done")

// confirm asks the user on the terminal. It returns an error unless the answer is yes.
func (a *app) confirm(ctx context.Context, question string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	select {
	case answer := <-a.lines(ctx): // The line is empty at Ctrl-D.
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			return nil
		}
		return errDeclined
	case <-a.interrupts:
		fmt.Fprintln(a.err)
		return errInterrupted
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
