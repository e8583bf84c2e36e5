package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutLog = `Read what was said, in the server's interaction log: each message of each conversation, also of
those that have ended. Where the server has no log, see its --interaction-log.

Each line has the time in UTC, the conversation, whose words these are, and all of them; those
with line breaks go on in indented lines. With --output json each line is one message, as the
API has it. What was asked for goes to standard output. Standard error says when there is more,
how to go on, and how many lines of the log cannot be read; the server's own log says which.`

func (a *app) newLogCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "log",
		Short: "Read, search and erase what was ever said",
		Long:  aboutLog,
		Example: `  parley log recent --follow
  parley log search quarterly goals --days 30
  parley log session shop --output json | jq -r .content`,
		Args: cobra.NoArgs, // Also names a subcommand that does not exist.
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(a.newLogDayCommand(), a.newLogRecentCommand(), a.newLogSessionCommand(), a.newLogSearchCommand(), a.newLogEraseCommand())
	return command
}

// logFlags say which part of the lines is shown.
type logFlags struct {
	limit  int32 // 0: all
	token  string
	follow bool
}

// add adds the flags that commands have in common.
func (f *logFlags) add(flags *pflag.FlagSet, limit int32) {
	flags.Int32VarP(&f.limit, "limit", "n", limit, "messages at most, 0 all")
	flags.StringVar(&f.token, "page-token", "", "go on where the same command ended before")
}

// check reports what makes no sense.
func (f *logFlags) check() error {
	switch {
	case f.limit < 0:
		return usageError(fmt.Sprintf("--limit %d: less than nothing", f.limit))
	case f.follow && f.token != "":
		return usageError("--follow ends with what comes: no --page-token")
	}
	return nil
}

