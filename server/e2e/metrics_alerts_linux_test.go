package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// monitored is an address that Prometheus scrapes. A test starts servers there, one after the other.
type monitored struct {
	prometheus
	instance, address string
}

// TestAlerts makes the cause of each alert. Before the cause no alert fires, after it exactly the alerts of the cause.
// No alert ever fires for a healthy server. The rules have no times here; TestAlertRules tests those.
func TestAlerts(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED with -short: this test takes 15 seconds")
	}
	t.Parallel()
	needProgram(t, "prometheus")
	causes := []struct {
		name   string
		make   func(m *monitored, t *testing.T)
		alerts []string // that the cause fires
	}{
		{"killed", (*monitored).kill, []string{"ParleyDown"}},
		{"restarts", (*monitored).restart, []string{"ParleyRestarting"}},
		{"store", (*monitored).failStore, []string{"ParleyStoreFailed"}},
		{"damage", (*monitored).damage, []string{"ParleyDataDamaged"}},
		{"disk", (*monitored).fillDisk, []string{"ParleyDiskNearlyFull", "ParleyWritesRefused"}},
		{"log", (*monitored).dropLogEntries, []string{"ParleyLogEntriesDropped"}},
		{"agent", (*monitored).failAgent, []string{"ParleyAgentFailing"}},
		{"turns", (*monitored).refuseTurn, []string{"ParleyTurnsRefused"}},
		{"journal", (*monitored).fillJournal, []string{"ParleyJournalBypassed"}},
		{"backup", (*monitored).missBackup, []string{"ParleyBackupOld"}},
		{"certificate", (*monitored).expireCertificate, []string{"ParleyCertificateExpires"}},
	}
	var made, all []string
	for _, rule := range readRules(t) {
		all = append(all, rule.Alert)
	}
	healthy := &monitored{instance: "healthy", address: reserve(t)}
	s := healthy.start(t, agents(t, testAgents), "--data-dir="+ownDisk(t))
	backupOf(t, s) // It never has an old backup.
	job := target(healthy.instance, healthy.address, "http")
	addresses := map[string]string{}
	for _, cause := range causes {
		made = append(made, cause.alerts...)
		addresses[cause.name] = reserve(t)
		scheme := "http"
		if cause.name == "certificate" {
			scheme = "https"
		}
		job += ", " + target(cause.name, addresses[cause.name], scheme)
	}
	slices.Sort(made)
	slices.Sort(all)
	if d := cmp.Diff(all, made); d != "" {
		t.Errorf("alerts of the causes (-want +got):\n%s", d)
	}
	p := startPrometheus(t, rulesWithoutTimes(t),
		"tls_config: {insecure_skip_verify: true}, static_configs: ["+job+"]")
	healthy.prometheus = p
	healthy.use(t, s)
	t.Run("causes", func(t *testing.T) {
		for _, cause := range causes {
			t.Run(cause.name, func(t *testing.T) {
				t.Parallel()
				cause.make(&monitored{p, cause.name, addresses[cause.name]}, t)
			})
		}
	})
	// The rules of all servers are evaluated together. So they were evaluated after the calls of the healthy server.
	fired, err := p.query(t, `count_over_time(ALERTS{instance="healthy", alertname!="ParleyDown"}[1h])`)
	if err != nil || len(fired) > 0 {
		t.Errorf("alerts that fired for a healthy server: %v, %v; want none", fired, err)
	}
	healthy.wantAlerts(t, func() {})
}

// use makes calls of a healthy server, and waits until they are scraped.
func (m *monitored) use(t *testing.T, s *server) {
	t.Helper()
	ask(t, s, "c", "hello")
	h := &httpServer{s, "http://" + m.address}
	if code, text := h.do(t, http.MethodGet, "/v1/conversations/none", ""); code != http.StatusNotFound {
		t.Errorf("GET a conversation that does not exist = %d: %s, want 404", code, text)
	}
	if !m.await(t, fmt.Sprintf(`parley_turns_total{instance=%q, agent="echo", state="completed"} > 0`, m.instance), func() {}) {
		t.Error("the calls of the healthy server were not scraped")
	}
}

