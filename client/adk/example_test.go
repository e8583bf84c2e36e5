package adk_test

import (
	"context"
	"fmt"

	"google.golang.org/adk/v2/agent"
	"google.golang.org/adk/v2/agent/llmagent"
	"google.golang.org/adk/v2/runner"
	"google.golang.org/genai"

	"github.com/parleyhq/parley/client"
	"github.com/parleyhq/parley/client/adk"
)

// The sessions of an agent are in the server: another process, or the next run of the program, continues them.
func ExampleNewSessionService() {
	ctx := context.Background()
	helper, err := llmagent.New(llmagent.Config{Name: "helper", Model: script{}}) // In a program: a real model.
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := client.Dial(shared) // In a program: "127.0.0.1:50051", the address of `make run`.
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	r, err := runner.New(runner.Config{
		AppName: "garden", Agent: helper, AutoCreateSession: true,
		SessionService: adk.NewSessionService(c),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	question := genai.NewContentFromText("Which herbs like shade?", genai.RoleUser)
	for event, err := range r.Run(ctx, "anna", "herbs", question, agent.RunConfig{}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(event.Content.Parts[0].Text)
	}
	// Output: answer to Which herbs like shade?, message 1
}