func (a *app) newLogDayCommand() *cobra.Command {
	var flags logFlags
	request := &parleyv1.ListInteractionsRequest{}
	command := &cobra.Command{
		Use:   "day [DATE]",
		Short: "Show a day, as in 2026-11-20; today in UTC without DATE",
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

const aboutLogRecent = `Show what was said lately, the newest first. With --follow the newest come last, and then, until
Ctrl-C, what is said from now on, as the log has it: nothing is missing and nothing comes twice,
also when the server restarts meanwhile.`

func (a *app) newLogRecentCommand() *cobra.Command {
	var flags logFlags
	within := duration(24 * time.Hour)
	request := &parleyv1.ListInteractionsRequest{}
	command := &cobra.Command{
		Use:   "recent",
		Short: "Show what was said lately, newest first",
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
	command.Flags().Var(&within, "within", "how long ago at most, as in 48h or 7d")
	command.Flags().BoolVarP(&flags.follow, "follow", "f", false, "show what comes, too, until Ctrl-C")
	flags.add(command.Flags(), 50)
	addLogConversation(command, &request.ConversationId)
	return command
}

func (a *app) newLogSessionCommand() *cobra.Command {
	var flags logFlags
	command := &cobra.Command{
		Use:   "session ID",
		Short: "Show a conversation from its beginning",
		Long:  "Show all that was said in a conversation, on all days, oldest first; with --follow also what\nis said in it from now on, until Ctrl-C. One that the log knows nothing of has no lines.",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			request := &parleyv1.ListInteractionsRequest{ConversationId: args[0]}
			switch {
			case args[0] == "":
				return usageError("ID is empty; parley log recent shows all conversations")
			case flags.follow && flags.limit > 0:
				return usageError("--follow shows all of a conversation: no --limit")
			case flags.follow:
				return a.followLog(command.Context(), request, &flags)
			}
			return a.listLog(command.Context(), request, &flags)
		},
	}
	command.Flags().BoolVarP(&flags.follow, "follow", "f", false, "show what comes, too, until Ctrl-C")
	flags.add(command.Flags(), 0)
	return command
}

func (a *app) newLogSearchCommand() *cobra.Command {
	var flags logFlags
	request := &parleyv1.SearchInteractionsRequest{}
	command := &cobra.Command{
		Use:   "search TEXT...",
		Short: "Find a text in what was said, newest first",
		Long:  "Find a text in what was said in the last days, newest first. It may be in upper or lower case,\nand in the middle of words. On a terminal it is shown in colour unless NO_COLOR is set.",
		Example: `  parley log search quarterly goals
  parley log search --days 30 --limit 0 'invoice 4711'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			request.Query = strings.Join(args, " ")
			if request.GetQuery() == "" {
				return usageError("TEXT is empty: what to look for")
			}
			match, err := regexp.Compile("(?i)" + regexp.QuoteMeta(request.GetQuery()))
			if err != nil {
				return usageError("TEXT is not UTF-8")
			}
			return a.showLog(command.Context(), &logLines{app: a, match: match}, &flags,
				func(ctx context.Context, c *client.Client, size int32, token string) (interactionPage, error) {
					request.PageSize, request.PageToken = size, token
					return c.SearchInteractions(ctx, request)
				})
		},
	}
	command.Flags().Int32Var(&request.Days, "days", 7, "today and the days before it, so many in all")
	flags.add(command.Flags(), 50)
	addLogConversation(command, &request.ConversationId)
	return command
}

func addLogConversation(command *cobra.Command, id *string) {
	command.Flags().StringVarP(id, "conversation", "c", "", "only this one; all when empty")
}

// interactionPage is a reply with lines of the log.
type interactionPage interface {
	GetInteractions() []*parleyv1.Interaction
	GetNextPageToken() string
	GetSkippedCount() int32
}

// pageGetter asks for a page of that size at most.
type pageGetter = func(ctx context.Context, c *client.Client, size int32, token string) (interactionPage, error)

// listLog shows what a list gives.
func (a *app) listLog(ctx context.Context, request *parleyv1.ListInteractionsRequest, flags *logFlags) error {
	return a.showLog(ctx, &logLines{app: a}, flags, lister(request))
}

// lister asks for the pages of a list.
func lister(request *parleyv1.ListInteractionsRequest) pageGetter {
	return func(ctx context.Context, c *client.Client, size int32, token string) (interactionPage, error) {
		request.PageSize, request.PageToken = size, token
		return c.ListInteractions(ctx, request)
	}
}

// showLog shows pages, each as it comes. --timeout is for each: who reads them may take long.
func (a *app) showLog(ctx context.Context, lines *logLines, flags *logFlags, get pageGetter) error {
	if err := flags.check(); err != nil {
		return err
	}
	return a.calls(ctx, func(ctx context.Context, c *client.Client) error {
		more, err := a.readLog(flags, func(size int32, token string) (interactionPage, error) {
			ctx, cancel := a.limited(ctx)
			defer cancel()
			return get(ctx, c, size, token)
		}, lines.show)
		if err == nil && more != "" {
			fmt.Fprintf(a.err, "there are more; the same with --page-token %s goes on\n", more)
		}
		return err
	})
}

// readLog takes lines until there are enough or no more, and returns the token of those that
// are left. It says how many cannot be read.
func (a *app) readLog(flags *logFlags, get func(size int32, token string) (interactionPage, error), take func(*parleyv1.Interaction) error) (more string, err error) {
	skipped := 0
	defer func() {
		if skipped > 0 {
			fmt.Fprintf(a.err, "%s of the log cannot be read and left out; the server's own log says which\n", count(skipped, "line"))
		}
	}()
	more = flags.token
	for taken := int32(0); flags.limit == 0 || taken < flags.limit; {
		size := int32(maxPage)
		if flags.limit > 0 {
			size = min(size, flags.limit-taken)
		}
		page, err := get(size, more)
		if err != nil {
			return "", err
		}
		for _, interaction := range page.GetInteractions() {
			if err := take(interaction); err != nil {
				return "", err
			}
		}
		taken += int32(len(page.GetInteractions()))
		skipped += int(page.GetSkippedCount())
		if more = page.GetNextPageToken(); more == "" {
			break
		}
	}
	return more, nil
}

func (a *app) newLogEraseCommand() *cobra.Command {
	var yes bool
	command := &cobra.Command{
		Use:   "erase ID",
		Short: "Erase all that was said in a conversation from the log",
		Long:  "Erase all lines of a conversation from the log, on all days, for good. The conversation itself\nstays until it ends: see parley delete. Where callers sign in, it needs the admin role. On a\nterminal it asks first.",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if a.inTerminal && !yes {
				question := fmt.Sprintf("erase all that was said in conversation %s from the log, for good?", oneLine(args[0]))
				if err := a.confirm(command.Context(), question); err != nil {
					return err
				}
			}
			if !a.timeoutSet {
				a.timeout = 0 // It takes as long as there are files.
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.DeleteInteractions(ctx, &parleyv1.DeleteInteractionsRequest{ConversationId: args[0]})
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) {
					fmt.Fprintf(w, "erased %s of %s\n", count(int(reply.GetDeletedCount()), "line"), args[0])
				})
			})
		},
	}
	command.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return command
}

// errDeclined is the answer no.
var errDeclined = errors.New("nothing was done")

// confirm asks who sits before the terminal. An error is all but yes.
func (a *app) confirm(ctx context.Context, question string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	select {
	case answer := <-a.lines(ctx): // Empty at Ctrl-D.
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