// target returns a part of the settings of Prometheus.
func target(instance, address, scheme string) string {
	return fmt.Sprintf("{targets: [%q], labels: {instance: %s, __scheme__: %s}}", address, instance, scheme)
}

// rulesWithoutTimes returns the path of a copy of the rules in which alerts fire at once.
func rulesWithoutTimes(t *testing.T) string {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []map[string]any
		}
	}
	text, err := os.ReadFile(rulesPath)
	if err == nil {
		err = yaml.Unmarshal(text, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			delete(rule, "for")
		}
	}
	if text, err = yaml.Marshal(file); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// reserve returns an address of this machine that no other process is assigned until the end of the test: a socket is
// bound to it. The socket does not listen, so a server can.
func reserve(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address, ok := bound.(*syscall.SockaddrInet4)
	if !ok {
		t.Fatalf("address of the socket = %v, want one of IPv4", bound)
	}
	return fmt.Sprintf("127.0.0.1:%d", address.Port)
}

// ownDisk returns an empty directory on a disk of its own, so that alerts about the disk do not depend on that of the
// machine. If the test must not mount one, the directory is on the disk of the machine.
func ownDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256m"); err != nil {
		t.Logf("a tenth of the disk of the machine must be free: only root can mount another: %v", err)
		return dir
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// start starts a server at the address.
func (m *monitored) start(t *testing.T, flags ...string) *server {
	t.Helper()
	return startProcess(t, parleyd(t, append([]string{"--http-address=" + m.address}, flags...)...))
}

// startMemory starts a server with a store in memory and waits until it is scraped and no alert fires.
func (m *monitored) startMemory(t *testing.T, flags ...string) *server {
	t.Helper()
	s := m.start(t, append([]string{"--store=memory"}, flags...)...)
	m.awaitScrape(t)
	m.wantAlerts(t, func() {})
	return s
}

// startBolt starts a server with a store in a file, makes a backup, and waits until no alert fires.
func (m *monitored) startBolt(t *testing.T, dataDir string, flags ...string) *server {
	t.Helper()
	s := m.start(t, append([]string{"--data-dir=" + dataDir}, flags...)...)
	backupOf(t, s)
	m.awaitScrape(t)
	m.wantAlerts(t, func() {})
	return s
}

// awaitScrape waits until Prometheus has scraped the process that runs.
func (m *monitored) awaitScrape(t *testing.T) {
	t.Helper()
	const name = "process_start_time_seconds"
	started := (&httpServer{nil, "http://" + m.address}).scrape(t).values[name]
	if !m.await(t, fmt.Sprintf("%s{instance=%q} == %v", name, m.instance, started), func() {}) {
		t.Fatalf("Prometheus has not scraped the process that was started at %v", started)
	}
}

// wantAlerts waits until exactly these alerts fire. In the meantime it calls load. It ignores ParleyDown unless that is
// wanted: on a busy machine, scrapes of a server that runs may exceed their limit of time, and then it fires.
func (m *monitored) wantAlerts(t *testing.T, load func(), want ...string) {
	t.Helper()
	got := map[string]bool{}
	query := fmt.Sprintf(`ALERTS{instance=%q, alertstate="firing"}`, m.instance)
	ignored := "ParleyDown"
	if slices.Contains(want, ignored) {
		ignored = ""
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); <-ticker.C {
		fired, err := m.query(t, query)
		if err != nil {
			continue
		}
		got = map[string]bool{}
		for _, labels := range fired {
			got[labels["alertname"]] = true
		}
		delete(got, ignored)
		if slices.Equal(slices.Sorted(maps.Keys(got)), want) {
			return
		}
		load()
	}
	t.Fatalf("alerts that fire (-want +got):\n%s", cmp.Diff(want, slices.Sorted(maps.Keys(got))))
}

