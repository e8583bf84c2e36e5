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

// programArgument is the first argument that makes the test binary run one of the programs below.
const programArgument = "parley-test-program"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == programArgument {
		program(os.Args[2], os.Args[3:])
		os.Exit(0)
	}
	// Without this, programs built with the race detector take a second to end.
	check(os.Setenv("GORACE", "atexit_sleep_ms=0"))
	goleak.VerifyTestMain(m)
}

// program runs a program for a command agent. The files are named pipes: opening one waits for the
// other side, and the reader of one sees its end when the program that holds it ends.
func program(name string, files []string) {
	switch name {
	case "cat":
		_, err := io.Copy(os.Stdout, os.Stdin)
		check(err)
	case "ignore-input": // Closes its input without reading it.
		check(os.Stdin.Close())
		fmt.Print("done")
	case "two-parts": // Waits for the pipe between two parts.
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
	case "ignore-sigterm": // Runs until SIGKILL.
		signal.Ignore(syscall.SIGTERM)
		hold(files[0])
		fmt.Print("ready")
		select {}
	case "sigterm", "sigterm-with-output": // Ends at SIGTERM and writes to the pipe.
		signal.Ignore(syscall.SIGPIPE)
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		pipe := hold(files[0])
		fmt.Print("ready")
		<-signals
		if name == "sigterm-with-output" { // More output than fits in the pipe.
			_, _ = os.Stdout.WriteString(strings.Repeat("more ", 1<<20))
		}
		_, err := pipe.WriteString("bye")
		check(err)
	case "endless-output": // Writes forever, even if nothing reads.
		signal.Ignore(syscall.SIGTERM, syscall.SIGPIPE)
		hold(files[0])
		for {
			_, _ = os.Stdout.WriteString(strings.Repeat("more ", 1000))
		}
	case "parent": // Ends and leaves a child that has all its descriptors.
		held := hold(files[0])
		child(&syscall.SysProcAttr{}, held, "idle")
		fmt.Print("parent done")
	case "idle":
		select {}
	case "parent-of-daemon": // Like parent, but the child is outside the process group.
		child(&syscall.SysProcAttr{Setsid: true}, nil, "daemon", files...)
		fmt.Print("parent done")
	case "daemon":
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

// child starts a program that continues after this one. It inherits the standard descriptors and held.
func child(how *syscall.SysProcAttr, held *os.File, name string, files ...string) {
	cmd := exec.Command(os.Args[0], append([]string{programArgument, name}, files...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{held}
	cmd.SysProcAttr = how
	check(cmd.Start())
}

// hold opens a named pipe for writing. Its reader sees the end when this program ends.
func hold(file string) *os.File {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	check(err)
	return f
}

// await waits until a writer has opened the named pipe and closed it again.
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
