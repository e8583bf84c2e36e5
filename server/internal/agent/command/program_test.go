package command

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// programWord as the first argument makes the test binary one of the programs below.
const programWord = "parley-test-program"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == programWord {
		program(os.Args[2], os.Args[3:])
		os.Exit(0)
	}
	// Programs that were built to find races otherwise take a second to end.
	check(os.Setenv("GORACE", "atexit_sleep_ms=0"))
	goleak.VerifyTestMain(m)
}

// program is what a command agent may be given to run. Files are named pipes: opening
// one waits for the other side, and one that is held open ends when its holder does.
func program(name string, files []string) {
	switch name {
	case "cat":
		_, err := io.Copy(os.Stdout, os.Stdin)
		check(err)
	case "deaf": // closes its input unread
		check(os.Stdin.Close())
		fmt.Print("done")
	case "halting": // says one thing, and the next when it is told to
		fmt.Print("one ")
		await(files[0])
		fmt.Print("two")
	case "failing":
		fmt.Print("half an ")
		fmt.Fprintln(os.Stderr, strings.Repeat("chatter\n", 10_000)+"shop: no sugar left")
		os.Exit(3)
	case "killed":
		check(syscall.Kill(os.Getpid(), syscall.SIGKILL))
		select {}
	case "stubborn": // stays until it is killed
		signal.Ignore(syscall.SIGTERM)
		hold(files[0])
		fmt.Print("ready")
		select {}
	case "polite", "wordy": // ends when it is asked to, and tells so
		signal.Ignore(syscall.SIGPIPE)
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		told := hold(files[0])
		fmt.Print("ready")
		<-asked
		if name == "wordy" { // with more to say than the pipe holds
			_, _ = os.Stdout.WriteString(strings.Repeat("more ", 1<<20))
		}
		_, err := told.WriteString("bye")
		check(err)
	case "chatty": // writes for ever, and does not care that nobody reads
		signal.Ignore(syscall.SIGTERM, syscall.SIGPIPE)
		hold(files[0])
		for {
			_, _ = os.Stdout.WriteString(strings.Repeat("more ", 1000))
		}
	case "parent": // ends and leaves a child that holds all it has
		held := hold(files[0])
		child(&syscall.SysProcAttr{}, held, "idle")
		fmt.Print("parent done")
	case "idle":
		select {}
	case "deserter": // the same, but the child has left the process group
		child(&syscall.SysProcAttr{Setsid: true}, nil, "leashed", files...)
		fmt.Print("parent done")
	case "leashed":
		await(files[0])
	case "environment":
		wd, err := os.Getwd()
		check(err)
		fmt.Println(wd)
		fmt.Print(strings.Join(os.Environ(), "\n"))
	default:
		panic(name)
	}
}

// child starts a program that outlives this one and shares its pipes, and held.
func child(how *syscall.SysProcAttr, held *os.File, name string, files ...string) {
	cmd := exec.Command(os.Args[0], append([]string{programWord, name}, files...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{held}
	cmd.SysProcAttr = how
	check(cmd.Start())
}

// hold opens a named pipe to write; whoever reads it sees its end when this program is
// gone.
func hold(file string) *os.File {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	check(err)
	return f
}

// await waits until somebody has opened the named pipe to write and has gone again.
func await(file string) {
	f, err := os.Open(file)
	check(err)
	_, err = io.ReadAll(f)
	check(err)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