func (m *monitored) kill(t *testing.T) {
	t.Helper()
	m.startMemory(t).kill()
	m.wantAlerts(t, func() {}, "ParleyDown")
}

func (m *monitored) restart(t *testing.T) {
	t.Helper()
	s := m.startMemory(t)
	for range 2 {
		s.kill()
		s = m.startMemory(t) // Two restarts are no cause.
	}
	s.terminate()
	s.wantStop(t)
	m.start(t, "--store=memory")
	m.wantAlerts(t, func() {}, "ParleyRestarting")
}

// failStore makes a sync of the store fail. The server usually ends before the next scrape, so the alert fires after
// the restart.
func (m *monitored) failStore(t *testing.T) {
	t.Helper()
	needProgram(t, "strace")
	dataDir := ownDisk(t)
	s := m.startBolt(t, dataDir)
	s.writesText = true // the error of the store
	before := time.Now().Truncate(time.Second)
	failCalls(t, s.process.Process.Pid, "fdatasync")
	// The server may close the connection before it sends the error.
	if _, err := s.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{}); err == nil {
		t.Error("CreateConversation without a sync = no error, want an error")
	}
	<-s.process.Ended()
	if code := s.process.ProcessState.ExitCode(); code != exitIO {
		t.Errorf("the process ended with %v, want exit code %d", s.process.ProcessState, exitIO)
	}
	s = m.start(t, "--data-dir="+dataDir)
	at := (&httpServer{s, "http://" + m.address}).scrape(t).values["parley_store_last_failure_timestamp_seconds"]
	if at < float64(before.Unix()) || at > float64(time.Now().Unix()) {
		t.Errorf("parley_store_last_failure_timestamp_seconds = %v after a restart, want the time of the failure", at)
	}
	m.awaitScrape(t)
	m.wantAlerts(t, func() {}, "ParleyStoreFailed")
}

func (m *monitored) damage(t *testing.T) {
	t.Helper()
	dataDir := ownDisk(t)
	s := m.start(t, "--data-dir="+dataDir)
	add(t, s, "c", &parleyv1.Message{Content: strings.Repeat("Many words. ", 20) + "At the end the text of c."})
	s.terminate()
	s.wantStop(t)
	damageText(t, filepath.Join(dataDir, storeName), "the text of c")
	s = m.startBolt(t, dataDir)
	_, err := s.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c"})
	wantError(t, err, codes.DataLoss, "RECORD_CORRUPT")
	m.wantAlerts(t, func() {}, "ParleyDataDamaged")
}

func (m *monitored) fillDisk(t *testing.T) {
	t.Helper()
	dataDir := t.TempDir()
	mountSmall(t, dataDir, "16m")
	s := m.startBolt(t, dataDir, "--interaction-log=false")
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dataDir, &disk); err != nil {
		t.Fatal(err)
	}
	// A twentieth of the disk remains free.
	filler := (int64(disk.Bavail) - int64(disk.Blocks)/20) * disk.Bsize
	if err := os.WriteFile(filepath.Join(dataDir, "filler"), make([]byte, filler), 0o600); err != nil {
		t.Fatal(err)
	}
	m.wantAlerts(t, func() {}, "ParleyDiskNearlyFull")
	fillUp(t, dataDir)
	request := &parleyv1.AppendMessagesRequest{
		ConversationId: "c",
		Messages:       []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("word ", 40_000)}},
	}
	var err error
	for n := 0; err == nil && n < 100; n++ { // The file has some free pages.
		_, err = s.AppendMessages(t.Context(), request)
	}
	wantError(t, err, codes.ResourceExhausted, "STORE_FULL")
	m.wantAlerts(t, func() {}, "ParleyDiskNearlyFull", "ParleyWritesRefused")
}

// dropLogEntries does not read standard error of a server that logs all calls.
func (m *monitored) dropLogEntries(t *testing.T) {
	t.Helper()
	socket := "unix:" + filepath.Join(t.TempDir(), "parley.sock")
	unread, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer unread.Close()
	defer stderr.Close()
	command := parleyd(t, "--store=memory", "--grpc-address="+socket, "--http-address="+m.address, "--log-calls=all")
	command.Stderr = stderr
	s := startUnconnected(t, command)
	s.connect(t, socket, true)
	id := strings.Repeat("unread-", 18)
	ask(t, s, id, "Hi") // The server serves.
	m.awaitScrape(t)
	m.wantAlerts(t, func() {})
	m.wantAlerts(t, func() {
		for range 1000 { // The queue and the pipe hold a few thousand entries.
			_, err := s.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: id})
			if err != nil {
				t.Fatal(err)
			}
		}
	}, "ParleyLogEntriesDropped")
}

func (m *monitored) failAgent(t *testing.T) {
	t.Helper()
	s := m.startMemory(t, agents(t, testAgents))
	chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Content: "x", Agent: "fail"}).finish(t)
	m.wantAlerts(t, func() {}, "ParleyAgentFailing")
}

func (m *monitored) refuseTurn(t *testing.T) {
	t.Helper()
	s := m.startMemory(t, agents(t, testAgents), "--max-turns=1")
	h := hold(t, s, "held")
	stream, err := s.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: "c", Content: "x"})
	if err == nil {
		_, err = stream.Recv()
	}
	wantError(t, err, codes.ResourceExhausted, "TOO_MANY_TURNS")
	m.wantAlerts(t, func() {}, "ParleyTurnsRefused")
	h.release(t, "answer")
}

// fillJournal makes appends of several callers at a time, each of them larger than twice the budget of the journal.
func (m *monitored) fillJournal(t *testing.T) {
	t.Helper()
	s := m.startBolt(t, ownDisk(t), "--interaction-log=false", "--journal-budget=64KiB", "--max-messages=2")
	add(t, s, "c", &parleyv1.Message{Content: "hello"})
	m.wantAlerts(t, func() {
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				_, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
					ConversationId: "c",
					Messages:       []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("word ", 30_000)}},
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
	}, "ParleyJournalBypassed")
}

// missBackup starts a server whose last backup was made two days ago. The alert ends with a backup.
func (m *monitored) missBackup(t *testing.T) {
	t.Helper()
	dataDir := ownDisk(t)
	at := time.Now().Add(-48 * time.Hour).UTC().Format(time.RFC3339)
	if err := os.WriteFile(filepath.Join(dataDir, "last-backup"), []byte(at+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := m.start(t, "--data-dir="+dataDir)
	m.awaitScrape(t)
	m.wantAlerts(t, func() {}, "ParleyBackupOld")
	backupOf(t, s)
	m.wantAlerts(t, func() {})
}

// expireCertificate replaces the certificate of a server by one that expires soon.
func (m *monitored) expireCertificate(t *testing.T) {
	t.Helper()
	files := newSignIn(t)
	write := func(days int) {
		if err := files.WriteServerUntil(files.CertFile, files.KeyFile, time.Now().AddDate(0, 0, days)); err != nil {
			t.Fatal(err)
		}
	}
	write(15)
	s := startUnconnected(t, parleyd(t, append(files.ServerFlags(), "--store=memory", "--http-address="+m.address)...))
	s.await(t, "serving http", "tls=true")
	if !m.await(t, fmt.Sprintf("up{instance=%q} == 1", m.instance), func() {}) {
		t.Fatal("Prometheus has not scraped the server")
	}
	m.wantAlerts(t, func() {})
	write(13)
	if err := s.process.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	m.wantAlerts(t, func() {}, "ParleyCertificateExpires")
}
